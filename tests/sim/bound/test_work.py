from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from forebay.sim.bound import work_us
from forebay.sim.bound.prefix import reuse
from tests.sim.bound.build import CACHE, EASY, SEATS, TIMES, trace_of

if TYPE_CHECKING:
    from forebay.core.goodness import Targets
    from forebay.engine_model.step_time import StepTimes

ONE = [(0, 100, 11)]
TIGHT = dataclasses.replace(EASY, itl_mean_ms=12)
PER_PAIR = dataclasses.replace(TIMES, p2_fs=10**9)  # 1 us
PER_CONTEXT = dataclasses.replace(TIMES, c2_ps=10**7)  # 10 us

# Prompt 100, answer 11: 100 ms of prompt, 10 decodes of 1 ms, and its part of the steps that hold its 11 tokens.
WORK: dict[str, tuple[StepTimes, int, int, Targets, int]] = {
    "ten seats: a tenth of each of 11 steps": (TIMES, SEATS, CACHE, EASY, 100_000 + 10_000 + 11_000),
    "one seat: 11 steps": (TIMES, 1, CACHE, EASY, 100_000 + 10_000 + 110_000),
    # (100 + 101 + ... + 110) / 200 = 5.775 steps, 57.75 ms.
    "a cache for two: its tokens as a share of the cache": (TIMES, SEATS, 200, EASY, 100_000 + 10_000 + 57_750),
    # At a mean of 12.1 ms (121 ms for ten, the last one counted in) a step has 2.1 ms for decodes of 1 ms.
    "a tight ITL: 2.1 decodes fit a step": (TIMES, SEATS, CACHE, TIGHT, 100_000 + 10_000 + 47_619),
    "a price for pairs: 100^2 of them": (PER_PAIR, SEATS, CACHE, EASY, 121_000 + 10_000),
    # 101 + ... + 110 = 1055 tokens.
    "a price for context": (PER_CONTEXT, SEATS, CACHE, EASY, 121_000 + 10_550),
}


@pytest.mark.parametrize("case", WORK)
def test_a_request_asks_for_its_own_work_and_its_part_of_the_steps(case: str) -> None:
    times, seats, cache, targets, expected = WORK[case]
    assert work_us(trace_of(ONE), times, seats, cache, targets).tolist() == [expected]


def test_an_answer_of_one_token_is_all_prefill() -> None:
    assert work_us(trace_of([(0, 100, 1)]), TIMES, SEATS, CACHE, EASY).tolist() == [101_000]


def test_what_an_earlier_prompt_begins_with_is_computed_once() -> None:
    same_five_blocks = trace_of([(0, 100, 11), (1, 100, 11), (2, 90, 1)], [range(6), [0, 1, 2, 3, 4, 9], [7]])
    assert work_us(same_five_blocks, TIMES, SEATS, CACHE, EASY).tolist() == [121_000, 121_000 - 80_000, 91_000]


def test_pairs_with_a_cached_prefix_are_those_of_the_rest() -> None:
    shared = trace_of([(0, 16, 1), (1, 32, 1)], [[5], [5, 6]])
    assert work_us(shared, PER_PAIR, SEATS, CACHE, EASY).tolist() == [16_000 + 256 + 1000, 16_000 + 1024 - 256 + 1000]


def test_the_last_token_of_a_prompt_is_computed_though_all_of_it_is_cached() -> None:
    twins = trace_of([(0, 32, 1), (0, 32, 1)], [[5, 6], [5, 6]])
    assert work_us(twins, TIMES, SEATS, CACHE, EASY).tolist() == [33_000, 2_000]


REUSE = {
    "nobody begins alike": ([[1], [2], [3]], [0, 0, 0], [0, 0, 0]),
    "the second finds the first one's block": ([[1, 2], [1, 3], []], [0, 16, 0], [16, 16, 0]),
    "an id is worth nothing after another beginning": ([[1, 2], [3, 2], [2]], [0, 0, 0], [0, 0, 0]),
    "the third finds one block of each": ([[1], [1, 2], [1, 2, 3]], [0, 16, 32], [16, 32, 32]),
}


@pytest.mark.parametrize("case", REUSE)
def test_prompts_share_what_they_begin_with(case: str) -> None:
    prefixes, earlier, anyone = REUSE[case]
    found = reuse(trace_of([(0, 100, 1)] * 3, prefixes))
    assert (found.earlier.tolist(), found.anyone.tolist()) == (earlier, anyone)


MISSED = {
    "a prompt that takes longer than the first token may": ((0, 492, 1), EASY, CACHE),
    "an answer whose steps are too long even alone": ((0, 1, 101), dataclasses.replace(EASY, itl_mean_ms=10), CACHE),
    "a request that no cache holds": ((0, 100, 11), EASY, 109),
}


@pytest.mark.parametrize("case", MISSED)
def test_what_nobody_can_serve_in_time_asks_for_nothing(case: str) -> None:
    request, targets, cache = MISSED[case]
    assert work_us(trace_of([request]), TIMES, SEATS, cache, targets).tolist() == [0]


def test_what_somebody_can_just_serve_in_time_counts() -> None:
    # 491 ms of prompt and a step of 10 ms: 501 ms, which still reads as 500 where milliseconds are cut.
    assert work_us(trace_of([(0, 491, 1)]), TIMES, SEATS, CACHE, EASY).tolist() == [492_000]
    assert work_us(trace_of([(0, 100, 11)]), TIMES, SEATS, 110, EASY).tolist() != [0]


@pytest.mark.parametrize(("seats", "cache"), [(0, 1), (1, 0)])
def test_a_replica_without_seat_or_cache_is_refused(seats: int, cache: int) -> None:
    with pytest.raises(ValueError, match="a replica needs batch_max >= 1 and kv_tokens >= 1"):
        work_us(trace_of(ONE), TIMES, seats, cache, EASY)
