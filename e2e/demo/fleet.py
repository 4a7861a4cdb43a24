"""What became of the fleet during the traffic: every replica's states in time, from a watch on its pod's label."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from forebay.observe.cluster import Change
from forebay.wire.lifecycle import ReplicaState
from forebay.wire.names import LABEL_SERVICE, LABEL_STATE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from e2e.demo.records import Record

FAILED = "failed"


@dataclass(frozen=True)
class Span:
    """One replica in one state. Times are milliseconds since the start of the traffic; before it they are negative."""

    service: str
    pod: str
    state: str
    gpus: int
    from_ms: int
    until_ms: int | None  # None: still so


@dataclass(frozen=True)
class Promotion:
    """A warm replica that began to serve, and when its first answer's first byte reached a client."""

    service: str
    pod: str
    at_ms: int
    took_ms: int


@dataclass(frozen=True)
class _Replica:
    service: str
    pod: str
    state: str
    gpus: int


@dataclass
class FleetLog:
    """Fed by a reflector of pods; never asks a clock itself."""

    resource: str
    spans: list[Span] = field(default_factory=list)
    _now: dict[str, tuple[_Replica, int]] = field(default_factory=dict)  # uid to what it is, and since when
    _pods: dict[str, str] = field(default_factory=dict)  # address to the pod that last had it

    def on_pod(self, change: Change, pod: dict[str, Any], at_ms: int) -> bool:
        """Take one change of one replica's pod; say whether it changed anything that is told here."""
        uid = pod["metadata"]["uid"]
        if address := pod.get("status", {}).get("podIP"):
            self._pods[address] = pod["metadata"]["name"]
        replica = None if change is Change.DELETED else _read(pod, self.resource)
        before = self._now.get(uid)
        if before is not None and replica == before[0]:
            return False
        if before is not None:
            self.spans.append(_span(*before, until_ms=at_ms))
            del self._now[uid]
        if replica is not None:
            self._now[uid] = (replica, at_ms)
        return True

    def shift(self, by_ms: int) -> None:
        """Move all times, when the moment from which they count is another one."""
        self.spans = [replace(s, from_ms=s.from_ms + by_ms, until_ms=(s.until_ms or 0) + by_ms) for s in self.spans]
        self._now = {uid: (replica, since_ms + by_ms) for uid, (replica, since_ms) in self._now.items()}

    def counts(self, service: str) -> Counter[str]:
        """How many replicas of a service are in which state now."""
        return Counter(replica.state for replica, _ in self._now.values() if replica.service == service)

    def all_spans(self) -> list[Span]:
        """Those that ended and those that last, by their beginning."""
        lasting = [_span(replica, since_ms, until_ms=None) for replica, since_ms in self._now.values()]
        return sorted([*self.spans, *lasting], key=lambda span: (span.from_ms, span.pod))

    def pod_at(self, served_by: str) -> str:
        """Name the pod that answered, from the address that the gateway gave."""
        return self._pods.get(served_by.rpartition(":")[0], served_by)


def promotions(log: FleetLog, records: Sequence[Record]) -> list[Promotion]:
    """Find how long each promoted replica took to answer.

    Measured from the moment at which a watch on pods showed the label turn from warm to serving, until the headers of
    the first answer from that replica reached a client. A replica that got no request has no such time.
    """
    first_ms: dict[str, list[int]] = {}
    for record in records:
        if record.served_by is not None and record.headers_ms is not None:
            first_ms.setdefault(log.pod_at(record.served_by), []).append(record.sent_at_ms + record.headers_ms)
    was: dict[str, str] = {}
    found = []
    for span in log.all_spans():
        if was.get(span.pod) == ReplicaState.WARM and span.state == ReplicaState.SERVING and span.from_ms >= 0:
            after = [ms for ms in first_ms.get(span.pod, ()) if ms >= span.from_ms]
            if after:
                found.append(Promotion(span.service, span.pod, span.from_ms, min(after) - span.from_ms))
        was[span.pod] = span.state
    return found


def _read(pod: dict[str, Any], resource: str) -> _Replica:
    meta = pod["metadata"]
    state = meta["labels"].get(LABEL_STATE, ReplicaState.STARTING.value)
    if meta.get("deletionTimestamp"):
        state = ReplicaState.DRAINING.value
    if pod.get("status", {}).get("phase") == "Failed":
        state = FAILED
    service = f"{meta['namespace']}/{meta['labels'][LABEL_SERVICE]}"
    return _Replica(service, meta["name"], state, _gpus(pod, resource))


def _span(replica: _Replica, from_ms: int, *, until_ms: int | None) -> Span:
    return Span(replica.service, replica.pod, replica.state, replica.gpus, from_ms, until_ms)


def _gpus(pod: dict[str, Any], resource: str) -> int:
    """Count the GPUs that a pod holds; one that was not given a node holds none yet."""
    if not pod["spec"].get("nodeName"):
        return 0
    limits = [container.get("resources", {}).get("limits", {}) for container in pod["spec"]["containers"]]
    return sum(int(limit.get(resource, 0)) for limit in limits)
