"""The straight line in what a step computes, in picoseconds."""

import dataclasses
from itertools import pairwise

import pytest

from forebay.engine_model.step_time import PS_PER_MS, StepTimes, prompt_pairs, step_time_ps

# Llama-3.1-8B on one H100: 6.26 + 0.0105 B + 0.0442 B ctx/1000 ms; 0.0166 n + 0.73 n^2/10^6 ms.
H100 = StepTimes(6_260_000_000, 10_500_000, 44_200, 16_600_000, 730_000)

CASES = {
    "an empty step costs its constant": ((0, 0, 0, 0), 6_260_000_000),
    "32 sequences of 1,000 tokens decode": ((32, 32_000, 0, 0), 6_260_000_000 + 336_000_000 + 1_414_400_000),
    "a prompt of 2,048 tokens": ((0, 0, 2_048, 2_048**2), 6_260_000_000 + 33_996_800_000 + 3_061_841_920),
}


@pytest.mark.parametrize(("work", "expected"), CASES.values(), ids=CASES)
def test_step_time(work: tuple[int, int, int, int], expected: int) -> None:
    assert step_time_ps(*dataclasses.astuple(H100), *work) == expected


def test_a_prompt_in_chunks_pays_the_same_quadratic_term_as_in_one_piece() -> None:
    ends = [0, 512, 1_024, 1_536, 1_900]
    assert sum(prompt_pairs(end, start) for start, end in pairwise(ends)) == prompt_pairs(1_900, 0)


def test_a_decode_of_the_published_vllm_fit_is_reproduced_within_ten_percent() -> None:
    # The WVA tutorial's fit for 384 tokens of context: 6.97 + 0.027 B ms; ours is a floor without the engine's 0.7 ms.
    ours_ps = step_time_ps(*dataclasses.astuple(H100), 64, 64 * 384, 0, 0) + 700_000_000
    assert abs(ours_ps / PS_PER_MS - (6.97 + 0.027 * 64)) < 0.1 * (6.97 + 0.027 * 64)


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(StepTimes)])
def test_a_negative_constant_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        dataclasses.replace(H100, **{field: -1})


def test_a_step_always_takes_time() -> None:
    with pytest.raises(ValueError, match="c0 not zero"):
        dataclasses.replace(H100, c0_ps=0)
