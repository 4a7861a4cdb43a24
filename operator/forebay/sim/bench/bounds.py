"""Each row's bound (LB), and the cheapest plan of one that knows the future (UB), and of one that sees all else."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from forebay.engine_model.step_time import StepTimes
from forebay.sim.bench.case import fastest, work_of
from forebay.sim.bench.play import play, rule_judge
from forebay.sim.bound import Bound, lower_bound, plan
from forebay.sim.bound.demand import Scarce, demand

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay.core.units import I64
    from forebay.sim.bench.case import Case
    from forebay.sim.bench.entries import Size
    from forebay.sim.bench.play import Row, Timeline
    from forebay.sim.bound.demand import F64
    from forebay.sim.service import SimulatedService
    from forebay.sim.world import World

SECOND_US = 1_000_000
# Bins of a bound. With 450 instead of 2,000 the bound of W1 is lower by 0.1 % and takes 1 s instead of 25.
BINS = 450
REPLICAS_DRAWN = 2000  # more than any run of a row makes; the bound knows the fastest of them
# A plan orders its replicas this long before their need: a cold start's mean and one standard deviation.
LEAD_S = 130
GOOD_ENOUGH = 0.99
# Of the search for the least multiple of a plan that is good enough. W2's bursts need 8 times their own mean of 10 s.
MULTIPLE_LEAST, MULTIPLE_MOST, ROUNDS = 0.7, 12.0, 6
SMOOTHED_S = 10  # of the demand that the plans follow
# How far back the one who does not know the future looks: W1 is cheapest with the first, W2 and W3 with the other.
MEMORIES_S = (60, 300)


@dataclass(frozen=True, slots=True)
class Upper:
    """The best plan of every service, and what it was worth."""

    rows: list[Row]
    plans: list[I64]


def bounds_of(case: Case, world: World) -> list[Bound]:
    """Compute each row's bound, for accounts that end with the last arrival as the simulator's do."""
    return [_bound(case, world, row) for row in range(len(case.scenario.traces))]


def _bound(case: Case, world: World, row: int) -> Bound:
    scenario, fleet = case.scenario, case.scenario.fleet
    trace, targets = scenario.traces[row], scenario.targets(row)
    constants, boot_us = fastest(case, world, row, REPLICAS_DRAWN)
    times = StepTimes(*(int(value) for value in constants))
    limits = int(fleet.batch_max[row]), int(fleet.kv_tokens_prior[row])
    gpus = int(fleet.gpus_per_replica[row])
    made = lower_bound(
        trace,
        times,
        *limits,
        targets,
        boot_us=boot_us,
        gpus_per_replica=gpus,
        bin_us=max(SECOND_US, trace.duration_us // BINS),
    )
    asked = demand(trace, times, *limits, targets)
    # What may still be done after the last arrival is not in the simulator's accounts, so nobody can be held to it.
    after = float(asked.work_us[asked.deadline_us > trace.duration_us].sum()) / SECOND_US * gpus
    return replace(made, lp_gpu_seconds=max(0.0, made.lp_gpu_seconds - after))


def as_json(bound: Bound) -> dict[str, Any]:
    """Return what a check needs of a bound."""
    kept = (field.name for field in fields(bound) if field.name not in {"ready", "scarce"})
    return {**{name: getattr(bound, name) for name in kept}, "scarce": bound.scarce.value}


def from_json(saved: dict[str, Any]) -> Bound:
    """Make a bound of what `as_json` kept; its path of capacity is lost."""
    return Bound(**{**saved, "scarce": Scarce(saved["scarce"])}, ready=np.zeros(1))


def upper(case: Case, world: World, paths: Sequence[Bound], size: Size) -> Upper:
    """Find, for each service, the cheapest plan that serves 99 % well.

    Two kinds of plan are tried: the optimum of the linear program, and the work that arrives within ten seconds. Of
    each the least multiple that is good enough is searched; the cheaper one is the plan.

    Parameters
    ----------
    case, world, size
        What is played.
    paths
        Each row's bound in the world without error, as a plan needs the mean replica and not the fastest.

    Returns
    -------
    Upper
        A service that no multiple served well has the largest, and its goodput says so.
    """
    kinds: tuple[Callable[[int, float], I64], ...] = (
        lambda row, multiple: plan(paths[row], LEAD_S * SECOND_US, multiple - 1),
        _times([_smoothed(case, row) for row in range(len(paths))]),
    )
    return _cheapest(case, world, kinds, size)


def persistent(case: Case, world: World, size: Size) -> list[Row]:
    """Find, for each service, the cheapest plan that serves 99 % well and knows nothing of the future.

    It sees what nobody sees: the exact work of every second, at once. It has what the largest of the last seconds kept
    busy, times the one multiple that suffices for this very run. So it lacks only the future: what separates it from
    `upper` is the price of not knowing, and what separates a policy from it is the policy's own. The first start is
    given to it: until then it has what will be needed.
    """
    rows = range(len(case.scenario.traces))
    kinds = [_times([_remembered(case, row, memory_s) for row in rows]) for memory_s in MEMORIES_S]
    return _cheapest(case, world, kinds, size).rows


def _times(demands: Sequence[F64]) -> Callable[[int, float], I64]:
    """Return the plans that have a multiple of each row's demand, by row and multiple."""
    return lambda row, multiple: np.ceil(demands[row] * multiple).astype(np.int64)


