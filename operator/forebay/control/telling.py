"""Tells the cluster what a tick decided: status, events, /scale, disruption budgets, checkpoints. Beside the loop."""

from __future__ import annotations

import asyncio
import logging
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from forebay.actuate import apply, pods
from forebay.actuate.errors import ActError
from forebay.api.kinds import INFERENCE_SERVICE
from forebay.control.checkpoint import Schedule
from forebay.control.views import counts_of, gist, problems_of, view_of
from forebay.core import codec
from forebay.core.fleet import Mode
from forebay.report.publish import EventGate, StatusGate, dated, event_object
from forebay.report.render import changes, status

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Iterable, Sequence

    from forebay.actuate.client import Kube, Object
    from forebay.control.acting import Acting
    from forebay.control.judge import Judged
    from forebay.control.objects import Objects
    from forebay.control.views import Findings
    from forebay.core.memory import Memory
    from forebay.report.metrics import Metrics
    from forebay.report.render import Counts, Event, View
    from forebay.resolve.service import Service

log = logging.getLogger(__name__)

CONCURRENCY = 16  # half of what acting may have in flight: words yield to deeds
# An API server on two cores takes about 600 writes a second. To render or to begin more than that in a tick would only
# keep the loop from its lease: all of 10,000 new services at once took 4 s of CPU and 200 MB of waiting writes.
TICK_MAX = 500
# A write that failed is tried again after this long, not each tick: a refusal does not go away within a second.
RETRY_MS = 10_000


