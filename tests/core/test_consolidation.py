"""Shrinking waits, is judged by halves of the delay, and is not tried again for a while where it was regretted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from forebay.core.reasons import Reason
from forebay.core.snapshot import State
from forebay.core.step import STAGES, step
from forebay.core.units import UNKNOWN
from tests.core import build

if TYPE_CHECKING:
    from forebay.core.memory import Timers

NOW_MS = 10_000_000
QUIET: dict[str, Any] = {}


class Service:
    """One service whose replicas are what it decided a second ago."""

    def __init__(self, last: int, **service: Any) -> None:
        self.spec = build.fleet({"warm_gpus_max": 0, "burst_multiplier_milli": 1000} | service)
        self.memory = build.settled(self.spec, last, now_ms=NOW_MS)
        self.serving = last
        self.now_ms = NOW_MS
        self.reasons: set[Reason] = set()

    def seconds(self, count: int, *, running: int = 0, waiting: int = 0, **replica: Any) -> list[int]:
        """Let every replica hold so many requests; return what was decided second by second."""
        decided = []
        for _ in range(count):
            self.now_ms += 1000
            tokens = {"generation_tokens_total": self.now_ms // 1000}
            rows = [
                tokens
                | {"requests_running": running, "requests_waiting": waiting, "kv_tokens_used": 1200 * running}
                | replica
            ] * self.serving
            self.memory, decisions = step(self.spec, self.memory, build.snapshot(self.now_ms, rows))
            self.serving = int(decisions.replicas_serving[0])
            self.reasons = {Reason(int(reason)) for reason in decisions.reason[STAGES.index("consolidation")]}
            decided.append(self.serving)
        return decided


def test_a_replica_that_is_not_needed_goes_after_the_delay() -> None:
    service = Service(2)
    assert service.seconds(120) == [2] * 120
    assert service.reasons == {Reason.SHRINK_WAITS}
    assert service.seconds(1) == [1]
    assert service.reasons == {Reason.SHRINK}


def test_several_go_one_a_second() -> None:
    service = Service(5)
    service.seconds(120)
    assert service.seconds(5) == [4, 3, 2, 1, 1]


@pytest.mark.parametrize(("oldest_ms", "kept"), [(300, False), (400, True)])
def test_nothing_that_was_ordered_goes_while_somebody_waits_beyond_the_promise(oldest_ms: int, kept: bool) -> None:
    # 337 ms of the promise are left for waiting. One replica serves, four take very long to start.
    service = Service(5)
    rows = [{"requests_running": 1}] + [{"state": State.STARTING, "ready": False}] * 4
    gateway = {"requests_held": 1, "held_prompt_tokens": 9, "held_oldest_ms": oldest_ms}
    decided = []
    for _ in range(140):
        service.now_ms += 1000
        service.memory, decisions = step(service.spec, service.memory, build.snapshot(service.now_ms, rows, [gateway]))
        decided.append(int(decisions.replicas_serving[0]))
    assert (decided[-1] == 5) is kept


def test_what_was_needed_in_the_delay_is_kept() -> None:
    service = Service(5)
    service.seconds(30)
    # 13 requests wait for a moment where each replica has eight slots: 3 x 8 > 5 + 13.
    service.seconds(1, running=1, waiting=3)
    assert min(service.seconds(150)) >= 2


def test_unknown_time_stops_the_clock_and_does_not_set_it_back() -> None:
    service = Service(2)
    service.seconds(100)
    assert service.seconds(50, age_ms=9000) == [2] * 50
    assert service.reasons == {Reason.GATEWAY_DEMAND_ONLY}
    assert service.seconds(19) == [2] * 19
    assert 1 in service.seconds(4)


def test_need_that_comes_back_starts_the_clock_anew() -> None:
    service = Service(2)
    service.seconds(100)
    service.seconds(10, running=8)
    # The stable window forgets them after a minute; until then two are needed.
    assert min(service.seconds(100)) == 2


@pytest.mark.parametrize(
    ("running", "kv", "goes"),
    [
        pytest.param(2, 1200, True, id="four requests fit into one replica with a fifth to spare"),
        # 2 x 3.5 of 8 slots are 0.875 of one replica: more than 80 %.
        pytest.param(3, 1200, False, id="six and their margin for chance do not"),
        pytest.param(1, 60_000, False, id="nor does a KV cache of 120,000 tokens in 90 % of 100,000 slots"),
    ],
)
def test_fewer_must_suffice_with_a_fifth_to_spare(running: int, kv: int, goes: bool) -> None:
    service = Service(2)
    decided = service.seconds(200, running=running, kv_tokens_used=kv)
    assert (min(decided) == 1) == goes


def test_a_regretted_removal_is_not_tried_again_for_half_an_hour() -> None:
    service = Service(2, scale_down_delay_ms=10_000)
    assert 1 in service.seconds(30, running=2)
    assert service.seconds(1, running=4, waiting=150) == [2]
    assert service.seconds(200, running=2) == [2] * 200
    assert service.reasons == {Reason.SHRINK_WAS_REGRETTED}
    service.now_ms += 1_800_000
    assert min(service.seconds(100, running=2)) == 1


def stretched_s(*, running: int = 8, **timers_s: int) -> Timers:
    """Judge a need of two replicas or less, with a delay of ten seconds and these timers, in seconds before now."""
    spec = build.fleet({"scale_down_delay_ms": 10_000})
    memory = build.settled(spec, 2, now_ms=NOW_MS)
    known = {name: np.array([NOW_MS - 1000 * ago if name != "delay" else 1000 * ago]) for name, ago in timers_s.items()}
    timers = replace(memory.recent.timers, **{f"{name}_ms": value for name, value in known.items()})
    timers = replace(timers, high_milli=np.array([4000]))
    memory = replace(memory, recent=replace(memory.recent, timers=timers))
    memory, _ = step(spec, memory, build.snapshot(NOW_MS, [{"requests_running": running}] * 2))
    return memory.recent.timers


@pytest.mark.parametrize(
    ("timers_s", "delay_s"),
    [
        pytest.param({"low": 40}, 50, id="as long as the gap and a quarter"),
        pytest.param({"low": 70}, 80, id="up to eightfold"),
        pytest.param({"low": 90}, None, id="not for what no delay would have met"),
        pytest.param({"low": 4}, None, id="nor for what half of the delay meets"),
        pytest.param({"low": 40, "delay": 80, "delayed": 170}, 80, id="a shorter gap keeps it"),
        pytest.param({"low": 20, "delay": 80, "delayed": 150}, 80, id="nothing changes before sixteenfold calm"),
        pytest.param({"low": 20, "delay": 80, "delayed": 170}, 40, id="a gap that half of it meets is calm"),
        pytest.param({"delay": 40, "delayed": 170}, 20, id="so is no gap at all"),
    ],
)
def test_the_delay_becomes_as_long_as_the_gap_after_which_the_need_came_back(
    timers_s: dict[str, int], delay_s: int | None
) -> None:
    delay_ms = int(stretched_s(**timers_s).delay_ms[0])
    assert delay_ms == (UNKNOWN if delay_s is None else 1000 * delay_s)


def test_a_gap_begins_when_the_need_has_halved_and_is_forgotten_when_it_is_longer_than_any_delay() -> None:
    assert int(stretched_s(running=7).low_ms[0]) == NOW_MS
    assert int(stretched_s(running=7, low=70).low_ms[0]) == NOW_MS - 70_000
    forgotten = stretched_s(running=7, low=90)
    assert (int(forgotten.low_ms[0]), int(forgotten.high_milli[0])) == (UNKNOWN, 1750)


def test_a_burst_that_comes_back_after_a_learned_gap_finds_what_the_last_one_needed() -> None:
    service = Service(4, scale_down_delay_ms=20_000)

    def burst() -> None:
        for _ in range(90):
            service.seconds(1, running=24 // service.serving)

    burst()
    assert service.serving == 4
    assert min(service.seconds(110)) == 1
    burst()
    assert min(service.seconds(110)) == service.serving >= 3


def test_a_removal_is_tried_again_when_the_load_has_become_less() -> None:
    service = Service(2, scale_down_delay_ms=10_000)
    assert 1 in service.seconds(30, running=2)
    assert service.seconds(1, running=4, waiting=150) == [2]
    service.seconds(100, running=2)
    assert min(service.seconds(100)) == 1
