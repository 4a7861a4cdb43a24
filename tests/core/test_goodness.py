"""A request is good when its TTFT, its mean ITL and its worst second hold: worked by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.goodness import Targets, judge, ttft_limit_ms, worst_second_us

CHAT = Targets(ttft_ms=500, ttft_per_1k_prompt_tokens_ms=150, itl_mean_ms=50, itl_worst_second_ms=200)


def even(first: int, gap: int, tokens: int) -> list[int]:
    return [first + gap * i for i in range(tokens)]


WORST_SECONDS = {
    "no token has no gap": ([], 0),
    "one token has no gap": ([700], 0),
    "an even answer has its own gap everywhere": (even(100, 25, 100), 25_000),
    "a short answer is one second: (100 + 20) / 2": ([0, 100, 120], 60_000),
    "one stall of 3 s counts with its full length": ([*even(0, 25, 50), *even(4225, 25, 50)], 3_000_000),
    # From 0 the first token at or after 1,000 ms is the one at 1,600 (nine gaps of 100 and one of 700); so from 600,
    # three gaps of 100 and that of 700 are the worst whole second.
    "a gap that crosses the end of the second belongs to it": ([*even(0, 100, 10), 1600], 250_000),
    # 0 to 1,000: 500 each; 500 to 1,600: 550; 1,000 to 1,700 is no whole second any more.
    "the second slides from token to token": ([0, 500, 1000, 1600, 1700], 550_000),
    # 0 to 1,000: 100 each ... 500 to 1,500: six gaps of 100 and one of 400, 1,000 / 7.
    "the worst second is found in the middle": ([*even(0, 100, 12), 1500], 142_857),
    # The last gap alone would be 300, but the last whole second starts at 300: 35 gaps of 20 and it, 1,000 / 36.
    "what is left at the end is not a second of its own": ([*even(0, 20, 51), 1300], 27_777),
}


@pytest.mark.parametrize(("token_ms", "expected_us"), WORST_SECONDS.values(), ids=WORST_SECONDS)
def test_worst_second(token_ms: list[int], expected_us: int) -> None:
    assert worst_second_us(token_ms) == expected_us


JUDGEMENTS = {
    # 500 + 150 * 2,000 / 1,000 = 800 ms
    "exactly at every limit is good": (2000, even(800, 50, 41), (True, True, True)),
    "one millisecond late is late": (2000, even(801, 50, 41), (False, True, True)),
    "a short prompt earns no more time": (6, even(501, 20, 5), (False, True, True)),
    "a mean ITL one millisecond over the promise": (100, [*even(100, 50, 40), 100 + 50 * 39 + 51], (True, False, True)),
    "a stall is bad although the mean holds": (100, [*even(0, 10, 100), *even(2000, 10, 100)], (True, True, False)),
    "an answer of one token has only a TTFT": (100, [300], (True, True, True)),
    "no token at all": (100, [], (False, False, False)),
}


@pytest.mark.parametrize(("prompt", "token_ms", "expected"), JUDGEMENTS.values(), ids=JUDGEMENTS)
def test_judge(prompt: int, token_ms: list[int], expected: tuple[bool, bool, bool]) -> None:
    verdict = judge(CHAT, prompt, token_ms)
    assert (verdict.ttft, verdict.itl_mean, verdict.itl_worst_second) == expected
    assert verdict.good == all(expected)


def test_a_long_prompt_earns_more_time() -> None:
    assert [ttft_limit_ms(CHAT, n) for n in (0, 999, 1000, 8000)] == [500, 649, 650, 1700]


@given(st.lists(st.integers(0, 400), min_size=1, max_size=80))
def test_the_worst_second_lies_between_the_mean_of_a_short_answer_and_its_largest_gap(gaps: list[int]) -> None:
    token_ms = [sum(gaps[:i]) for i in range(len(gaps) + 1)]
    worst = worst_second_us(token_ms)
    assert worst <= max(gaps) * 1000
    if token_ms[-1] <= 1000:
        assert worst == token_ms[-1] * 1000 // len(gaps)
