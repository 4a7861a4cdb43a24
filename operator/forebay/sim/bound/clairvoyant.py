"""The GPU time below which no policy can go, and the plan of one that knows the future."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from forebay.sim.bound.bins import bin_size_us, into_bins
from forebay.sim.bound.demand import demand
from forebay.sim.bound.program import Path, solve

if TYPE_CHECKING:
    from forebay.core.goodness import Targets
    from forebay.core.units import I64
    from forebay.engine_model.step_time import StepTimes
    from forebay.sim.bound.demand import F64, Scarce
    from forebay.sim.trace import Trace

PERMILLE = 1000
SECOND_US = 1_000_000
SOLVER_TOLERANCE = 1e-6  # HiGHS lets a row be violated by 1e-7


class BoundBeatenError(AssertionError):
    """A run cost less than any can: the run's accounts or the bound are wrong."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What N requests cost at least; GPU-seconds count starting, ready and draining replicas alike."""

    fluid_gpu_seconds: float  # all work, whenever
    edf_gpu_seconds: float  # each piece of work in its window, starts paid
    lp_gpu_seconds: float  # the same with the dearest `droppable` requests left out: the bound, LB
    requests: int
    necessarily_missed: int  # late even alone on a replica; they cost nothing and use up what may be dropped
    droppable: int  # beside those
    goodput_permille: int  # that a run must reach to be held against `lp_gpu_seconds`
    scarce: Scarce  # what a step's fixed cost is shared by
    bin_us: int
    ready: F64  # [T] replicas that serve, a bin's mean, in the optimum of the linear program
    rows: int
    columns: int
    seconds_solved: float = field(compare=False)

    def summary(self) -> str:
        """Say it in one line."""
        return (
            f"LB {self.lp_gpu_seconds:.0f} GPU-s (EDF {self.edf_gpu_seconds:.0f}, fluid {self.fluid_gpu_seconds:.0f}); "
            f"of {self.requests} requests {self.necessarily_missed} missed by necessity, {self.droppable} droppable; "
            f"{len(self.ready)} bins of {self.bin_us / SECOND_US:.2f} s, {self.rows} x {self.columns}, "
            f"{self.seconds_solved:.1f} s"
        )


def lower_bound(
    trace: Trace,
    times: StepTimes,
    batch_max: int,
    kv_tokens: int,
    targets: Targets,
    *,
    boot_us: int,
    droppable_permille: int = 10,
    gpus_per_replica: int = 1,
    bin_us: int | None = None,
) -> Bound:
    """Compute all three bounds.

    Parameters
    ----------
    trace
        The requests; at time 0 the run's accounts begin, and they end when its last request does.
    times
        Of the fastest replica of the world.
    batch_max, kv_tokens
        Most requests in one step, and tokens that a replica's KV cache holds.
    targets
        What makes a request good.
    boot_us
        The shortest start that the world has, from a replica's first second on its GPU until it serves.
    droppable_permille
        Share of the requests that need not be good, rounded down to whole requests.
    gpus_per_replica
        GPUs that a replica occupies.
    bin_us
        Length of a bin; by default such that there are at most 2,000. Longer bins give a lower bound.

    Raises
    ------
    ValueError
        When a parameter is out of its range.
    RuntimeError
        When the solver gives up.
    """
    _check(boot_us, droppable_permille, gpus_per_replica, bin_us)
    began = time.perf_counter()
    asked = demand(trace, times, batch_max, kv_tokens, targets)
    missed = int((~asked.servable).sum())
    droppable = max(0, len(trace) * droppable_permille // PERMILLE - missed)
    every = best = Path(replica_seconds=0.0, ready=np.zeros(1), rows=0, columns=0)
    if asked.servable.any():
        bin_us = bin_us or bin_size_us(trace, asked)
        bins = into_bins(trace, asked, bin_us)
        every = solve(bins, boot_us, 0)
        best = solve(bins, boot_us, droppable) if droppable else every
    return Bound(
        fluid_gpu_seconds=gpus_per_replica * float(asked.work_us.sum()) / SECOND_US,
        edf_gpu_seconds=gpus_per_replica * every.replica_seconds,
        lp_gpu_seconds=gpus_per_replica * best.replica_seconds,
        requests=len(trace),
        necessarily_missed=missed,
        droppable=droppable,
        goodput_permille=PERMILLE - droppable_permille,
        scarce=asked.scarce,
        bin_us=bin_us or SECOND_US,
        ready=best.ready,
        rows=best.rows,
        columns=best.columns,
        seconds_solved=time.perf_counter() - began,
    )


def _check(boot_us: int, droppable_permille: int, gpus_per_replica: int, bin_us: int | None) -> None:
    if boot_us < 0 or gpus_per_replica < 1 or (bin_us is not None and bin_us < 1):
        raise ValueError(
            f"a bound needs boot_us >= 0, gpus_per_replica >= 1 and bin_us >= 1, got {boot_us}, {gpus_per_replica} and "
            f"{bin_us}"
        )
    if not 0 <= droppable_permille <= PERMILLE:
        raise ValueError(f"droppable_permille must be 0 to {PERMILLE}, got {droppable_permille}")


def plan(bound: Bound, boot_us: int, slack: float = 0.0) -> I64:
    """Turn the optimum's capacity into what a fleet that knows the future asks for.

    Parameters
    ----------
    bound
        From `lower_bound`.
    boot_us
        How long before it is needed a replica is started: the longest start of the world.
    slack
        Share added to the optimum's capacity before it is rounded up; above -1.

    Returns
    -------
    numpy.ndarray
        [seconds], whole replicas that shall exist, starting ones included; afterwards the last number holds.

    Raises
    ------
    ValueError
        When a parameter is out of its range.
    """
    if boot_us < 0 or not -1 < slack < math.inf:
        raise ValueError(f"a plan needs boot_us >= 0 and a finite slack > -1: {boot_us}, {slack}")
    whole = np.ceil(bound.ready * (1 + slack) - SOLVER_TOLERANCE).astype(np.int64)
    second = np.arange(-(-len(whole) * bound.bin_us // SECOND_US)) * SECOND_US
    first = second // bound.bin_us
    after = np.minimum(-(-(second + SECOND_US + boot_us) // bound.bin_us), len(whole))
    spans = np.stack([first, after], axis=1).ravel()
    needed: I64 = np.maximum.reduceat(np.append(whole, 0), spans)[::2]  # the odd ones are of the gaps between spans
    return needed


def check_not_beaten(bound: Bound, run_gpu_seconds: float, goodput_permille: int) -> None:
    """Hold a run against the bound.

    Parameters
    ----------
    bound
        Of the same trace, world and targets.
    run_gpu_seconds
        All GPU time from the trace's time 0 until the last request ended: starting, idle and draining replicas too.
    goodput_permille
        Good requests of all, rounded down.

    Raises
    ------
    BoundBeatenError
        When the run kept the promise for less than that can cost.
    """
    if goodput_permille < bound.goodput_permille:
        return
    if run_gpu_seconds < bound.lp_gpu_seconds * (1 - SOLVER_TOLERANCE):
        raise BoundBeatenError(
            f"{run_gpu_seconds:.1f} GPU-seconds at {goodput_permille} permille of good requests, but no policy can "
            f"need less than {bound.lp_gpu_seconds:.1f} for {bound.goodput_permille}: look whether the run pays for "
            f"starting and draining replicas until its last request has ended, and whether the bound knows the world's "
            f"fastest replica and shortest start ({bound.summary()})"
        )
