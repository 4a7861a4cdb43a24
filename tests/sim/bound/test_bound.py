from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from forebay.sim.bound import Bound, BoundBeatenError, check_not_beaten, lower_bound, plan
from forebay.sim.bound.bins import BINS_MAX
from tests.sim.bound.build import CACHE, EASY, SEATS, TIMES, trace_of

MS = 1000
SECOND = 1_000_000


def bound_of(requests: list[tuple[int, int, int]], boot_us: int = 0, permille: int = 0, bin_us: int = MS) -> Bound:
    return lower_bound(
        trace_of(requests),
        TIMES,
        SEATS,
        CACHE,
        EASY,
        boot_us=boot_us,
        droppable_permille=permille,
        bin_us=bin_us,
    )


def test_one_request_costs_its_work_when_starts_are_free() -> None:
    bound = bound_of([(0, 100, 11)])
    assert (bound.fluid_gpu_seconds, bound.edf_gpu_seconds, bound.lp_gpu_seconds) == pytest.approx((0.121,) * 3)


def test_two_that_overlap_share_a_replica_as_long_as_it_is_fast_enough() -> None:
    # 500 prompt tokens within the 600 ms from the first arrival to the second deadline, 100 ms apart.
    together = bound_of([(0, 249, 1), (100, 249, 1)], boot_us=SECOND)
    assert together.ready.max() < 1
    # Each alone fits 501 ms, both together do not fit 601.
    crowded = bound_of([(0, 400, 1), (100, 400, 1)], boot_us=SECOND)
    assert crowded.ready.max() == pytest.approx(802 / 601)
    assert plan(crowded, 0).tolist() == [2]


# Prompts of 249 tokens take 250 ms each and have 501 ms.
BURSTS = {
    "two fit one replica": (2, 1),
    "three need a second one": (3, 2),
    "six need three": (6, 3),
    "seven need a fourth": (7, 4),
}


@pytest.mark.parametrize("case", BURSTS)
def test_a_burst_is_met_by_exactly_as_many_replicas_as_its_first_tokens_need(case: str) -> None:
    requests, replicas = BURSTS[case]
    bound = bound_of([(2001, 249, 1)] * requests, boot_us=SECOND, bin_us=3 * MS)
    assert plan(bound, 0).max() == replicas
    assert bound.edf_gpu_seconds == pytest.approx(0.25 * requests * (1 + 1 / 0.501))


def test_one_percent_droppable_drops_the_worst_of_a_hundred() -> None:
    requests = [(100 * number, 20, 1) for number in range(100)]
    requests[40] = (4000, 300, 11)
    kept, dropped = (bound_of(requests, permille=permille, bin_us=100 * MS) for permille in (0, 10))
    assert kept.lp_gpu_seconds == pytest.approx(99 * 0.021 + 0.321)
    assert dropped.lp_gpu_seconds == pytest.approx(99 * 0.021)
    assert dropped.edf_gpu_seconds == kept.edf_gpu_seconds
    assert (kept.droppable, dropped.droppable) == (0, 1)


def test_fewer_than_a_hundred_requests_leave_nothing_to_drop() -> None:
    assert bound_of([(0, 100, 1)] * 99, permille=10, bin_us=100 * MS).droppable == 0


def test_of_two_bursts_the_one_that_alone_needs_a_start_is_dropped() -> None:
    # Equal work, but the second is far from everything: to drop it saves a start of 1 s, too.
    steady = [(10 * number, 9, 1) for number in range(99)]
    bound = bound_of([*steady, (5000, 250, 1)], boot_us=SECOND, permille=10, bin_us=10 * MS)
    assert bound.lp_gpu_seconds == pytest.approx(99 * 0.010, rel=0.02)


def test_an_isolated_burst_costs_a_start_more() -> None:
    # 500 + 1 ms of prompts with 501 ms of time: one replica, all of the time.
    burst = [(2000, 240, 1), (2000, 259, 1)]
    assert bound_of(burst).lp_gpu_seconds == pytest.approx(0.501)
    assert bound_of(burst, boot_us=SECOND).lp_gpu_seconds == pytest.approx(1.501)


def test_a_start_never_costs_more_than_a_replica_that_stood_there_from_the_beginning() -> None:
    burst = [(2000, 240, 1), (2000, 259, 1)]
    assert bound_of(burst, boot_us=10 * SECOND).lp_gpu_seconds == pytest.approx(2.501)