def _cheapest(case: Case, world: World, kinds: Sequence[Callable[[int, float], I64]], size: Size) -> Upper:
    """Search the least multiple of each kind of plan, and play the cheapest of them for every service."""
    found = [_search(case, world, kind, size) for kind in kinds]
    costs = np.array([[cost for cost, _ in each] for each in found])
    best = [found[kind][row][1] for row, kind in enumerate(costs.argmin(axis=0))]
    return Upper(follow(case, world, best, size)[1], best)


def _search(case: Case, world: World, make: Callable[[int, float], I64], size: Size) -> list[tuple[float, I64]]:
    """Return the cost of the least multiple that is good enough, and the plan, by service; infinite where none is."""
    count = len(case.scenario.traces)
    low, high = np.full(count, MULTIPLE_LEAST), np.full(count, MULTIPLE_MOST)
    best = [(np.inf, make(row, MULTIPLE_MOST)) for row in range(count)]
    for _ in range(ROUNDS):
        multiple = np.sqrt(low * high)
        plans = [make(row, float(multiple[row])) for row in range(count)]
        services, _rows = follow(case, world, plans, size)
        good = np.array([_goodput(service) >= GOOD_ENOUGH for service in services])
        for row in np.flatnonzero(good):
            best[row] = (float(sum(services[row].gpu_us.values())), plans[row])
        low, high = np.where(good, low, multiple), np.where(good, multiple, high)
    return best


def _goodput(service: SimulatedService) -> float:
    return int(service.path.score[0]) / len(service.trace)


def _smoothed(case: Case, row: int) -> F64:
    """Return the replicas that a row's work keeps busy, the most from ten seconds ago until a start from now."""
    mean = np.convolve(_work_by_second(case, row), np.full(SMOOTHED_S, 1 / SMOOTHED_S), "same")
    return _most(mean, SMOOTHED_S, LEAD_S)


def _remembered(case: Case, row: int, memory_s: int) -> F64:
    """Return the most that a row's work kept busy in the last seconds; at first, what it will until the first start."""
    each = np.pad(_work_by_second(case, row), (SMOOTHED_S, 0))
    mean = np.lib.stride_tricks.sliding_window_view(each, SMOOTHED_S).mean(axis=1)[1:]
    mean[:LEAD_S] = mean[:LEAD_S].max()
    return _most(mean, memory_s, 0)


def _most(mean: F64, before_s: int, after_s: int) -> F64:
    padded = np.pad(mean, (before_s, after_s), mode="edge")
    most: F64 = np.lib.stride_tricks.sliding_window_view(padded, before_s + after_s + 1).max(axis=1)
    return most


def _work_by_second(case: Case, row: int) -> F64:
    seconds = case.scenario.traces[row].arrival_us // SECOND_US
    each: F64 = np.bincount(seconds, weights=work_of(case.scenario, row)) / SECOND_US
    return each


def follow(
    case: Case, world: World, plans: Sequence[I64], size: Size, timeline: Timeline | None = None
) -> tuple[list[SimulatedService], list[Row]]:
    """Play a case along plans of whole replicas, one number a second; they begin with what they want at first."""
    judge = rule_judge(case, "clairvoyant", [{"plan": one, "plan_interval_ms": 1000} for one in plans])
    fleet = case.scenario.fleet
    initial = np.clip([one[0] for one in plans], fleet.replicas_min, fleet.replicas_max)
    return play(case, world, judge, size, initial=[int(one) for one in initial], timeline=timeline)


def statics(case: Case, world: World, plans: Sequence[I64], size: Size) -> dict[str, list[Row]]:
    """Play the constants: the peak and the mean of each row's plan."""
    constants = {
        "static-peak": [int(one.max()) for one in plans],
        "static-mean": [max(1, round(float(one.mean()))) for one in plans],
    }
    return {
        name: play(case, world, rule_judge(case, name, [{"replicas": one} for one in each]), size)[1]
        for name, each in constants.items()
    }
