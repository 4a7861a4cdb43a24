"""The number that means "not known", the shape of every column, and exact arithmetic that numpy lacks."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

I64: TypeAlias = NDArray[np.int64]
Bool: TypeAlias = NDArray[np.bool_]

# Not knowing is a value: a column says so with this number, never with zero. It is the least int64, so that arithmetic
# which forgets to ask first is wrong by 10^18 and not by a little.
UNKNOWN = -(2**63)

MILLI = 1000
SECOND_MS = 1000


def known(column: I64) -> Bool:
    """Say for each row whether it holds a reading."""
    answer: Bool = column != UNKNOWN
    return answer


def or_else(column: I64, default: I64 | int) -> I64:
    """Return the column with `default` where nothing is known: for a caller that has said what absence means."""
    return np.where(known(column), column, default)


def ceil_div(dividend: I64, divisor: I64 | int) -> I64:
    """Divide and round up; the divisor must be positive."""
    return -(-dividend // divisor)


def clamp(column: I64, least: I64 | int, most: I64 | int) -> I64:
    """Return `np.clip`, which spends four times as long on the types of its bounds as on a fleet of one service."""
    return np.minimum(np.maximum(column, least), most)


# From a power of two between the root and its double, each round of Newton's iteration more than doubles the right
# digits: off by less than 1, 1/4, 1/40, 1/3000, 10^-7, 10^-14 and 10^-29 of the root. A root of 31 bits needs 10^-19
# to be told from the next one.
_ISQRT_ROUNDS: Final = 6
_POWERS_OF_FOUR: Final = 4 ** np.arange(31)


def isqrt(column: I64) -> I64:
    """Return the floor of the square root of each row, exactly; rows must lie in [0, 2^62]."""
    positive = np.maximum(column, 1)
    root: I64 = 1 << np.searchsorted(_POWERS_OF_FOUR, positive)
    for _ in range(_ISQRT_ROUNDS):
        root = np.minimum(root, (root + positive // root) // 2)
    return np.minimum(root, column)


def last_that_applies(column: I64, *cases: tuple[Bool, I64 | int]) -> I64:
    """Return for each row the value of the last case that applies to it, and the column's own where none does."""
    for applies, value in cases:
        # An enum's member as it is costs numpy three times as long as its number.
        column = np.where(applies, value if isinstance(value, np.ndarray) else int(value), column)
    return column


def segment_sum(column: I64, segment: I64, segments: int) -> I64:
    """Sum the rows of each segment; exact, whatever their order."""
    total = np.zeros(segments, np.int64)
    np.add.at(total, segment, column)
    return total
