"""Demand on a grid of time: every rounding makes the work easier, never harder.

Requests that arrive in one bin and are alike in size become one group with the loosest windows of its members. Pieces
with windows of one length become one class: in a class, first come first served is earliest deadline first, so two
cumulative curves (what has been released, what is due) say everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from forebay.sim.bound.demand import PIECES

if TYPE_CHECKING:
    from forebay.core.units import I64, Bool
    from forebay.sim.bound.demand import F64, Demand
    from forebay.sim.trace import Trace

BINS_MAX = 2000  # an hour in bins of 2 s: bins of 1 s raise a bound by 0.1 to 0.6 % and take 2 to 100 times as long
BIN_LEAST_US = 10_000
TAIL_US = 600_000_000  # after the last arrival; what may take longer shares one last long bin
WINDOW_RATIO = 1.2  # of one class of windows to the next; with 1.1 a bound rises by 0.15 %
SIZE_RATIO = 1.25  # of one size class to the next; what a drop takes away is that of the class's largest


@dataclass(frozen=True, slots=True)
class Bins:
    """T bins, K classes of windows, G groups of requests; work in replica-seconds."""

    bin_us: int
    length_s: F64  # [T] all alike, except that the last one reaches to the last deadline
    released: F64  # [K, T] work that could have begun before a bin's end
    due: F64  # [K, T] work that must have been done by then
    group_work: F64  # [G, PIECES] the most that one of the group has of each piece
    group_class: I64  # [G, PIECES]
    group_bin: I64  # [G, PIECES] where each piece is released
    group_drops: F64  # [G] the most drops that take away what the group has


def bin_size_us(trace: Trace, demand: Demand) -> int:
    """Choose the bins: at most BINS_MAX of them."""
    span = min(_last_deadline_us(demand), trace.duration_us + TAIL_US)
    return max(BIN_LEAST_US, -(-span // BINS_MAX))


def _last_deadline_us(demand: Demand) -> int:
    return int(np.ceil(demand.deadline_us[demand.servable].max()))


def _size_class(size: F64) -> I64:
    """Return classes of geometric width; whatever is below 1 is one of its own."""
    classes: I64 = np.ceil(np.log(np.maximum(size, 1)) / np.log(SIZE_RATIO)).astype(np.int64)
    return np.where(size < 1, -1, classes)


def into_bins(trace: Trace, demand: Demand, bin_us: int) -> Bins:
    """Put all that is servable on the grid; at least one request must be.

    Parameters
    ----------
    trace, demand
        The requests, and what they ask.
    bin_us
        Length of a bin; longer bins give a lower bound, shorter ones a longer wait.
    """
    end_us = _last_deadline_us(demand)
    bins = -(-min(end_us, trace.duration_us + TAIL_US) // bin_us)
    length_s = np.full(bins, bin_us / 1e6)
    length_s[-1] = max(bin_us, end_us - (bins - 1) * bin_us) / 1e6
    rows = demand.servable
    work_us = demand.work_us[rows]
    keys = np.stack(
        [
            trace.arrival_us[rows] // bin_us,
            _size_class(work_us[:, 0]),
            _size_class(work_us[:, 1:].sum(axis=1)),
            _size_class(trace.output_tokens[rows].astype(np.float64)),
        ]
    )
    members, group, sizes = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
    group = group.ravel()
    first = np.minimum(np.floor(demand.release_us[rows] / bin_us), bins - 1)
    last = np.clip(np.ceil(demand.deadline_us[rows] / bin_us) - 1, first, bins - 1)
    count = members.shape[1]
    largest, total, group_first, group_last = np.zeros((4, count, PIECES))
    group_first[:] = np.inf
    np.maximum.at(largest, group, work_us / 1e6)
    np.add.at(total, group, work_us / 1e6)
    np.minimum.at(group_first, group, first)
    np.maximum.at(group_last, group, last)
    drops = np.divide(total, largest, out=np.zeros_like(total), where=largest > 0).max(axis=1)
    start = group_first.astype(np.int64)
    lengths = _window_lengths(group_last - group_first + 1, total > 0)
    classes, kind = np.unique(lengths, return_inverse=True)
    kind = kind.reshape(lengths.shape)
    released = np.zeros((len(classes), bins))
    np.add.at(released, (kind, start), total)
    released = released.cumsum(axis=1)
    due = np.zeros_like(released)
    for row, length in enumerate(classes):
        due[row, length - 1 :] = released[row, : max(0, bins - length + 1)]
    due[:, -1] = released[:, -1]
    return Bins(bin_us, length_s, released, due, largest, kind, start, np.minimum(drops, sizes))


def _window_lengths(length: F64, exists: Bool) -> I64:
    """Round windows up to few lengths; a piece without work takes the shortest, where it adds nothing."""
    alike = np.ceil(np.log(np.where(exists, length, 1)) / np.log(WINDOW_RATIO))
    _, kind = np.unique(alike, return_inverse=True)
    longest = np.ones(kind.max() + 1, np.int64)
    np.maximum.at(longest, kind.ravel(), np.where(exists, length, 1).astype(np.int64).ravel())
    rounded: I64 = longest[kind].reshape(length.shape)
    return rounded
