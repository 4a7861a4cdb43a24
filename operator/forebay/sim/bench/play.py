"""Play a case under a judge, and write down one row a seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from forebay.core.snapshot import State
from forebay.sim.baselines import all_rules
from forebay.sim.bench.case import CLASSES, work_of
from forebay.sim.bench.entries import SECOND_US, window_us
from forebay.sim.run import ForebayJudge, RuleJudge, run
from forebay.sim.score import recovery_s, score_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forebay.sim.bench.case import Case
    from forebay.sim.bench.entries import Size
    from forebay.sim.run import Judge
    from forebay.sim.service import SimulatedService
    from forebay.sim.world import World

Row = dict[str, Any]
HOUR_US = 3_600_000_000
_PROFILED = {"dynamo-throughput", "dynamo-both"}  # they plan with a profile: the prior


@dataclass(frozen=True, slots=True)
class Timeline:
    """What the first row's fleet looked like, every `every_s` seconds."""

    every_s: int
    serving: list[int]
    starting: list[int]
    warm: list[int]


def forebay_judge(case: Case) -> Judge:
    """Return the product's own judgement."""
    return ForebayJudge(case.scenario.fleet, case.scenario.pools())


def rule_judge(case: Case, name: str, overrides: Sequence[Mapping[str, Any]]) -> Judge:
    """Return a rival's rule for every row, each with its own overrides."""
    fleet, made = case.scenario.fleet, []
    for row, changes in enumerate(overrides):
        profile: dict[str, Any] = {}
        if name in _PROFILED:
            profile = {"times": case.scenario.step_times(row), "kv_tokens": int(fleet.kv_tokens_prior[row])}
        bounds = int(fleet.replicas_min[row]), int(fleet.replicas_max[row])
        made.append(all_rules()[name]({**profile, **changes}, int(fleet.batch_max[row]), *bounds))
    return RuleJudge(made, fleet, case.scenario.pools())


def play(
    case: Case,
    world: World,
    judge: Judge,
    size: Size,
    *,
    initial: Sequence[int] | None = None,
    timeline: Timeline | None = None,
) -> tuple[list[SimulatedService], list[Row]]:
    """Simulate; return the services in their end, and a row for each seed.

    All begin with the same replicas, unless `initial` says otherwise.
    """
    scenario = case.scenario
    services = scenario.services(world, tuple(CLASSES.values()))

    def note(second: int, _: int) -> None:
        if timeline is not None and second % timeline.every_s == 0:
            first = services[0]
            timeline.serving.append(first.count(State.SERVING))
            timeline.starting.append(first.count(State.STARTING))
            timeline.warm.append(first.count(State.WARM))

    run(services, judge, initial or [scenario.initial(row) for row in range(len(services))], note)
    rows = [_row(case, [services[row] for row in case.rows(seed)], seed, size) for seed in case.seeds]
    return services, rows


def _row(case: Case, services: Sequence[SimulatedService], seed: int, size: Size) -> Row:
    """Write down a seed's run. Shares are of all its requests, quantiles those of the worst service."""
    scores = [score_of(service) for service in services]
    requests = sum(score.requests for score in scores)
    hours = max(service.trace.duration_us for service in services) / HOUR_US

    def share(of: Sequence[float]) -> float:
        return sum(value * score.requests for value, score in zip(of, scores, strict=True)) / requests

    states: dict[str, float] = {}
    for score in scores:
        for state, held in score.gpu_hours_by_state.items():
            states[state] = states.get(state, 0.0) + held
    row: Row = {
        "seed": seed,
        "hours": hours,
        "requests": requests,
        "goodput": share([score.goodput for score in scores]),
        "goodput_worst_service": min(score.goodput for score in scores),
        "ttft_attained": share([score.ttft_attained for score in scores]),
        "itl_attained": share([score.itl_attained for score in scores]),
    }
    for place, name in enumerate(CLASSES, start=1):
        row[f"goodput_{name}"] = share([score.goodput_by_class[place] for score in scores])
    for place, quantile in enumerate(("p50", "p95", "p99")):
        row[f"ttft_ms_{quantile}"] = max(score.ttft_ms[place] for score in scores)
        row[f"itl_ms_{quantile}"] = max(score.itl_ms[place] for score in scores)
    tokens = sum(score.generation_tokens for score in scores)
    row |= {
        "gpu_hours": sum(states.values()),
        **{f"gpu_hours_{state}": held for state, held in states.items()},
        "gpu_hours_per_million_tokens": sum(states.values()) * 1e6 / tokens if tokens else None,
        "scale_actions_per_hour": sum(score.scale_actions for score in scores) / hours,
        "refused": sum(score.refused for score in scores),
        "unanswered": sum(score.failed + score.unfinished for score in scores),
        "recovery_s": _recovery(case, services, size),
        "replicas_made": max(service.replicas_made for service in services),
    }
    return row


def _recovery(case: Case, services: Sequence[SimulatedService], size: Size) -> int | None:
    step_s = case.entry.step_s
    if step_s is None:
        return None
    begun_s = window_us(size, step_s)[0] // SECOND_US if size.span_s else 0
    return recovery_s(services[0], step_s - begun_s)


def demand_replicas(case: Case, every_s: int) -> list[float]:
    """Return the least work of the first row's requests in each span of `every_s`, in replicas that it keeps busy."""
    span_us = every_s * SECOND_US
    spans = np.bincount(case.scenario.traces[0].arrival_us // span_us, weights=work_of(case.scenario, 0)) / span_us
    return [round(float(one), 3) for one in spans]


def new_timeline(every_s: int) -> Timeline:
    """Return an empty timeline."""
    return Timeline(every_s, [], [], [])
