"""Rates, and the chart that finds a burst."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from forebay.core import forecast, learning, windows
from forebay.core.memory import initial_memory
from forebay.core.units import UNKNOWN, known
from tests.core import build
from tests.core.test_sight import look

if TYPE_CHECKING:
    from collections.abc import Callable

SPEC = build.fleet({})


class Watch:
    """The windows of one service, fed a second at a time."""

    def __init__(self, *, dispersion: int = 1000) -> None:
        memory = initial_memory(SPEC, 0)
        self.recent = memory.recent
        usual = learning.what_is_usual(SPEC, memory.learned)
        self.usual = replace(usual, dispersion_milli=np.array([dispersion]))
        self.seen = look([])
        self.rates: forecast.Rates
        self.now_ms = 0

    def second(self, arrivals: int, *, tick_ms: int = 1000, tokens: int = 1000) -> Watch:
        self.now_ms += tick_ms
        shot = build.snapshot(self.now_ms, [])
        change = windows.GatewayChange(np.array([tick_ms]), np.array([arrivals]), np.array([arrivals * tokens]))
        nothing, _ = windows.compare_replicas(shot, self.recent.replicas)
        ring, tick = windows.record(self.recent, shot, nothing, change)
        seen = replace(self.seen, now_ms=self.now_ms, elapsed_ms=tick_ms)
        timers = forecast.watch(ring, tick, self.recent.timers, self.usual.dispersion_milli, seen)
        timers, self.rates = forecast.measure(ring, timers, self.usual, seen)
        self.recent = replace(self.recent, ring=ring, timers=timers, now_ms=self.now_ms)
        return self

    def steadily(self, rate: Callable[[int], float], seconds: int) -> Watch:
        """Let requests come evenly."""
        owed = 0.0
        for second in range(seconds):
            owed += rate(second)
            self.second(int(owed))
            owed -= int(owed)
        return self

    def by_chance(self, rate: float, seconds: int, seed: int) -> list[bool]:
        """Let them come as Poisson has it; say in which seconds a burst was on."""
        dice = np.random.default_rng(seed)
        alarms = []
        for _ in range(seconds):
            self.second(int(dice.poisson(rate)))
            alarms.append(bool(known(self.recent.timers.burst_since_s)[0]))
        return alarms


def test_a_constant_rate_is_measured_as_it_is() -> None:
    watch = Watch().steadily(lambda _: 2, 100)
    # 60 rows of 2 in the 59 s and a bit that they speak of
    assert watch.rates.stable_milli.tolist() == [2033]
    assert watch.rates.stable_prompt_milli.tolist() == [2_033_898]
    assert watch.rates.burst.tolist() == [False]


def test_traffic_that_began_ten_seconds_ago_is_divided_by_ten_seconds() -> None:
    watch = Watch().steadily(lambda second: 0 if second < 100 else 2, 111)
    assert watch.rates.stable_milli.tolist() == [2200]


def test_a_single_request_after_silence_is_a_tenth_a_second() -> None:
    assert Watch().steadily(lambda _: 0, 100).second(1).rates.stable_milli.tolist() == [100]


@pytest.mark.parametrize(("factor", "within_s"), [(5, 3), (10, 2), (3, 12)])
def test_a_step_is_found_within_seconds(factor: int, within_s: int) -> None:
    # 1.4 requests/s; a fivefold step adds 7 x 1.099 - 2 x 1.4 = 4.9 nats a second towards 11.5.
    watch = Watch().steadily(lambda _: 1.4, 100)
    watch.steadily(lambda _: 1.4 * factor, within_s)
    assert watch.rates.burst.tolist() == [True]
    assert watch.rates.burst_milli[0] >= 1400 * factor * 0.85


def test_twice_as_much_is_found_by_the_stable_mean_within_a_minute() -> None:
    watch = Watch().steadily(lambda _: 1.4, 100).steadily(lambda _: 2.8, 45)
    assert watch.rates.stable_milli[0] > 2400


def test_a_found_burst_is_measured_from_its_beginning_and_a_part_of_it_is_sure() -> None:
    watch = Watch().steadily(lambda _: 2, 100).steadily(lambda _: 10, 4)
    # The chart leaves zero in the burst's first second and the present one has only just begun: 40 in three seconds.
    # 1.5 standard deviations of 40 are 9.5, which is 23.7 %.
    assert watch.rates.burst_milli.tolist() == [13_333]
    assert watch.rates.burst_sure_milli.tolist() == [763]


def test_a_burst_becomes_the_stable_rate_after_a_minute() -> None:
    watch = Watch().steadily(lambda _: 1.4, 100).steadily(lambda _: 7, 62)
    assert watch.recent.timers.burst_since_s.tolist() == [UNKNOWN]
    assert watch.rates.stable_milli[0] > 6900


def test_chance_raises_no_alarm_in_half_an_hour() -> None:
    assert not any(any(Watch().by_chance(1.4, 1800, seed)) for seed in range(4))


def test_uneven_traffic_needs_more_evidence() -> None:
    calm = Watch().steadily(lambda _: 1.4, 100).steadily(lambda _: 7, 3)
    uneven = Watch(dispersion=4000).steadily(lambda _: 1.4, 100).steadily(lambda _: 7, 3)
    assert (calm.rates.burst.tolist(), uneven.rates.burst.tolist()) == ([True], [False])
    assert uneven.steadily(lambda _: 7, 12).rates.burst.tolist() == [True]


@pytest.mark.parametrize(("held", "found"), [(0, False), (1, True)])
def test_a_request_that_no_replica_has_room_for_is_half_of_the_evidence(held: int, found: bool) -> None:
    # Two seconds at 7 requests/s: 14 x 1.099 - 2 x 2 x 1.4 = 9.8 nats, of 11.5 or of 5.75.
    watch = Watch().steadily(lambda _: 1.4, 100)
    watch.seen = replace(watch.seen, held=np.array([held]))
    assert watch.steadily(lambda _: 7, 2).rates.burst.tolist() == [found]


def test_nothing_is_detected_in_the_first_ten_seconds() -> None:
    assert not Watch().steadily(lambda _: 50, 9).rates.burst.any()


def test_early_ticks_say_the_same_as_late_ones() -> None:
    late = Watch().steadily(lambda _: 2, 100)
    early = Watch().steadily(lambda _: 2, 100)
    for _ in range(4):
        late.second(8)
        for _ in range(4):
            early.second(2, tick_ms=250)
    assert late.rates.burst.tolist() == early.rates.burst.tolist() == [True]
    began_s = (int(watch.recent.timers.burst_since_s[0]) for watch in (early, late))
    assert abs(next(began_s) - next(began_s)) <= 1


@pytest.mark.parametrize(
    ("rate", "rises"),
    [
        pytest.param(lambda _: 100, False, id="a level does not rise"),
        pytest.param(lambda second: 100 + second, True, id="a ramp does"),
        pytest.param(lambda second: 300 - second, False, id="a falling one does not"),
        pytest.param(lambda second: 1 + second * 0.005, False, id="a rise within chance does not"),
    ],
)
def test_a_trend_that_is_no_noise(rate: Callable[[int], float], rises: bool) -> None:
    watch = Watch().steadily(rate, 120)
    mean = sum(rate(second) for second in range(60, 120)) / 60 * 1000 * 60 / 59
    assert (watch.rates.stable_milli[0] > mean * 1.02) == rises


def test_the_ramp_is_met_where_it_will_be() -> None:
    watch = Watch().steadily(lambda second: 100 + second, 120)
    # 219 now. The minute's mean is 189.5; two rises of 20 a second each 20 s are 40, less what chance may have done.
    assert 195_000 < watch.rates.stable_milli[0] < 230_000


def test_prompts_that_became_longer_count_after_a_quarter_of_a_minute() -> None:
    watch = Watch().steadily(lambda _: 100, 100)
    for _ in range(15):
        watch.second(100, tokens=2000)
    # The minute holds 45 s of 100,000 tokens and 15 s of 200,000. Of 1,500 prompts, three deviations of the tokens are
    # 3 x sqrt(2.44 / 1,500) = 12.1 %: 200,000 x 15 / 14 s less that.
    assert watch.rates.stable_prompt_milli.tolist() == [188_571_428]
    assert watch.rates.stable_milli.tolist() == [101_694]
    assert watch.rates.burst.tolist() == [False]


def test_a_few_long_prompts_are_no_rise() -> None:
    watch = Watch().steadily(lambda _: 1, 100)
    for _ in range(15):
        watch.second(1, tokens=2000)
    assert watch.rates.stable_prompt_milli.tolist() == [1_271_186]


def test_traffic_is_forgotten_after_a_minute_of_silence() -> None:
    watch = Watch().steadily(lambda _: 5, 50)
    assert known(watch.recent.timers.traffic_since_ms).all()
    watch.steadily(lambda _: 0, 60)
    assert not known(watch.recent.timers.traffic_since_ms).any()
    assert watch.rates.stable_milli.tolist() == [0]


@pytest.mark.parametrize(("gateways", "expected"), [([], 3050), ([{}], 1016)], ids=["no gateway", "gateways"])
def test_what_engines_saw_counts_where_no_gateway_can_tell(gateways: list[dict[str, int]], expected: int) -> None:
    watch = Watch()
    seen = replace(look([], gateways, gateways_expected=len(gateways)), now_ms=100_000)
    ring = replace(
        watch.recent.ring, entered=watch.recent.ring.entered.copy(), arrivals=watch.recent.ring.arrivals.copy()
    )
    ring.entered[:] = 3
    ring.arrivals[:] = 1
    timers = replace(watch.recent.timers, traffic_since_ms=np.array([0]))
    _, rates = forecast.measure(ring, timers, watch.usual, seen)
    assert rates.stable_milli.tolist() == [expected]
