"""When a request was good: the one definition behind SLOMet, the demo's scorecard, the benchmark and the dashboard.

Times are whole milliseconds since the request was sent. A request that was refused, aborted or failed has no times and
is never good; that is the caller's to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SECOND_MS = 1000


@dataclass(frozen=True, slots=True)
class Targets:
    """What an SLOPolicy promises for every single request."""

    ttft_ms: int
    ttft_per_1k_prompt_tokens_ms: int
    itl_mean_ms: int
    itl_worst_second_ms: int


@dataclass(frozen=True, slots=True)
class Goodness:
    """Which promises held for one request."""

    ttft: bool
    itl_mean: bool
    itl_worst_second: bool

    @property
    def good(self) -> bool:
        """All of them."""
        return self.ttft and self.itl_mean and self.itl_worst_second


def ttft_limit_ms(targets: Targets, prompt_tokens: int) -> int:
    """How long the first token may take: a long prompt earns more time.

    Parameters
    ----------
    targets
        The policy's promises.
    prompt_tokens
        Length of the prompt, cached part included.
    """
    return targets.ttft_ms + targets.ttft_per_1k_prompt_tokens_ms * prompt_tokens // 1000


def worst_second_us(token_ms: Sequence[int]) -> int:
    """Largest mean gap between tokens over any second, in microseconds.

    A second starts at a token and ends at the first token that is at least 1,000 ms later, so that it holds whole gaps
    only and one long stall counts with its full length. An answer that takes less than a second is one such second.

    Parameters
    ----------
    token_ms
        When each token arrived, ascending.

    Returns
    -------
    int
        Zero when there are fewer than two tokens: there is no gap.
    """
    worst = 0
    end = 0
    last = len(token_ms) - 1
    for start in range(last):
        end = max(end, start + 1)
        while end < last and token_ms[end] - token_ms[start] < SECOND_MS:
            end += 1
        span = token_ms[end] - token_ms[start]
        # What is left at the end of a long answer is not a second: its gaps were judged in the seconds before.
        if span >= SECOND_MS or start == 0:
            worst = max(worst, span * 1000 // (end - start))
    return worst


def judge(targets: Targets, prompt_tokens: int, token_ms: Sequence[int]) -> Goodness:
    """Hold one answered request against its policy.

    Parameters
    ----------
    targets
        The policy's promises.
    prompt_tokens
        Length of the prompt.
    token_ms
        When each output token arrived, in milliseconds since the request was sent, ascending.

    Returns
    -------
    Goodness
        Without any token nothing held. With one token there is no gap to be late in.
    """
    if not token_ms:
        return Goodness(ttft=False, itl_mean=False, itl_worst_second=False)
    gaps = len(token_ms) - 1
    return Goodness(
        ttft=token_ms[0] <= ttft_limit_ms(targets, prompt_tokens),
        itl_mean=token_ms[-1] - token_ms[0] <= targets.itl_mean_ms * gaps,
        itl_worst_second=worst_second_us(token_ms) <= targets.itl_worst_second_ms * 1000,
    )