def test_a_replica_is_kept_between_two_bursts_when_that_is_cheaper_than_a_start() -> None:
    bursts = [(at, prompt, 1) for at in (2000, 3000) for prompt in (240, 259)]
    assert bound_of(bursts, boot_us=SECOND).lp_gpu_seconds == pytest.approx(1 + 1.501)  # 0.499 s between them
    assert bound_of(bursts, boot_us=SECOND // 4).lp_gpu_seconds == pytest.approx(2 * (0.25 + 0.501))


def test_a_replica_on_four_gpus_costs_four_times_as_much() -> None:
    trace = trace_of([(0, 100, 11)])
    one, four = (
        lower_bound(trace, TIMES, SEATS, CACHE, EASY, boot_us=0, gpus_per_replica=gpus).lp_gpu_seconds
        for gpus in (1, 4)
    )
    assert four == pytest.approx(4 * one)


def test_who_is_late_by_necessity_costs_nothing_and_uses_up_a_drop() -> None:
    requests = [(100 * number, 20, 1) for number in range(100)]
    requests[40] = (4000, 5000, 11)
    bound = bound_of(requests, permille=10, bin_us=100 * MS)
    assert (bound.necessarily_missed, bound.droppable) == (1, 0)
    assert bound.lp_gpu_seconds == pytest.approx(99 * 0.021)


def test_when_nobody_can_be_served_the_bound_is_zero_and_the_plan_empty() -> None:
    bound = bound_of([(0, 5000, 11)] * 3)
    assert (bound.necessarily_missed, bound.lp_gpu_seconds, bound.fluid_gpu_seconds) == (3, 0, 0)
    assert plan(bound, SECOND).tolist() == [0]


def test_prompts_of_ten_million_tokens_and_endless_answers_end_in_a_number() -> None:
    patient = dataclasses.replace(EASY, ttft_per_1k_prompt_tokens_ms=2000)
    trace = trace_of([(0, 10_000_000, 1), (0, 100, 2**31), (50, 100, 11)])
    bound = lower_bound(trace, TIMES, SEATS, 2**40, patient, boot_us=SECOND)
    assert bound.necessarily_missed == 0
    assert np.isfinite(bound.lp_gpu_seconds)
    assert bound.lp_gpu_seconds >= bound.fluid_gpu_seconds > 2**31 * 0.002
    assert len(bound.ready) <= BINS_MAX


def test_equal_input_gives_equal_bytes() -> None:
    requests = [(30 * number, 50, 9) for number in range(40)]
    first, second = (bound_of(requests, boot_us=SECOND, bin_us=20 * MS) for _ in range(2))
    assert first.ready.tobytes() == second.ready.tobytes()
    assert first.lp_gpu_seconds == second.lp_gpu_seconds


def ready(levels: list[float], bin_us: int) -> Bound:
    return dataclasses.replace(bound_of([(0, 1, 1)]), ready=np.array(levels), bin_us=bin_us)


PLANS: dict[str, tuple[list[float], int, int, float, list[int]]] = {
    "rounded up": ([0.1, 1.0, 1.1], SECOND, 0, 0.0, [1, 1, 2]),
    "what the solver leaves beyond a whole number is not a replica": ([2.0000001], SECOND, 0, 0.0, [2]),
    "asked for one start ahead": ([0, 0, 0, 3, 0], SECOND, 2 * SECOND, 0.0, [0, 3, 3, 3, 0]),
    "a start that is no whole second is begun in the second before": ([0, 0, 3], SECOND, SECOND // 2, 0.0, [0, 3, 3]),
    "kept through a gap shorter than a start": ([2, 0, 2], SECOND, SECOND, 0.0, [2, 2, 2]),
    "slack before rounding": ([1.0, 2.0], SECOND, 0, 0.25, [2, 3]),
    "negative slack": ([1.0, 2.0], SECOND, 0, -0.5, [1, 1]),
    "the most of the bins in a second": ([1, 4, 0, 0, 2, 0], SECOND // 4, 0, 0.0, [4, 2]),
    "a bin of three seconds": ([1, 2], 3 * SECOND, 0, 0.0, [1, 1, 1, 2, 2, 2]),
}


@pytest.mark.parametrize("case", PLANS)
def test_a_plan_is_whole_replicas_each_second_begun_in_time(case: str) -> None:
    levels, bin_us, boot_us, slack, expected = PLANS[case]
    planned = plan(ready(levels, bin_us), boot_us, slack)
    assert planned.dtype == np.int64
    assert planned.tolist() == expected


def test_a_run_below_the_bound_is_refused_with_both_numbers() -> None:
    bound = bound_of([(0, 100, 11)] * 100, permille=10)
    with pytest.raises(BoundBeatenError, match=r"1\.0 GPU-seconds at 990 permille.*less than 12\.0 for 990"):
        check_not_beaten(bound, 1.0, 990)


def test_a_run_that_pays_enough_or_broke_the_promise_is_no_contradiction() -> None:
    bound = bound_of([(0, 100, 11)] * 100, permille=10)
    check_not_beaten(bound, bound.lp_gpu_seconds, 1000)
    check_not_beaten(bound, 0.0, 989)


REFUSED = {
    "a start that ends before it begins": ({"boot_us": -1}, "boot_us >= 0"),
    "no GPU": ({"boot_us": 0, "gpus_per_replica": 0}, "gpus_per_replica >= 1"),
    "no bin": ({"boot_us": 0, "bin_us": 0}, "bin_us >= 1"),
    "more drops than requests": ({"boot_us": 0, "droppable_permille": 1001}, "must be 0 to 1000, got 1001"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_parameters_out_of_range_are_refused(case: str) -> None:
    options, reason = REFUSED[case]
    with pytest.raises(ValueError, match=reason):
        lower_bound(trace_of([(0, 1, 1)]), TIMES, SEATS, CACHE, EASY, **options)


@pytest.mark.parametrize(("boot_us", "slack"), [(-1, 0.0), (0, -1.0), (0, float("nan")), (0, float("inf"))])
def test_a_plan_out_of_range_is_refused(boot_us: int, slack: float) -> None:
    with pytest.raises(ValueError, match="a plan needs boot_us >= 0 and a finite slack > -1"):
        plan(bound_of([(0, 1, 1)]), boot_us, slack)


def test_the_summary_says_what_was_computed_and_how_large_it_was() -> None:
    assert bound_of([(0, 100, 11)]).summary().startswith("LB 0 GPU-s (EDF 0, fluid 0); of 1 requests 0 missed by")
