"""TELL: a decision and what was counted become conditions and events. Pure; no second wording exists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from forebay.core.reasons import CONDITION_TYPES, Condition, Reason
from forebay.core.units import UNKNOWN
from forebay.core.wordings import WORDINGS
from forebay.resolve.problem import MAX_MESSAGE, Problem
from forebay.wire import names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forebay.core.decision import Decision

Object: TypeAlias = dict[str, Any]

MAX_STEPS = 12
MAX_STEP_MESSAGE = 256
# Reasons of a replica's failure, told as the service's own only while nothing serves in its place.
_FAILURES = frozenset({Reason.IMAGE_PULL_FAILED, Reason.ENGINE_FAILED, Reason.ENGINE_NEVER_READY})


@dataclass(frozen=True, slots=True)
class Counts:
    """A service's replicas by what they do."""

    total: int = 0
    starting: int = 0
    warm: int = 0  # ready ones
    serving: int = 0
    ready: int = 0  # serving and ready
    draining: int = 0
    outdated: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """All that is told of one service."""

    service: str  # namespace/name
    generation: int
    decision: Decision
    counts: Counts
    problems: tuple[Problem, ...] = ()
    attained_permille: int = UNKNOWN  # share of good requests; UNKNOWN: none ended
    attainment_permille: int = 0  # what the policy asks


