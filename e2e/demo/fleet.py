"""What became of the fleet during the traffic: every replica's states in time, from a watch on its pod's label."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from forebay.observe.cluster import Change
from forebay.wire.lifecycle import ReplicaState
from forebay.wire.names import LABEL_SERVICE, LABEL_STATE

FAILED, GONE, PROMOTED = "failed", "gone", "promoted"
_PROMOTION = (ReplicaState.WARM.value, ReplicaState.SERVING.value)


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

    def on_pod(self, change: Change, pod: dict[str, Any], at_ms: int) -> str | None:
        """Take one change of one replica's pod; name what it has become, None when that is what it was before.

        A warm replica that serves from now on has become PROMOTED, one that is no more GONE.
        """
        uid = pod["metadata"]["uid"]
        replica = None if change is Change.DELETED else _read(pod, self.resource)
        before = self._now.get(uid)
        if before is not None and replica == before[0]:
            return None
        if before is not None:
            self.spans.append(_span(*before, until_ms=at_ms))
            del self._now[uid]
        if replica is None:
            return GONE
        self._now[uid] = (replica, at_ms)
        promoted = before is not None and (before[0].state, replica.state) == _PROMOTION
        return PROMOTED if promoted else replica.state

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
