"""What is measured of engines and traffic, and what is made of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from forebay.core import learning, windows
from forebay.core.memory import Memory, initial_memory
from forebay.core.snapshot import State
from forebay.core.units import UNKNOWN
from tests.core import build
from tests.core.test_sight import look

SPEC = build.fleet({})
SEEN = look([])


def after(looks: list[dict[str, Any]], spec: Any = SPEC, memory: Memory | None = None) -> Memory:
    """Learn from one replica that is looked at every second."""
    memory = memory or initial_memory(spec, 0)
    baseline, learned = memory.recent.replicas, memory.learned
    for second, replica in enumerate(looks):
        shot = build.snapshot(1000 * second, [replica])
        change, baseline = windows.compare_replicas(shot, baseline)
        usual = learning.what_is_usual(spec, learned)
        learned = learning.learn(spec, learned, usual, shot, change, timers=memory.recent.timers)
    return replace(memory, learned=learned)


def usual(memory: Memory, spec: Any = SPEC) -> learning.Usual:
    return learning.what_is_usual(spec, memory.learned)


def decoding(step_ms: int, seconds: int = 100, batch: int = 8) -> list[dict[str, Any]]:
    """A replica whose gaps between tokens are all `step_ms`."""
    tokens = batch * 1000 // step_ms
    return [
        {
            "requests_running": batch,
            "generation_tokens_total": tokens * second,
            "itl_count": tokens * second,
            "itl_sum_ms": tokens * step_ms * second,
        }
        for second in range(seconds)
    ]


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        pytest.param([], 1000, id="the prior is right until proven wrong"),
        pytest.param(decoding(24), 1000, id="eight sequences step in 24 ms: the prior is right"),
        pytest.param(decoding(48), 2000, id="twice as slow"),
        pytest.param(decoding(12), 500, id="twice as fast"),
        pytest.param(decoding(240), 3000, id="ten times as slow is said to be three times"),
        pytest.param(decoding(48, seconds=3), 1000, id="two seconds move nothing"),
        pytest.param([{"requests_running": 0}] * 100, 1000, id="no tokens, no sample"),
        pytest.param(decoding(100, batch=1), 1000, id="ten gaps in a second are one request's own story"),
    ],
)
def test_the_time_scale(looks: list[dict[str, Any]], expected: int) -> None:
    assert usual(after(looks)).time_scale_milli.tolist() == [expected]


def test_prefill_in_the_same_second_stretches_the_gaps_and_not_the_scale() -> None:
    # Three prompts of 1000 tokens hold everybody up for 0.3 s: 700 ms hold 29 steps of 24 ms, a mean gap of 34 ms.
    looks = [
        look | {"prompt_tokens_total": 3000 * second, "ttft_count": 3 * second}
        for second, look in enumerate(decoding(34))
    ]
    assert usual(after(looks)).time_scale_milli.tolist() == [1000]


def test_lengths_begin_at_the_prior_and_follow_what_is_seen() -> None:
    assert usual(after([])).prompt_tokens.tolist() == [512]
    assert usual(after([])).answer_tokens.tolist() == [256]
    looks = [
        {
            "requests_finished_total": 10 * second,
            "generation_tokens_total": 900 * second,
            "ttft_count": 10 * second,
            "prompt_tokens_total": 30_000 * second,
            "prefix_query_tokens_total": 30_000 * second,
            "prefix_hit_tokens_total": 12_000 * second,
        }
        for second in range(200)
    ]
    seen = usual(after(looks))
    assert (seen.prompt_tokens.tolist(), seen.answer_tokens.tolist()) == ([3000], [90])
    assert 398 <= seen.hit_milli[0] <= 400


@pytest.mark.parametrize(
    ("expected_milli", "remembered"),
    [
        pytest.param(0, (256, 128), id="the last 128 to 256 where few come"),
        pytest.param(100_000, (3000, 1500), id="what comes in half a minute where 100 a second come"),
    ],
)
def test_lengths_remember_as_much_as_traffic_brings(expected_milli: int, remembered: tuple[int, int]) -> None:
    memory = initial_memory(SPEC, 0)
    timers = replace(memory.recent.timers, expected_milli=np.array([expected_milli]))
    memory = replace(memory, recent=replace(memory.recent, timers=timers))
    looks = [{"ttft_count": 100 * second, "prompt_tokens_total": 100_000 * second} for second in range(200)]
    learned = after(looks, memory=memory).learned
    most, least = remembered
    assert least <= learned.prompts[0] <= most


def test_running_answers_count_as_half_of_one() -> None:
    # A burst: 100 come in, 10000 tokens are written, none is ended. By halves that is 200 tokens an answer; with the
    # prior's four of 256 it is (10000 + 1024) / (50 + 4).
    looks: list[dict[str, Any]] = [{}, {"requests_running": 100, "generation_tokens_total": 10_000}]
    assert usual(after(looks)).answer_tokens.tolist() == [204]


@pytest.mark.parametrize(
    "absent", [{"requests_finished_total": UNKNOWN}, {"requests_running": UNKNOWN}], ids=["finished", "running"]
)
def test_answers_are_not_measured_without_both_counts(absent: dict[str, int]) -> None:
    looks = [{"generation_tokens_total": 5000 * second} | absent for second in range(10)]
    assert usual(after(looks)).answer_tokens.tolist() == [256]


@pytest.mark.parametrize(
    ("lives", "expected"),
    [
        pytest.param([], 90_000, id="the prior alone"),
        # Bounds are 50 ms x 1.4^n: 40 s lies below 41.3 s. The prior's three starts lie below 113.4 s, twenty are real:
        # so is the quartile.
        pytest.param([40_000] * 20, 41_333, id="twenty starts of 40 s"),
        pytest.param([40_000], 113_416, id="one start against the prior's three"),
    ],
)
def test_cold_starts_are_learned(lives: list[int], expected: int) -> None:
    memory = initial_memory(SPEC, 0)
    for life_ms in lives:
        starting = {"state": State.STARTING, "ready": False, "since_created_ms": life_ms - 1000}
        memory = after([starting, {"state": State.WARM, "since_created_ms": life_ms}], memory=memory)
    assert usual(memory).lead_cold_ms.tolist() == [expected]


@pytest.mark.parametrize(
    ("raised_ms", "expected"),
    [
        pytest.param(0, 1022, id="a promotion seen a second after it was decided"),
        pytest.param(UNKNOWN, 200, id="a promotion that nobody decided"),
        pytest.param(-20_000, 200, id="what was wanted long before it was warm had a cold start"),
    ],
)
def test_promotions_are_learned(raised_ms: int, expected: int) -> None:
    memory = initial_memory(SPEC, 0)
    timers = replace(memory.recent.timers, raised_ms=np.array([raised_ms]))
    memory = replace(memory, recent=replace(memory.recent, timers=timers))
    for _ in range(20):
        memory = after([{"state": State.WARM}, {"state": State.SERVING}], memory=memory)
    assert usual(memory).lead_promote_ms.tolist() == [expected]


def dispersion(arrivals: list[int], *, burst_s: int = UNKNOWN, chart: int = 0) -> int:
    """Learn from seconds with these arrivals, five of which were expected."""
    memory = initial_memory(SPEC, 0)
    learned = memory.learned
    for second, count in enumerate(arrivals):
        ring = replace(memory.recent.ring, arrivals=memory.recent.ring.arrivals.copy())
        ring.arrivals[second % 64] = count
        timers = replace(
            memory.recent.timers,
            expected_milli=np.array([5000]),
            burst_since_s=np.array([burst_s]),
            chart=np.array([chart]),
        )
        recent = replace(memory.recent, ring=ring, timers=timers, now_ms=second * 1000)
        learned = learning.learn_dispersion(learned, recent, replace(SEEN, now_ms=(second + 1) * 1000))
    return int(learning.what_is_usual(SPEC, learned).dispersion_milli[0])


@pytest.mark.parametrize(
    ("arrivals", "more", "low", "high"),
    [
        pytest.param([], {}, 1000, 1000, id="Poisson until seen otherwise"),
        pytest.param([5] * 100, {}, 1000, 1000, id="evener than Poisson counts as Poisson"),
        # Half the seconds bring 15, half none: the squared distance is (100 + 25) / 2 = 62.5, over a mean of 5: 12.5.
        pytest.param([0, 15] * 2000, {}, 12_400, 12_600, id="bursty traffic"),
        pytest.param([0, 50] * 2000, {}, 16_000, 16_000, id="capped"),
        pytest.param([0, 15] * 200, {"burst_s": 3}, 1000, 1000, id="a burst does not teach what is usual"),
        pytest.param([0, 15] * 200, {"chart": 6000}, 1000, 1000, id="nor does what may become one"),
    ],
)
def test_the_dispersion_of_arrivals(arrivals: list[int], more: dict[str, int], low: int, high: int) -> None:
    assert low <= dispersion(arrivals, **more) <= high


def test_an_early_tick_ends_no_second() -> None:
    memory = initial_memory(SPEC, 0)
    recent = replace(memory.recent, now_ms=1200)
    assert learning.learn_dispersion(memory.learned, recent, replace(SEEN, now_ms=1900)).arrivals_expected.tolist() == [
        32_000
    ]


def test_rises_are_counted() -> None:
    learned = learning.learn_rise(initial_memory(SPEC, 0).learned, np.array([True]), np.array([4]))
    assert learned.rise[0].tolist() == [0] * 4 + [1] + [0] * 43


@pytest.mark.parametrize(
    ("arrivals", "length", "expected"),
    [
        pytest.param(0, 0, 1000, id="nobody came"),
        pytest.param(40, 2000, 1708, id="600 of them, less three deviations of 4.9 %"),
        pytest.param(40, 1000, 1000, id="as long as what was answered"),
        pytest.param(40, 500, 1000, id="shorter ones wait for what engines say"),
        # 15 requests: three deviations are 93 %.
        pytest.param(1, 2000, 1000, id="too few to be sure"),
    ],
)
def test_prompts_count_as_long_as_those_that_arrive(arrivals: int, length: int, expected: int) -> None:
    memory = initial_memory(SPEC, 60_000)
    ring = memory.recent.ring
    # The quarter of a minute that is still filling: seconds 46 to 60 of the ring.
    ring.arrivals[46:61, 0] = arrivals
    ring.arrival_prompt_tokens[46:61, 0] = arrivals * length
    answered = replace(usual(memory), prompt_tokens=np.array([1000]))
    lengthened = learning.lengthen(answered, memory.recent)
    assert int(lengthened.prompt_tokens[0]) == expected
