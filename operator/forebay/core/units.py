"""The number that means "not known", and the shape of every column."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

I64: TypeAlias = NDArray[np.int64]
Bool: TypeAlias = NDArray[np.bool_]

# Not knowing is a value: a column says so with this number, never with zero. It is the least int64, so that arithmetic
# which forgets to ask first is wrong by 10^18 and not by a little.
UNKNOWN = -(2**63)


def known(column: I64) -> Bool:
    """Say for each row whether it holds a reading."""
    return column != UNKNOWN
