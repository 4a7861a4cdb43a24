"""Learned distributions: one histogram a service, in whole counts; old news fades by halving.

A histogram is a row of counts. When its sum passes the limit, every count is halved, so that the last half of what it
has seen always weighs most, and no clock is needed to forget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forebay.core.units import ceil_div, clamp

if TYPE_CHECKING:
    from forebay.core.units import I64, Bool


def add(counts: I64, where: Bool, bins: I64, limit: int) -> I64:
    """Count one observation for each service that made one.

    Parameters
    ----------
    counts
        [S, bins].
    where
        Services that observed something.
    bins
        [S] the bin of each observation; beyond the ends it counts in the last bin on that side.
    limit
        Sum above which a row is halved.
    """
    rows = np.flatnonzero(where)
    if not len(rows):
        return counts
    added = counts.copy()
    added[rows, clamp(bins[rows], 0, counts.shape[1] - 1)] += 1
    full = rows[added[rows].sum(axis=1) > limit]
    added[full] //= 2
    return added


def quantile(counts: I64, permille: I64 | int) -> I64:
    """Return the first bin below or at which `permille` thousandths of each row lie; the first bin for an empty row."""
    below = np.cumsum(counts, axis=1)
    wanted = ceil_div(below[:, -1] * permille, 1000)
    first: I64 = np.argmax(below >= wanted[:, None], axis=1)
    return first
