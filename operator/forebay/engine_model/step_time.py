"""How long one engine step takes: a straight line in what the step computes, in whole picoseconds.

`t = c0 + c1*B + c2*sum(context) + p1*n + p2*(n_total^2 - n_cached^2)`. The first three terms are the decode of B
sequences, bound by memory bandwidth; the last two the prefill of n uncached prompt tokens, bound by arithmetic. A
prompt computed in chunks pays the same quadratic term as in one piece, because the differences of squares add up.
"""

from __future__ import annotations

from dataclasses import dataclass

PS_PER_MS = 1_000_000_000
PS_PER_S = 1_000_000_000_000
FS_PER_PS = 1000


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The five constants of one (model, GPU, tensor parallel degree, dtype)."""

    c0_ps: int  # every step: weights are read once, kernels are launched
    c1_ps: int  # a decoding sequence
    c2_ps: int  # a token of context of a decoding sequence
    p1_ps: int  # an uncached prompt token
    p2_fs: int  # a pair of prompt tokens; femtoseconds, as it is 0.7 ps on an H100

    def __post_init__(self) -> None:
        if min(self.c0_ps, self.c1_ps, self.c2_ps, self.p1_ps, self.p2_fs) < 0 or self.c0_ps == 0:
            raise ValueError(f"step-time constants must not be negative, and c0 not zero: {self}")


def prompt_pairs(total_tokens: int, cached_tokens: int) -> int:
    """Return n_total^2 - n_cached^2: the attention work of a chunk that ends at `total_tokens`."""
    return total_tokens * total_tokens - cached_tokens * cached_tokens


def step_time_ps(times: StepTimes, decoding: int, context_tokens: int, prompt_tokens: int, pairs: int) -> int:
    """Price one step.

    Parameters
    ----------
    times
        The constants.
    decoding
        Sequences that decode, B.
    context_tokens
        Tokens of context of those, summed, each one's new token included.
    prompt_tokens
        Prompt tokens computed in this step, n.
    pairs
        Sum of `prompt_pairs` over this step's chunks.

    Returns
    -------
    int
        Picoseconds.
    """
    decode_ps = times.c0_ps + times.c1_ps * decoding + times.c2_ps * context_tokens
    return decode_ps + times.p1_ps * prompt_tokens + times.p2_fs * pairs // FS_PER_PS
