"""The number that means "not known", the shape of every column, and exact arithmetic that numpy lacks."""

from __future__ import annotations

from typing import TypeAlias

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


def isqrt(column: I64) -> I64:
    """Return the floor of the square root of each row, exactly; rows must lie in [0, 2^62].

    Newton's iteration from above, from a power of two that no root exceeds. It halves at most once a bit and then
    doubles its right digits, so five rounds more than bits reach every root; where one is reached it stays.
    """
    bits = (int(column.max(initial=0)).bit_length() + 1) // 2
    root = np.full_like(column, 1 << bits)
    for _ in range(bits + 5):
        root = np.minimum(root, (root + column // np.maximum(root, 1)) // 2)
    return root


def segment_sum(column: I64, segment: I64, segments: int) -> I64:
    """Sum the rows of each segment; exact, whatever their order."""
    total = np.zeros(segments, np.int64)
    np.add.at(total, segment, column)
    return total
