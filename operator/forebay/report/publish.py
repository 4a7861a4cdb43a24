"""TELL: when a status or an event is worth a write. Writing is for who calls; nothing here knows a client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from forebay.wire.names import API_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forebay.report.render import Event

Object: TypeAlias = dict[str, Any]

# A status write costs the API server 2.3 ms of CPU: 1,000 services at once a tick would keep two cores busy.
MIN_INTERVAL_MS = 10_000
# A person reads an event once; the same one again within this time says nothing new.
EVENT_REPEAT_MS = 600_000
EVENT_BURST = 10  # a service's events at once; beyond that one each EVENT_REFILL_MS, so that a storm costs nobody
EVENT_REFILL_MS = 30_000
_COUNTS = ("observedGeneration", "replicas", "readyReplicas", "warmReplicas", "selector")


def essence(status: Object) -> tuple[object, ...]:
    """Reduce a status to what is worth a write: numbers and reasons, not the words and times around them."""
    told = tuple((c["type"], c["status"], c["reason"]) for c in status.get("conditions", ()))
    return (*urgent(status), *(status.get(name) for name in _COUNTS), told)


def urgent(status: Object) -> tuple[object, ...]:
    """Reduce a status to what must be written at once: what was decided, and the memory of it."""
    return status.get("desiredReplicas"), status.get("memory")


def wordless(status: Object) -> Object:
    """Leave out the last decision's prose, which nobody compares and which is most of a status."""
    return {name: of for name, of in status.items() if name != "lastDecision"}


def dated(before: Object, after: Object, wall: str) -> Object:
    """Complete a rendered status with its times: a condition that did not turn keeps its own.

    Parameters
    ----------
    before
        The status as it was last written.
    after
        From `render.status`.
    wall
        Now, as Kubernetes spells it.
    """
    since = {(c["type"], c["status"]): c.get("lastTransitionTime", wall) for c in before.get("conditions", ())}
    turned = [c | {"lastTransitionTime": since.get((c["type"], c["status"]), wall)} for c in after["conditions"]]
    scaled = before.get("desiredReplicas") not in {None, after["desiredReplicas"]}
    last = wall if scaled else before.get("lastScaleTime")
    return after | {"conditions": turned} | ({"lastScaleTime": last} if last else {})


@dataclass(slots=True)
class _Written:
    status: Object
    at_ms: int


class StatusGate:
    """Lets a status through when something changed, and not too often."""

    def __init__(self) -> None:
        self._written: dict[str, _Written] = {}  # uid of the service

    def before(self, uid: str, stored: Object) -> Object:
        """Return the status as last written by us, or as stored where we have written none."""
        written = self._written.get(uid)
        return written.status if written is not None else stored

    def due(self, uid: str, stored: Object, after: Object, now_ms: int) -> bool:
        """Say whether `after` should be written now.

        Parameters
        ----------
        uid
            Of the service.
        stored
            What the API server holds, as far as known.
        after
            From `render.status`.
        now_ms
            The loop's clock.
        """
        before = self.before(uid, stored)
        if self.same(uid, stored, after):
            return False
        written = self._written.get(uid)
        return written is None or urgent(before) != urgent(after) or now_ms - written.at_ms >= MIN_INTERVAL_MS

    def same(self, uid: str, stored: Object, after: Object) -> bool:
        """Say whether there is nothing left to write."""
        return essence(self.before(uid, stored)) == essence(after)

    def wrote(self, uid: str, status: Object, now_ms: int) -> None:
        """Remember a write that the API server has taken."""
        self._written[uid] = _Written(wordless(status), now_ms)

    def keep(self, uids: Iterable[str]) -> None:
        """Forget all services but these."""
        for uid in self._written.keys() - set(uids):
            del self._written[uid]


class EventGate:
    """Lets an event through unless it was said lately, or its service talks too much."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], int] = {}
        self._tokens: dict[str, tuple[int, int]] = {}  # service to (tokens x EVENT_REFILL_MS, as of)
        self.dropped_total = 0

    def admit(self, service: str, events: Iterable[Event], now_ms: int) -> list[Event]:
        """Return those of the events that are to be written."""
        admitted = []
        for event in events:
            if now_ms - self._said.get((service, event.reason), now_ms - EVENT_REPEAT_MS) < EVENT_REPEAT_MS:
                continue
            if not self._take(service, now_ms):
                self.dropped_total += 1
                continue
            self._said[service, event.reason] = now_ms
            admitted.append(event)
        return admitted

    def _take(self, service: str, now_ms: int) -> bool:
        full = EVENT_BURST * EVENT_REFILL_MS
        level, as_of = self._tokens.get(service, (full, now_ms))
        level = min(full, level + now_ms - as_of)
        taken = level >= EVENT_REFILL_MS
        self._tokens[service] = (level - EVENT_REFILL_MS if taken else level, now_ms)
        return taken

    def keep(self, services: Iterable[str]) -> None:
        """Forget all services but these."""
        alive = set(services)
        self._said = {key: at for key, at in self._said.items() if key[0] in alive}
        self._tokens = {key: level for key, level in self._tokens.items() if key in alive}


def event_object(service: str, uid: str, event: Event, *, name: str, wall_micro: str, instance: str) -> Object:
    """Write an event as events.k8s.io/v1 has it.

    Parameters
    ----------
    service, uid
        What it is about.
    event
        What to say.
    name
        Of the event object; unique.
    wall_micro
        Now, in microseconds, as Kubernetes spells it.
    instance
        Which process says it.
    """
    namespace, _, short = service.partition("/")
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "eventTime": wall_micro,
        "reportingController": "forebay.dev/operator",
        "reportingInstance": instance,
        "action": "Scaling",
        "reason": event.reason,
        "type": "Warning" if event.warning else "Normal",
        "note": event.note[:1024],
        "regarding": {
            "apiVersion": API_VERSION, "kind": "InferenceService", "namespace": namespace, "name": short, "uid": uid,
        },
    }  # fmt: skip
