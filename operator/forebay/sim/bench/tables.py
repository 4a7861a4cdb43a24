"""Join rows with their bounds, check that nobody beat one, and sum up over seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats  # type: ignore[import-untyped]  # scipy ships no types

from forebay.sim.bench.bounds import GOOD_ENOUGH, REPLICAS_DRAWN, from_json
from forebay.sim.bench.cells import CLAIRVOYANT, Kind
from forebay.sim.bound import check_not_beaten

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forebay.sim.bench.cells import Cell, Result

Row = dict[str, Any]
SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over seeds and half of its 95 % interval by Student's t; no interval of one seed."""

    value: float
    half: float | None

    def say(self, digits: int, factor: float = 1) -> str:
        """Write it for a table."""
        spread = "" if self.half is None else f" ± {self.half * factor:.{digits}f}"
        return f"{self.value * factor:.{digits}f}{spread}"


@dataclass(frozen=True, slots=True)
class Line:
    """One judge on one workload in one world."""

    workload: str
    world: str
    judge: str
    variant: str
    rows: tuple[Row, ...]

    def mean(self, column: str) -> Mean:
        """Sum up a column."""
        values = np.array([row[column] for row in self.rows], np.float64)
        count = len(values)
        half = stats.t.ppf(0.975, count - 1) * values.std(ddof=1) / count**0.5 if count > 1 else None
        return Mean(float(values.mean()), None if half is None else float(half))

    @property
    def good(self) -> bool:
        """Whether its mean goodput is what was promised."""
        return self.mean("goodput").value >= GOOD_ENOUGH

    @property
    def label(self) -> str:
        """Name it, tuned or not."""
        return f"{self.judge} (tuned)" if self.variant == "tuned" else self.judge


def joined(results: Mapping[Cell, Result]) -> list[Row]:
    """Return all rows with LB, UB and regret.

    Raises
    ------
    BoundBeatenError
        When a run kept the promise for less than the bound.
    RuntimeError
        When a run that kept the promise made more replicas than its bound looked at.
    """
    bounds: dict[tuple[str, str, int], tuple[float, Row]] = {}
    for cell, result in results.items():
        if cell.kind is Kind.BOUND:
            upper = {row["seed"]: row for row in result["rows"] if row["judge"] == CLAIRVOYANT}
            for seed, each in zip(cell.seeds, result["bounds"], strict=True):
                least = sum(one["lp_gpu_seconds"] for one in each) / SECONDS
                bounds[cell.entry, cell.world, seed] = least, upper[seed]
    rows = []
    for cell, result in results.items():
        for row in result.get("rows", ()):
            least, upper = bounds[row["workload"], row["world"], row["seed"]]
            _check(cell, row, results)
            regret = row["gpu_hours"] / upper["gpu_hours"]
            rows.append({**row, "lb_gpu_hours": least, "ub_gpu_hours": upper["gpu_hours"], "regret": regret})
    return rows


def _check(cell: Cell, row: Row, results: Mapping[Cell, Result]) -> None:
    # A run that breaks the promise is not held against the bound: tuned, Knative's rule makes 2,139 replicas of W2-30.
    if row["goodput"] >= GOOD_ENOUGH and row["replicas_made"] > REPLICAS_DRAWN:
        raise RuntimeError(f"{cell.name} made {row['replicas_made']} replicas: raise REPLICAS_DRAWN ({REPLICAS_DRAWN})")
    for other, result in results.items():
        if other.kind is Kind.BOUND and (other.entry, other.world) == (cell.entry, cell.world):
            each = result["bounds"][other.seeds.index(row["seed"])]
            if len(each) == 1:  # of eight services only the sum is in a row, and 1 % of all may be one service's
                check_not_beaten(from_json(each[0]), row["gpu_hours"] * SECONDS, int(row["goodput"] * 1000))


def lines(rows: Sequence[Row]) -> list[Line]:
    """Group rows, in their order."""
    groups: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["workload"], row["world"], row["judge"], row["variant"]), []).append(row)
    return [Line(*key, tuple(group)) for key, group in groups.items()]


def best(candidates: Sequence[Line]) -> Line | None:
    """Return the cheapest that kept the promise; where none did, the one that came nearest."""
    good = [line for line in candidates if line.good]
    if good:
        return min(good, key=lambda line: line.mean("gpu_hours").value)
    return max(candidates, key=lambda line: line.mean("goodput").value, default=None)
