"""Carries out a tick's actions beside the loop: a slow service is busy and left out of the next tick, nobody waits."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.actuate.diff import Action, Create, Delete, SetState
from forebay.actuate.errors import ConflictError, RefusedError
from forebay.actuate.pods import manifest
from forebay.core.reasons import Reason
from forebay.report.render import Event, happened
from forebay.resolve.problem import Problem
from forebay.wire.lifecycle import ReplicaState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from forebay.actuate.apply import Actuator, Result
    from forebay.observe.world import World
    from forebay.report.metrics import Metrics
    from forebay.resolve.service import Service

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Busy:
    task: asyncio.Task[None]
    promised_gpus: int


class Acting:
    """Actions under way.

    Parameters
    ----------
    actuator, world, metrics
        Where actions go, where their answers go, where they are counted.
    now_ms
        The loop's clock.
    wake
        Asks for an early tick: a pod was not any more what it was judged to be.
    pull_policy
        Of replicas' images.
    """

    def __init__(
        self,
        actuator: Actuator,
        world: World,
        metrics: Metrics,
        *,
        now_ms: Callable[[], int],
        wake: Callable[[], None],
        pull_policy: str,
    ) -> None:
        self._actuator, self._world, self._metrics = actuator, world, metrics
        self._now_ms, self._wake, self._pull_policy = now_ms, wake, pull_policy
        self._busy: dict[str, _Busy] = {}
        self._refused: dict[str, Problem] = {}
        self._events: dict[str, list[Event]] = {}

    def busy(self) -> frozenset[str]:
        """Return the services whose last actions are not done."""
        return frozenset(self._busy)

    def promised(self) -> dict[str, int]:
        """Return the GPUs of creates under way, by service."""
        return {service: busy.promised_gpus for service, busy in self._busy.items()}

    def refused(self, service: str) -> tuple[Problem, ...]:
        """Return what the API server refused of the last actions."""
        problem = self._refused.get(service)
        return () if problem is None else (problem,)

    def take_events(self, service: str) -> list[Event]:
        """Return, once, what was done to a service."""
        return self._events.pop(service, [])

    def begin(self, service: Service, actions: Sequence[Action]) -> None:
        """Start carrying out a service's actions; it must not be busy."""
        plan = service.plan
        creates = sum(isinstance(action, Create) for action in actions)
        promised = creates * plan.gpus if plan is not None else 0
        task = asyncio.create_task(self._carry_out(service, actions), name=f"act {service.key}")
        self._busy[service.key] = _Busy(task, promised)
        task.add_done_callback(lambda _: self._busy.pop(service.key, None))

    async def settle(self, limit_s: float) -> None:
        """Wait for what is under way, for a while, then cancel it."""
        tasks = [busy.task for busy in self._busy.values()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=limit_s)
            for task in late:
                task.cancel()

    async def _carry_out(self, service: Service, actions: Sequence[Action]) -> None:
        def pod(action: Create) -> dict[str, object]:
            if service.plan is None:
                raise AssertionError("a service without a plan has no creates")
            return manifest(service.plan, service.key, service.uid, action.name, self._pull_policy)

        try:
            results = await self._actuator.carry_out(actions, pod)
        except Exception:
            log.exception("actions failed", extra={"service": service.key})
            return
        now_ms = self._now_ms()
        for result in results:
            if result.pod is not None:
                self._world.note(result.pod, now_ms)
            outcome = "done" if result.error is None else type(result.error).__name__
            self._metrics.actions.labels(type(result.action).__name__, outcome).inc()
            if isinstance(result.error, ConflictError):
                self._wake()
        self._remember(service.key, results)

    def _remember(self, service: str, results: Iterable[Result]) -> None:
        done: Counter[Reason] = Counter()
        refusals = []
        for result in results:
            if isinstance(result.error, RefusedError):
                refusals.append(str(result.error))
            elif result.error is None and (reason := _reason(result.action)) is not None:
                done[reason] += 1
        self._events.setdefault(service, []).extend(happened(reason, count) for reason, count in sorted(done.items()))
        if refusals:
            numbers = (("writes", len(refusals)),)
            self._refused[service] = Problem(Reason.WRITE_REFUSED, refusals[0], numbers, blocking=False)
        else:
            self._refused.pop(service, None)


def _reason(action: Action) -> Reason | None:
    match action:
        case Create():
            return Reason.REPLICA_STARTED
        case Delete():
            return Reason.REPLICA_DRAINING
        case SetState(was=ReplicaState.WARM, state=ReplicaState.SERVING):
            return Reason.PROMOTED
        case SetState(was=ReplicaState.SERVING, state=ReplicaState.WARM):
            return Reason.DEMOTED
        case SetState():
            return None
