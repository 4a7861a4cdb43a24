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


def step_time_ps(  # noqa: PLR0917 - a compiled rule takes plain numbers by position
    c0_ps: int, c1_ps: int, c2_ps: int, p1_ps: int, p2_fs: int, decoding: int, context: int, prompt: int, pairs: int
) -> int:
    """Price one step; a plain rule on integers.

    Parameters
    ----------
    c0_ps, c1_ps, c2_ps, p1_ps, p2_fs
        The constants, in the order of `StepTimes`.
    decoding
        Sequences that decode, B.
    context
        Tokens of context of those, summed, each one's new token included.
    prompt
        Prompt tokens computed in this step, n.
    pairs
        Sum of `prompt_pairs` over this step's chunks.

    Returns
    -------
    int
        Picoseconds.
    """
    return c0_ps + c1_ps * decoding + c2_ps * context + p1_ps * prompt + p2_fs * pairs // FS_PER_PS