class Telling:
    """Writes what is worth a write, each kind of it at most once at a time for a service.

    Parameters
    ----------
    kube
        The fenced client.
    objects
        Where the stored status is.
    acting
        What was done, and what was refused.
    budgets
        "namespace/name" of the PodDisruptionBudgets that exist.
    instance
        Name of this process, for events.
    """

    def __init__(
        self,
        kube: Kube,
        objects: Objects,
        acting: Acting,
        metrics: Metrics,
        *,
        budgets: Collection[str],
        instance: str,
    ) -> None:
        self._kube, self._objects, self._acting, self._metrics = kube, objects, acting, metrics
        self._budgets, self._instance = budgets, instance
        self._statuses, self._events, self._checkpoints = StatusGate(), EventGate(), Schedule()
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._not_before: dict[tuple[str, str], int] = {}
        self._versions: dict[str, int] = {}  # uid to the newest resourceVersion that a write of ours answered
        self._settled: dict[str, object] = {}  # uid to the gist of which nothing is left to tell
        self._first = 0  # row with which the next tick begins: where the last one had to stop

    def tell(self, judged: Judged, findings: Findings, now_ms: int) -> dict[str, Counts]:
        """Tell of one tick, as far as writes under way leave room; returns the counts of every service."""
        stored = {raw["metadata"]["uid"]: raw for raw in self._objects.of(INFERENCE_SERVICE)}
        services = judged.fleet.services
        counts = {service.key: counts_of(service, judged.pods.get(service.key, ())) for service in services}
        first, self._first = min(self._first, len(services)), 0
        rendered = 0
        for row in (*range(first, len(services)), *range(first)):
            if rendered >= TICK_MAX or len(self._tasks) >= TICK_MAX:
                self._first = row
                break
            raw = stored.get(services[row].uid)
            if raw is not None:
                rendered += self._tell_service(judged, row, counts[services[row].key], findings, raw=raw, now_ms=now_ms)
        self._metrics.events_dropped.set(self._events.dropped_total)
        self._forget(services)
        return counts

    def remember(self, memory: Memory, unreadable: Collection[str]) -> None:
        """Take a memory that was read, or a fresh one, for what is stored: only what differs is worth a checkpoint."""
        for row, service in enumerate(memory.services):
            if service not in unreadable:
                self._checkpoints.wrote(service, codec.encode_learned(memory, row))

    def checkpoint(
        self, memory: Memory, services: Sequence[Service], now_ms: int, *, all_of_them: bool = False
    ) -> None:
        """Write the checkpoints that are due."""
        uids = {service.key: service.uid for service in services}
        for service, text in self._checkpoints.due(memory, now_ms, all_of_them=all_of_them):
            if service in uids:
                self._begin(service, "checkpoint", self._checkpoint(service, uids[service], text), now_ms)

    async def settle(self, limit_s: float) -> None:
        """Wait for the writes under way, for a while, then cancel them."""
        if self._tasks:
            _, late = await asyncio.wait(list(self._tasks.values()), timeout=limit_s)
            for task in late:
                task.cancel()

    def _tell_service(
        self, judged: Judged, row: int, counts: Counts, findings: Findings, *, raw: Object, now_ms: int
    ) -> bool:
        """Tell of one service; returns whether its status had to be rendered."""
        service = judged.fleet.services[row]
        pods_here, refused = judged.pods.get(service.key, ()), self._acting.refused(service.key)
        problems = problems_of(service, pods_here, findings, judged.foreign, refused)
        told = gist(judged, row, counts, problems, findings.attained)
        unsettled = told != self._settled.get(service.uid)
        if unsettled:
            view = view_of(judged, row, counts, problems, findings.attained)
            # Not settled until written: a change that is taken back meanwhile is a change to write, too.
            self._settled.pop(service.uid, None)
            if self._tell_status(judged, row, view, raw, now_ms):
                self._settled[service.uid] = told
        self._tell_rest(judged, row, counts, now_ms)
        return unsettled

    def _tell_status(self, judged: Judged, row: int, view: View, raw: Object, now_ms: int) -> bool:
        """Write the status if it is due; returns whether nothing is left to tell."""
        service = judged.fleet.services[row]
        after = status(view, codec.encode_safety(judged.memory, row))
        stored = raw.get("status", {})
        if self._statuses.due(service.uid, stored, after, now_ms):
            before = self._statuses.before(service.uid, stored)
            version = max(int(raw["metadata"]["resourceVersion"]), self._versions.get(service.uid, 0))
            write = self._status(service, version, dated(before, after, _now()), before, now_ms)
            self._begin(service.key, "status", write, now_ms)
        return self._statuses.same(service.uid, stored, after)

    def _tell_rest(self, judged: Judged, row: int, counts: Counts, now_ms: int) -> None:
        service = judged.fleet.services[row]
        wanted = int(judged.decisions.replicas_serving[row])
        fleet, spec = judged.fleet.spec, service.spec
        # An Interactive service may not ask for 0: the API server would refuse, and the decision is not a wish.
        differs = spec is not None and spec.replicas != wanted and (wanted > 0 or fleet.batch_class[row])
        if differs and fleet.mode[row] == Mode.AUTO and not service.blocked:
            self._begin(service.key, "scale", self._scale(service, wanted), now_ms)
        # Of a budget without pods Kubernetes complains again and again: of 10,000 it wrote 200 events a minute.
        if counts.total > 0 and service.key not in self._budgets and service.spec is not None:
            self._begin(service.key, "budget", self._budget(service), now_ms)
        for event in self._events.admit(service.key, self._acting.take_events(service.key), now_ms):
            self._say(service, event, now_ms)

    def _say(self, service: Service, event: Event, now_ms: int) -> None:
        self._begin(service.key, f"event {event.reason}", self._event(service, event), now_ms)

    # --- the writes --------------------------------------------------------------------------------------------------

    async def _status(self, service: Service, version: int, after: Object, before: Object, now_ms: int) -> None:
        answer = await apply.apply_status(self._kube, service.key, str(version), after)
        self._versions[service.uid] = int(answer["metadata"]["resourceVersion"])
        self._statuses.wrote(service.uid, after, now_ms)
        self._metrics.status_writes.inc()
        if before.get("desiredReplicas") != after["desiredReplicas"]:
            self._metrics.decisions.labels(*service.key.split("/")).inc()
        for event in self._events.admit(service.key, changes(before, after), now_ms):
            self._say(service, event, now_ms)

    async def _scale(self, service: Service, replicas: int) -> None:
        await apply.set_scale(self._kube, service.key, replicas)

    async def _budget(self, service: Service) -> None:
        namespace, _, name = service.key.partition("/")
        await apply.apply_disruption_budget(self._kube, pods.disruption_budget(namespace, name, service.uid))

    async def _event(self, service: Service, event: Event) -> None:
        name = f"{service.key.partition('/')[2]}.{secrets.token_hex(8)}"
        made = event_object(
            service.key, service.uid, event, name=name, wall_micro=_now_micro(), instance=self._instance
        )
        await apply.create_event(self._kube, made)

    async def _checkpoint(self, service: str, uid: str, text: str) -> None:
        owner = pods.owner(service.partition("/")[2], uid)
        await apply.apply_checkpoint(self._kube, service, owner, text)
        self._checkpoints.wrote(service, text)

    # --- bookkeeping -------------------------------------------------------------------------------------------------

    def _begin(self, service: str, what: str, write: Coroutine[None, None, None], now_ms: int) -> None:
        key = (service, what)
        if key in self._tasks or now_ms < self._not_before.get(key, now_ms):
            write.close()
            return
        self._tasks[key] = asyncio.create_task(self._guarded(key, write, now_ms), name=f"tell {service} {what}")
        self._tasks[key].add_done_callback(lambda _: self._tasks.pop(key, None))

    async def _guarded(self, key: tuple[str, str], write: Coroutine[None, None, None], now_ms: int) -> None:
        try:
            async with self._slots:
                await write
        except ActError as error:
            self._not_before[key] = now_ms + RETRY_MS
            log.warning("not told", extra={"service": key[0], "what": key[1], "error": str(error)})
        except Exception:
            self._not_before[key] = now_ms + RETRY_MS
            log.exception("telling failed", extra={"service": key[0], "what": key[1]})
        else:
            self._not_before.pop(key, None)

    def _forget(self, services: Iterable[Service]) -> None:
        alive = {service.uid: service.key for service in services}
        if self._settled.keys() <= alive.keys() and self._versions.keys() <= alive.keys():
            return
        self._statuses.keep(alive)
        self._events.keep(alive.values())
        self._checkpoints.keep(alive.values())
        for kept in (self._settled, self._versions):
            for uid in kept.keys() - alive.keys():
                del kept[uid]


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _now_micro() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
