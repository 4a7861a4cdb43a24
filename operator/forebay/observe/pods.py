"""OBSERVE: what is read of a pod and of a node, once a change, so that a tick reads fields and no JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from forebay.core.reasons import Reason
from forebay.wire import names
from forebay.wire.lifecycle import ReplicaState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.observe.cluster import Object

# A container that waits for one of these does not start by waiting longer; the kubelet tries on with growing pauses.
IMAGE_FAILURES = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
START_FAILURES = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
MAX_MESSAGE = 256


@dataclass(frozen=True, slots=True)
class ReplicaPod:
    """A pod of ours that is a replica."""

    uid: str
    name: str
    service: str  # namespace/name
    state: ReplicaState  # as labelled; a label that is none of ours reads as STARTING
    ip: str  # empty until there is one
    node: str  # empty until scheduled
    ready: bool
    deleting: bool
    failure: Reason  # NONE while it may still work
    failure_message: str
    unschedulable: bool
    revision: str
    resource: str  # the extended resource that it holds, empty without one
    gpus: int
    created_ms: int  # wall clock
    version: str  # resourceVersion

    @property
    def failed(self) -> bool:
        """Say whether it will never serve (again)."""
        return self.failure is not Reason.NONE

    @property
    def leaving(self) -> bool:
        """Say whether its farewell has begun."""
        return self.deleting or self.state is ReplicaState.DRAINING


@dataclass(frozen=True, slots=True)
class ForeignPod:
    """A pod of others that holds devices."""

    node: str
    resource: str
    gpus: int


@dataclass(frozen=True, slots=True)
class GatewayPod:
    """A pod of a gateway."""

    ip: str


@dataclass(frozen=True, slots=True)
class Node:
    """A node, as far as devices go."""

    name: str
    labels: Mapping[str, str]
    devices: Mapping[str, int] = field(default_factory=dict)  # extended resource to healthy devices
    usable: bool = True  # ready and not cordoned
    lost_since_ms: int | None = None  # wall clock; since when it is not ready


def read_pod(
    raw: Object, operator_namespace: str, watch_namespace: str = ""
) -> ReplicaPod | ForeignPod | GatewayPod | None:
    """Read what matters of a pod; None: nothing does.

    Parameters
    ----------
    raw
        The pod as JSON.
    operator_namespace
        Where gateways are ours.
    watch_namespace
        Where replicas are ours; elsewhere they are another Forebay's. Empty: everywhere.
    """
    meta = raw["metadata"]
    labels = meta.get("labels", {})
    ours = not watch_namespace or meta["namespace"] == watch_namespace
    if ours and labels.get(names.LABEL_MANAGED_BY) == "forebay" and names.LABEL_SERVICE in labels:
        return _replica(raw, labels)
    status = raw.get("status", {})
    if labels.get(names.LABEL_COMPONENT) == names.COMPONENT_GATEWAY and meta["namespace"] == operator_namespace:
        return GatewayPod(status.get("podIP", "")) if not _ended(status) else None
    resource, gpus = _devices(raw["spec"])
    node = raw["spec"].get("nodeName", "")
    return ForeignPod(node, resource, gpus) if gpus and node and not _ended(status) else None


def _replica(raw: Object, labels: Mapping[str, str]) -> ReplicaPod:
    meta, status = raw["metadata"], raw.get("status", {})
    conditions = {c["type"]: c for c in status.get("conditions", ())}
    scheduled = conditions.get("PodScheduled", {})
    failure, message = _failure(status)
    resource, gpus = _devices(raw["spec"])
    return ReplicaPod(
        uid=meta["uid"],
        name=meta["name"],
        service=f"{meta['namespace']}/{labels[names.LABEL_SERVICE]}",
        state=_state(labels.get(names.LABEL_STATE, "")),
        ip=status.get("podIP", ""),
        node=raw["spec"].get("nodeName", ""),
        ready=conditions.get("Ready", {}).get("status") == "True",
        deleting=bool(meta.get("deletionTimestamp")),
        failure=failure,
        failure_message=message,
        unschedulable=scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable",
        revision=meta.get("annotations", {}).get(names.ANNOTATION_REVISION, ""),
        resource=resource,
        gpus=gpus,
        created_ms=wall_ms(meta["creationTimestamp"]),
        version=meta["resourceVersion"],
    )


def _state(label: str) -> ReplicaState:
    try:
        return ReplicaState(label)
    except ValueError:
        return ReplicaState.STARTING


def _ended(status: Mapping[str, Any]) -> bool:
    return status.get("phase") in {"Failed", "Succeeded"}


def _failure(status: Mapping[str, Any]) -> tuple[Reason, str]:
    for container in status.get("containerStatuses", ()):
        waiting = container.get("state", {}).get("waiting", {})
        told = f"{waiting.get('reason', '')}: {waiting.get('message', '')}"[:MAX_MESSAGE]
        if waiting.get("reason") in IMAGE_FAILURES:
            return Reason.IMAGE_PULL_FAILED, told
        if waiting.get("reason") in START_FAILURES:
            return Reason.ENGINE_FAILED, told
    if not _ended(status):
        return Reason.NONE, ""
    return Reason.ENGINE_FAILED, _last_words(status)


def _last_words(status: Mapping[str, Any]) -> str:
    if status.get("reason"):  # Evicted, NodeLost, UnexpectedAdmissionError: the kubelet's own words
        return f"{status['reason']}: {status.get('message', '')}"[:MAX_MESSAGE]
    for container in status.get("containerStatuses", ()):
        ended = container.get("state", {}).get("terminated")
        if ended:
            code, reason = ended.get("exitCode"), ended.get("reason", "")
            return f"container {container['name']} ended with {code} ({reason}) {ended.get('message', '')}"[
                :MAX_MESSAGE
            ]
    return "the pod ended"


def _devices(spec: Mapping[str, Any]) -> tuple[str, int]:
    """Name the extended resource that a pod requests, and how many. A pod of several kinds counts for its largest."""
    together: dict[str, int] = {}
    for container in spec.get("containers", ()):
        for resource, amount in _requests(container):
            together[resource] = together.get(resource, 0) + amount
    for container in spec.get("initContainers", ()):
        for resource, amount in _requests(container):
            together[resource] = max(together.get(resource, 0), amount)
    return max(together.items(), key=lambda item: (item[1], item[0]), default=("", 0))


def _requests(container: Mapping[str, Any]) -> list[tuple[str, int]]:
    asked = container.get("resources", {}).get("requests", {})
    return [(resource, int(amount)) for resource, amount in asked.items() if _is_device(resource)]


def _is_device(resource: str) -> bool:
    # cpu, memory, hugepages-2Mi and the like have no domain; kubernetes.io/ is the cluster's own.
    return "/" in resource and not resource.startswith("kubernetes.io/")


def read_node(raw: Object) -> Node:
    """Read a node; allocatable counts healthy devices only, which is what the kubelet would hand out."""
    status = raw.get("status", {})
    ready: Mapping[str, Any] = next((c for c in status.get("conditions", ()) if c["type"] == "Ready"), {})
    is_ready = ready.get("status") == "True"
    return Node(
        name=raw["metadata"]["name"],
        labels=raw["metadata"].get("labels", {}),
        devices={name: int(count) for name, count in status.get("allocatable", {}).items() if _is_device(name)},
        usable=is_ready and not raw.get("spec", {}).get("unschedulable", False),
        lost_since_ms=None if is_ready else wall_ms(ready.get("lastTransitionTime", "1970-01-01T00:00:00Z")),
    )


def wall_ms(text: str) -> int:
    """Milliseconds since 1970 of a Kubernetes timestamp."""
    return round(datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp() * 1000)
