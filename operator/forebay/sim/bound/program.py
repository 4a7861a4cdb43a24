"""The linear program: the cheapest path of capacity that does all work in its window, starts paid, some dropped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linprog  # type: ignore[import-untyped]  # scipy ships no types
from scipy.sparse import csr_array  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from forebay.core.units import I64
    from forebay.sim.bound.bins import Bins
    from forebay.sim.bound.demand import F64


@dataclass(frozen=True, slots=True)
class Path:
    """An optimum, and the size of the program that it solves."""

    replica_seconds: float  # ready and starting
    ready: F64  # [T] replicas, a bin's mean
    rows: int
    columns: int


@dataclass(slots=True)
class _Matrix:
    """Entries of a sparse matrix, collected."""

    rows: list[F64] = field(default_factory=list)
    columns: list[F64] = field(default_factory=list)
    values: list[F64] = field(default_factory=list)

    def add(self, rows: ArrayLike, columns: ArrayLike, values: ArrayLike) -> None:
        for collected, part in zip(
            (self.rows, self.columns, self.values), np.broadcast_arrays(rows, columns, values), strict=True
        ):
            collected.append(part.ravel())

    def build(self, rows: int, columns: int) -> csr_array:
        """Put the entries together; zeros that only filled an array's shape go."""
        where = (np.concatenate(self.rows), np.concatenate(self.columns))
        matrix = csr_array((np.concatenate(self.values), where), shape=(rows, columns))
        matrix.eliminate_zeros()
        return matrix


def solve(bins: Bins, boot_us: int, droppable: int) -> Path:
    """Find the cheapest path.

    Unknown are, for a class k and a bin t, the work done or dropped until t's end, X[k, t], between what is due and
    what is released; the replicas ready in a bin, R[t]; those that become ready at its beginning, U[t], each paid with
    its boot; and how many of a group are dropped. Replicas that are ready at time 0 have no boot to pay: a run may
    begin with them.

    Parameters
    ----------
    bins
        Demand on a grid.
    boot_us
        From a replica's first second on its GPU until it serves.
    droppable
        Requests that need not be served.

    Raises
    ------
    RuntimeError
        When the solver gives up.
    """
    classes, count = bins.released.shape
    work = np.arange(classes * count).reshape(classes, count)
    ready = work.size + np.arange(count)
    started = work.size + count + np.arange(count - 1)
    drop = work.size + 2 * count - 1 + np.arange(len(bins.group_drops) if droppable else 0)
    price = np.zeros(work.size + 2 * count - 1 + drop.size)
    price[ready], price[started] = bins.length_s, boot_us / 1e6
    low, high = np.zeros(price.size), np.full(price.size, np.inf)
    low[: work.size], high[: work.size] = bins.due.ravel(), bins.released.ravel()
    high[drop] = bins.group_drops[: drop.size]
    limits = np.zeros(work.size + 2 * count)
    limits[-1] = droppable
    answer = linprog(
        price,
        A_ub=_rows(bins, work, ready, started, drop).build(limits.size, price.size),
        b_ub=limits,
        bounds=np.stack([low, high], axis=1),
        method="highs-ds",
    )
    if answer.status != 0:
        raise RuntimeError(f"the linear program of {limits.size} x {price.size} was not solved: {answer.message}")
    return Path(float(answer.fun), answer.x[ready], limits.size, price.size)


def _rows(bins: Bins, work: I64, ready: I64, started: I64, drop: I64) -> _Matrix:
    """Write the inequalities, each `<=` its limit. A row stands at the place of the column that it is about."""
    matrix = _Matrix()
    # Work is not undone: X[k, t-1] + dropped in t <= X[k, t].
    matrix.add(work, work, -1)
    matrix.add(work[:, 1:], work[:, :-1], 1)
    # It takes capacity: sum over k of X[k, t] - X[k, t-1], less what is dropped in t, <= length * R[t].
    matrix.add(ready, work, 1)
    matrix.add(ready[1:], work[:, :-1], -1)
    matrix.add(ready, ready, -bins.length_s)
    # R[t] - R[t-1] <= U[t].
    matrix.add(started, ready[1:], 1)
    matrix.add(started, ready[:-1], -1)
    matrix.add(started, started, -1)
    if drop.size:
        matrix.add(work[bins.group_class, bins.group_bin], drop[:, None], bins.group_work)
        matrix.add(ready[bins.group_bin], drop[:, None], -bins.group_work)
        matrix.add(work.size + 2 * ready.size - 1, drop, 1)  # all drops <= droppable
    return matrix