@dataclass(frozen=True, slots=True)
class Told:
    """One condition, still without its time."""

    type: str
    status: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a service."""

    reason: str
    warning: bool
    note: str


def conditions(view: View) -> tuple[Told, ...]:
    """Say what is true of the service: all nine conditions, in the order of the API."""
    said: dict[Condition, list[Problem]] = {}
    for step in view.decision.steps:
        said.setdefault(WORDINGS[step.reason].condition, []).append(Problem(step.reason, inputs=step.inputs))
    for problem in view.problems:
        said.setdefault(WORDINGS[problem.reason].condition, []).append(problem)
    said[Condition.READY] = [_ready(view, said.get(Condition.READY, []))]
    warm = Problem(_warm(view), inputs=(("warm", view.counts.warm), ("wanted", view.decision.replicas_warm)))
    said[Condition.WARM_POOL_READY] = [warm]
    said.setdefault(Condition.SLO_MET, []).insert(0, _slo(view))
    said.setdefault(Condition.PROGRESSING, []).extend(_progress(view))
    return tuple(
        _told(condition, said.get(condition, [])) for condition in Condition if condition is not Condition.NONE
    )


def _told(condition: Condition, candidates: Sequence[Problem]) -> Told:
    kind = CONDITION_TYPES[condition]
    if not candidates:
        return Told(kind, _DEFAULTS[condition][0], *_words(Problem(_DEFAULTS[condition][1])))
    # A warning before a remark, and of two the later stage, which knows more.
    place = max(range(len(candidates)), key=lambda i: (WORDINGS[candidates[i].reason].warning, i))
    chosen = candidates[place]
    return Told(kind, WORDINGS[chosen.reason].status, *_words(chosen))


def _words(problem: Problem) -> tuple[str, str]:
    return WORDINGS[problem.reason].name, problem.message[:MAX_MESSAGE]


# What a condition says when nobody has a word to say about it.
_DEFAULTS: Mapping[Condition, tuple[bool, Reason]] = {
    Condition.METRICS_AVAILABLE: (True, Reason.AS_EXPECTED),
    Condition.SCALING_ACTIVE: (True, Reason.AUTOSCALING),
    Condition.ABLE_TO_SCALE: (True, Reason.AS_EXPECTED),
    Condition.SCALING_LIMITED: (False, Reason.AS_EXPECTED),
    Condition.GPU_CAPACITY: (True, Reason.AS_EXPECTED),
    Condition.PROGRESSING: (False, Reason.AS_EXPECTED),
}


def _ready(view: View, problems: Sequence[Problem]) -> Problem:
    counts, wanted = view.counts, view.decision.replicas_serving
    numbers = (("ready", counts.ready), ("wanted", wanted))
    blocking = [p for p in problems if p.reason not in _FAILURES and p.blocking]
    if counts.ready > 0:
        if blocking:
            return blocking[0]
        return Problem(Reason.REPLICAS_READY if counts.ready >= wanted else Reason.SOME_REPLICAS_READY, inputs=numbers)
    if problems:
        return (blocking or list(problems))[0]
    # A Batch service at zero does what it should: the gateway holds a request and it starts.
    return Problem(Reason.NO_REPLICAS_READY if wanted > 0 else Reason.REPLICAS_READY, inputs=numbers)


def _warm(view: View) -> Reason:
    return Reason.WARM_POOL_FULL if view.counts.warm >= view.decision.replicas_warm else Reason.WARM_POOL_STARTING


def _slo(view: View) -> Problem:
    if view.attained_permille == UNKNOWN:
        return Problem(Reason.SLO_UNMEASURED)
    met = view.attained_permille >= view.attainment_permille
    numbers = (("attained_permille", view.attained_permille), ("attainment_permille", view.attainment_permille))
    return Problem(Reason.SLO_MET if met else Reason.SLO_MISSED, inputs=numbers)


def _progress(view: View) -> list[Problem]:
    progress: list[Problem] = []
    if view.counts.starting:
        progress.append(Problem(Reason.REPLICAS_STARTING, inputs=(("starting", view.counts.starting),)))
    if view.counts.outdated:
        progress.append(Problem(Reason.ROLLING_OUT, inputs=(("outdated", view.counts.outdated),)))
    return progress


def last_decision(decision: Decision) -> Object:
    """Write the decision as `status.lastDecision` has it."""
    steps = [
        {
            "stage": step.stage,
            "replicas": max(0, step.replicas),
            "reason": WORDINGS[step.reason].name,
            "message": WORDINGS[step.reason].say(dict(step.inputs))[:MAX_STEP_MESSAGE],
        }
        for step in decision.steps
    ]
    return {"desired": decision.replicas_serving, "steps": steps[-MAX_STEPS:]}


def status(view: View, memory: str) -> Object:
    """Write the whole status, its times excepted: conditions lack lastTransitionTime, and lastScaleTime is absent."""
    counts = view.counts
    return {
        "observedGeneration": view.generation,
        "replicas": counts.total,
        "readyReplicas": counts.ready,
        "warmReplicas": counts.warm,
        "desiredReplicas": view.decision.replicas_serving,
        "selector": f"{names.LABEL_SERVICE}={view.service.partition('/')[2]}",
        "conditions": [
            {
                "type": told.type,
                "status": "True" if told.status else "False",
                "reason": told.reason,
                "message": told.message,
                "observedGeneration": view.generation,
            }
            for told in conditions(view)
        ],
        "lastDecision": last_decision(view.decision),
        "memory": memory,
    }


def changes(before: Object, after: Object) -> tuple[Event, ...]:
    """Say which conditions turned, for people who read events: warnings that began, and those that ended."""
    old = {c["type"]: c for c in before.get("conditions", ())}
    warnings = {wording.name for wording in WORDINGS.values() if wording.warning}
    events = []
    for condition in after["conditions"]:
        known = old.get(condition["type"], {})
        if (known.get("status"), known.get("reason")) == (condition["status"], condition["reason"]):
            continue
        if condition["reason"] in warnings:
            events.append(Event(condition["reason"], True, condition["message"]))
        elif known.get("reason") in warnings or (
            condition["type"] == "Ready" and known.get("status") != condition["status"]
        ):
            events.append(Event(condition["reason"], False, f"{condition['type']}: {condition['message']}"))
    return tuple(events)


def happened(reason: Reason, replicas: int) -> Event:
    """Say what was done to some replicas: PROMOTED, DEMOTED, REPLICA_STARTED, REPLICA_DRAINING, REPLICA_REPLACED."""
    wording = WORDINGS[reason]
    return Event(wording.name, wording.warning, wording.say({"replicas": replicas}))
