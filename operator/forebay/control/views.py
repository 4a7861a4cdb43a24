"""What is told of a service: its counts, and every problem that somebody saw, in one place. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.api.inference_service import ScalingMode
from forebay.core.fleet import Mode
from forebay.core.reasons import Reason
from forebay.core.units import UNKNOWN
from forebay.report.render import Counts, View
from forebay.resolve.problem import Problem
from forebay.wire.lifecycle import ReplicaState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forebay.control.judge import Judged
    from forebay.observe.pods import ReplicaPod
    from forebay.observe.scrape import Reading
    from forebay.resolve.service import Service


@dataclass(frozen=True, slots=True)
class Findings:
    """What only this process knows of its services, beside a tick's look."""

    garbage: Mapping[str, str]  # replica uid to what was wrong with its last answer
    readings: Mapping[str, Reading]
    unreadable: frozenset[str]  # services whose stored memory could not be read
    attained: Mapping[str, int]  # service to permille of good requests


def counts_of(service: Service, pods: Sequence[ReplicaPod]) -> Counts:
    """Count a service's replicas by what they do; those that leave or have failed do nothing else."""
    if not pods:
        return Counts()
    here = [pod for pod in pods if not pod.leaving and not pod.failed]
    serving = [pod for pod in here if pod.state is ReplicaState.SERVING]
    revision = service.plan.revision if service.plan is not None else None
    return Counts(
        total=len(pods),
        starting=sum(pod.state is ReplicaState.STARTING for pod in here),
        warm=sum(pod.state is ReplicaState.WARM and pod.ready for pod in here),
        serving=len(serving),
        ready=sum(pod.ready for pod in serving),
        draining=sum(pod.leaving for pod in pods),
        outdated=sum(revision is not None and pod.revision != revision for pod in here),
    )


def problems_of(
    service: Service,
    pods: Sequence[ReplicaPod],
    findings: Findings,
    foreign: frozenset[str],
    refused: tuple[Problem, ...],
) -> tuple[Problem, ...]:
    """Collect what is wrong with a service: its specification, its replicas, its driver, the writes for it."""
    problems = [*service.problems, *_failures(pods), *_bad_metrics(service, pods, findings), *refused]
    if service.key in foreign:
        problems.append(Problem(Reason.FOREIGN_AUTOSCALER, blocking=False))
    spec = service.spec
    if spec is not None and service.mode is Mode.PAUSED and spec.scaling.mode is not ScalingMode.PAUSED:
        problems.append(Problem(Reason.PAUSED_BY_USER, blocking=False))
    if service.key in findings.unreadable:
        problems.append(Problem(Reason.MEMORY_UNREADABLE, blocking=False))
    return tuple(problems)


def _failures(pods: Sequence[ReplicaPod]) -> list[Problem]:
    by_reason: dict[Reason, list[ReplicaPod]] = {}
    for pod in pods:
        if pod.failed and not pod.leaving:
            by_reason.setdefault(pod.failure, []).append(pod)
    return [
        Problem(reason, failed[0].failure_message, (("replicas", len(failed)),), blocking=False)
        for reason, failed in sorted(by_reason.items())
    ]


def _bad_metrics(service: Service, pods: Sequence[ReplicaPod], findings: Findings) -> list[Problem]:
    problems = []
    garbage = [pod.uid for pod in pods if pod.uid in findings.garbage]
    if garbage:
        numbers = (("replicas", len(garbage)),)
        problems.append(Problem(Reason.METRICS_GARBAGE, findings.garbage[garbage[0]], numbers, blocking=False))
    expected = service.served_names[0] if service.served_names else None
    current = service.plan.revision if service.plan is not None else None
    # A replica of an older revision may rightly bear the name that the service had then.
    heard = [findings.readings[pod.uid] for pod in pods if pod.uid in findings.readings and pod.revision == current]
    others = [r.signals.model for r in heard if r.signals.model is not None and r.signals.model != expected]
    if others:
        told = f'"{others[0]}" instead of "{expected}"'
        problems.append(Problem(Reason.SERVED_NAME_MISMATCH, told, (("replicas", len(others)),), blocking=False))
    return problems


def view_of(
    judged: Judged, row: int, counts: Counts, problems: tuple[Problem, ...], attained: Mapping[str, int]
) -> View:
    """Build what is told of one service."""
    service = judged.fleet.services[row]
    return View(
        service=service.key,
        generation=service.generation,
        decision=judged.decisions.decision(row),
        counts=counts,
        problems=problems,
        attained_permille=attained.get(service.key, UNKNOWN),
        attainment_permille=int(judged.fleet.spec.attainment_permille[row]),
    )


def gist(
    judged: Judged, row: int, counts: Counts, problems: tuple[Problem, ...], attained: Mapping[str, int]
) -> object:
    """Reduce what would be told to what it depends on, without rendering it: equal gists, equal status."""
    service, decisions = judged.fleet.services[row], judged.decisions
    share = attained.get(service.key, UNKNOWN)
    slo = None if share == UNKNOWN else share >= int(judged.fleet.spec.attainment_permille[row])
    return (
        service.generation,
        int(decisions.replicas_serving[row]),
        int(decisions.replicas_warm[row]),
        decisions.reason[:, row].tobytes(),
        counts,
        tuple((problem.reason, problem.detail) for problem in problems),
        slo,
    )
