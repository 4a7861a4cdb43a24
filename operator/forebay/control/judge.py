"""One tick up to its actions: specification, look, decision, plan. No awaits, so that a tick sees one moment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from forebay.actuate.diff import Wanted
from forebay.api.kinds import GPU_POOL, INFERENCE_SERVICE, SLO_POLICY
from forebay.core.fleet import Mode
from forebay.core.memory import carry, initial_memory
from forebay.core.step import step
from forebay.core.units import UNKNOWN
from forebay.observe.gather import gather, replicas

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from forebay.control.objects import Objects
    from forebay.core.decision import Decisions
    from forebay.core.memory import Memory
    from forebay.core.snapshot import Snapshot
    from forebay.observe.gateways import GatewayReading
    from forebay.observe.pods import ReplicaPod
    from forebay.observe.scrape import Reading
    from forebay.observe.world import World
    from forebay.resolve.fleet import Fleet, Resolver


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything that a tick looks at; all of it is kept up to date by others."""

    objects: Objects
    world: World
    readings: Mapping[str, Reading]
    gateways: Mapping[str, GatewayReading]
    namespaces: Mapping[str, Mapping[str, str]]  # name to labels
    autoscalers: Mapping[str, str]  # uid of a HorizontalPodAutoscaler to the service that it targets
    nodes_known: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Judged:
    """One tick's look and verdict."""

    fleet: Fleet
    pods: Mapping[str, Sequence[ReplicaPod]]
    before: Memory  # what step was given
    snapshot: Snapshot
    memory: Memory
    decisions: Decisions
    foreign: frozenset[str]  # services that somebody else's autoscaler drives


class Judge:
    """Keeps the memory and judges.

    Attributes
    ----------
    memory : Memory or None
        None until `begin`.
    """

    def __init__(self, sources: Sources, resolver: Resolver) -> None:
        self.memory: Memory | None = None
        self._sources, self._resolver = sources, resolver
        self._fleet: Fleet | None = None
        self._made_of: tuple[object, ...] = ()
        self._foreign: frozenset[str] = frozenset()

    def fleet(self) -> Fleet:
        """Resolve the fleet; the same object as long as nothing changed."""
        sources = self._sources
        foreign = frozenset(sources.autoscalers.values())
        labels = {name: dict(of) for name, of in sources.namespaces.items()}
        made_of = (sources.objects.revision, foreign, labels)
        if self._fleet is None or made_of != self._made_of:
            of = sources.objects.of
            resolved = self._resolver.resolve(of(INFERENCE_SERVICE), of(SLO_POLICY), of(GPU_POOL), labels)
            self._fleet, self._foreign = _stand_back(resolved, foreign)
            self._made_of = made_of
        return self._fleet

    def begin(self, now_ms: int) -> Memory:
        """Return a memory that remembers nothing, for the fleet as it is."""
        return initial_memory(self.fleet().spec, now_ms)

    def look(self, now_ms: int, wall_ms: int) -> Judged:
        """Look and judge; the new memory is kept."""
        fleet, sources = self.fleet(), self._sources
        nodes_known = sources.nodes_known()
        pods = replicas(sources.world, sources.readings, nodes_known=nodes_known, wall_ms=wall_ms)
        snapshot = gather(
            fleet, sources.world, pods, sources.readings, sources.gateways,
            nodes_known=nodes_known, now_ms=now_ms, wall_ms=wall_ms,
        )  # fmt: skip
        before = self.begin(now_ms) if self.memory is None else carry(self.memory, fleet.spec, now_ms)
        self.memory, decisions = step(fleet.spec, before, snapshot)
        return Judged(fleet, pods, before, snapshot, self.memory, decisions, self._foreign)


def _stand_back(fleet: Fleet, foreign: frozenset[str]) -> tuple[Fleet, frozenset[str]]:
    """Leave a service alone that another autoscaler drives, unless its owner said Manual: then that is its business."""
    modes = fleet.spec.mode
    driven = np.array([service.key in foreign for service in fleet.services], np.bool_) & (modes == Mode.AUTO)
    if not driven.any():
        return fleet, frozenset()
    spec = replace(fleet.spec, mode=np.where(driven, np.int64(Mode.PAUSED), modes))
    return replace(fleet, spec=spec), frozenset(s.key for s, d in zip(fleet.services, driven, strict=True) if d)


def wanted(judged: Judged) -> list[Wanted]:
    """Say of every service what is to be, as the diff wants it."""
    decisions, spec = judged.decisions, judged.fleet.spec
    service_of = {pod.uid: service for service, pods in judged.pods.items() for pod in pods}
    victims: dict[str, list[str]] = {}
    for uid in decisions.victims:
        victims.setdefault(service_of[uid], []).append(uid)
    suspects: dict[str, set[str]] = {}
    for uid in decisions.suspect:
        suspects.setdefault(service_of[uid], set()).add(uid)
    return [
        Wanted(
            service=service.key,
            revision=service.plan.revision if service.plan is not None and not service.blocked else None,
            pool=int(spec.pool[row]),
            gpus=service.plan.gpus if service.plan is not None else 0,
            priority=int(spec.priority[row]),
            serving=int(decisions.replicas_serving[row]),
            warm=int(decisions.replicas_warm[row]),
            hold=bool(decisions.hold[row]),
            victims=tuple(victims.get(service.key, ())),
            suspects=frozenset(suspects.get(service.key, ())),
        )
        for row, service in enumerate(judged.fleet.services)
    ]


def room(judged: Judged, promised: Mapping[str, int]) -> dict[int, int]:
    """Count the free GPUs of every pool: what it may have, less what pods hold and what is promised to creates.

    A pool whose nodes could not be read has no room: an unknown number of GPUs is not a number to spend.
    """
    snapshot, spec = judged.snapshot, judged.fleet.spec
    free: dict[int, int] = {}
    for row, most in enumerate(spec.gpus_max.tolist()):
        allocatable = int(snapshot.gpus_allocatable[row])
        offered = 0 if allocatable == UNKNOWN else allocatable - int(snapshot.gpus_foreign[row])
        free[row] = offered if most == UNKNOWN else min(offered, most)
    for row, service in enumerate(judged.fleet.services):
        held = sum(pod.gpus for pod in judged.pods.get(service.key, ()))
        free[int(spec.pool[row])] -= held + promised.get(service.key, 0)
    return free
