"""The bound of each row (LB), and the cheapest plan of one that knows the future and is good enough (UB)."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from forebay.engine_model.step_time import StepTimes
from forebay.sim.bench.case import fastest
from forebay.sim.bench.play import play, rule_judge
from forebay.sim.bound import Bound, lower_bound, plan
from forebay.sim.bound.demand import demand

if TYPE_CHECKING:
    from forebay.core.units import I64
    from forebay.sim.bench.case import Case
    from forebay.sim.bench.entries import Size
    from forebay.sim.bench.play import Row
    from forebay.sim.service import SimulatedService
    from forebay.sim.world import World

SECOND_US = 1_000_000
# Bins of a bound. With 450 instead of 2,000 the bound of W1 is lower by 0.1 % and takes 1 s instead of 25.
BINS = 450
REPLICAS_DRAWN = 2000  # more than any run of a row makes; the bound knows the fastest of them
# A plan orders its replicas this long before their need: a cold start's mean and one standard deviation.
LEAD_US = 130 * SECOND_US
GOOD_ENOUGH = 0.99
SLACK_LEAST, SLACK_MOST, ROUNDS = -0.3, 1.2, 6  # of the bisection, which ends within 0.024


def bounds_of(case: Case, world: World) -> list[Bound]:
    """Compute each row's bound, for accounts that end with the last arrival as the simulator's do."""
    return [_bound(case, world, row) for row in range(len(case.scenario.traces))]


def _bound(case: Case, world: World, row: int) -> Bound:
    scenario, fleet = case.scenario, case.scenario.fleet
    trace, targets = scenario.traces[row], scenario.targets(row)
    constants, boot_us, _ = fastest(case, world, row, REPLICAS_DRAWN)
    seats, kv_tokens = int(fleet.batch_max[row]), int(fleet.kv_tokens_prior[row])
    times = StepTimes(*(int(value) for value in constants))
    gpus = int(fleet.gpus_per_replica[row])
    made = lower_bound(
        trace,
        times,
        seats,
        kv_tokens,
        targets,
        boot_us=boot_us,
        gpus_per_replica=gpus,
        bin_us=max(SECOND_US, trace.duration_us // BINS),
    )
    asked = demand(trace, times, seats, kv_tokens, targets)
    # What may still be done after the last arrival is not in the simulator's accounts, so nobody can be held to it.
    after = float(asked.work_us[asked.deadline_us > trace.duration_us].sum()) / SECOND_US * gpus
    return replace(made, lp_gpu_seconds=max(0.0, made.lp_gpu_seconds - after))


def as_json(bound: Bound) -> dict[str, Any]:
    """Return what a check needs of a bound."""
    return {field.name: getattr(bound, field.name) for field in fields(bound) if field.name not in {"ready", "scarce"}}


def from_json(saved: dict[str, Any]) -> Bound:
    """Make a bound of what `as_json` kept; its path of capacity is lost."""
    from forebay.sim.bound.demand import Scarce  # noqa: PLC0415 - with its only user

    return Bound(ready=np.zeros(1), scarce=Scarce.SEATS, **saved)


def upper(case: Case, world: World, paths: list[Bound], size: Size) -> tuple[list[Row], list[I64]]:
    """Find, for each row, the least slack with which the bound's plan serves 99 % well.

    Parameters
    ----------
    case, world, size
        What is played.
    paths
        Bounds whose optimum is the plan: those of the prior's world, as a plan needs the mean replica.

    Returns
    -------
    tuple
        Rows of the best plans, by seed, and each service's plan. A row that no slack made good enough has the
        goodput of the largest.
    """
    count = len(paths)
    low, high = np.full(count, SLACK_LEAST), np.full(count, SLACK_MOST)
    best = [plan(path, LEAD_US, SLACK_MOST) for path in paths]
    for _ in range(ROUNDS):
        slack = (low + high) / 2
        plans = [plan(path, LEAD_US, float(one)) for path, one in zip(paths, slack, strict=True)]
        services, _rows = follow(case, world, plans, size)
        good = np.array([_goodput(service) >= GOOD_ENOUGH for service in services])
        best = [plans[row] if good[row] else best[row] for row in range(count)]
        low, high = np.where(good, low, slack), np.where(good, slack, high)
    return follow(case, world, best, size)[1], best


def _goodput(service: SimulatedService) -> float:
    from forebay.sim.score import score_of  # noqa: PLC0415 - with its only user

    return score_of(service).goodput


def follow(case: Case, world: World, plans: list[I64], size: Size) -> tuple[list[SimulatedService], list[Row]]:
    """Play a case along plans of whole replicas, one number a second; they begin with what they want at first."""
    judge = rule_judge(case, "clairvoyant", [{"plan": one, "plan_interval_ms": 1000} for one in plans])
    return play(case, world, judge, size, initial=[int(one[0]) for one in plans])


def statics(case: Case, world: World, plans: list[I64], size: Size) -> dict[str, list[Row]]:
    """Play the constants: the peak and the mean of each row's plan."""
    constants = {
        "static-peak": [int(one.max()) for one in plans],
        "static-mean": [max(1, round(float(one.mean()))) for one in plans],
    }
    return {
        name: play(case, world, rule_judge(case, name, [{"replicas": one} for one in each]), size)[1]
        for name, each in constants.items()
    }
