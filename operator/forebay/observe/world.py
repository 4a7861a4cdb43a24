"""OBSERVE: the pods and nodes as the tick sees them: what the watch told, and what our own writes answered before it.

Without the second half a tick that comes before the watch would judge pods as they were before the last tick's writes,
and might remove a second replica for the same reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.observe.cluster import Change
from forebay.observe.pods import ForeignPod, GatewayPod, Node, ReplicaPod, read_node, read_pod

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from forebay.observe.cluster import Object

# A pod that we created but the watch has not shown for this long was deleted in between, and is forgotten.
UNSEEN_MS = 30_000


class World:
    """Pods and nodes, kept by two reflectors and by `note`.

    Attributes
    ----------
    replicas : dict
        service to uid to ReplicaPod.
    foreign, gateways, nodes : dict
        uid to ForeignPod, GatewayPod, Node.
    """

    def __init__(self, operator_namespace: str, watch_namespace: str = "") -> None:
        self.replicas: dict[str, dict[str, ReplicaPod]] = {}
        self.foreign: dict[str, ForeignPod] = {}
        self.gateways: dict[str, GatewayPod] = {}
        self.nodes: dict[str, Node] = {}
        self._namespaces = operator_namespace, watch_namespace
        self._service_of: dict[str, str] = {}
        self._unseen: dict[str, int] = {}  # uid of a noted pod to when it was noted

    def prune_pod(self, raw: Object) -> Object:
        """Keep of a pod what matters; for a Reflector."""
        return {"uid": raw["metadata"]["uid"], "read": read_pod(raw, *self._namespaces)}

    def prune_node(self, raw: Object) -> Object:
        """Keep of a node what matters; for a Reflector."""
        return {"uid": raw["metadata"]["uid"], "read": read_node(raw)}

    def on_pod(self, change: Change, kept: Object) -> None:
        """Take a change of a pod."""
        uid, read = kept["uid"], kept["read"]
        self._unseen.pop(uid, None)
        if change is Change.DELETED:
            self._forget(uid)
        else:
            self._put(uid, read)

    def on_node(self, change: Change, kept: Object) -> None:
        """Take a change of a node."""
        if change is Change.DELETED:
            self.nodes.pop(kept["uid"], None)
        else:
            self.nodes[kept["uid"]] = kept["read"]

    def note(self, raw: Object, now_ms: int) -> None:
        """Take the pod that one of our own writes answered; the watch will tell the same, or more, later."""
        uid = raw["metadata"]["uid"]
        read = read_pod(raw, *self._namespaces)
        if uid not in self._service_of:
            self._unseen[uid] = now_ms
        self._put(uid, read)

    def forget_unseen(self, now_ms: int, seen: Collection[str]) -> None:
        """Forget noted pods that the watch should have shown by now and has not; `seen` are the uids that it shows."""
        for uid, noted_ms in list(self._unseen.items()):
            if now_ms - noted_ms >= UNSEEN_MS:
                del self._unseen[uid]
                if uid not in seen:
                    self._forget(uid)

    def scrape_targets(self) -> dict[str, str]:
        """Return the replicas that can be asked: uid to IP."""
        return {pod.uid: pod.ip for pods in self.replicas.values() for pod in pods.values() if pod.ip}

    def gateway_targets(self) -> dict[str, str]:
        """Return the gateways that can be asked: uid to IP."""
        return {uid: pod.ip for uid, pod in self.gateways.items() if pod.ip}

    def essence(self, uid: str) -> tuple[object, ...] | None:
        """Return of a replica what a decision may hang on at once; None: there is no such replica."""
        pod = self.pods_of(self._service_of.get(uid, "")).get(uid)
        return None if pod is None else (pod.state, pod.ready, pod.deleting, pod.failure, pod.unschedulable)

    def pods_of(self, service: str) -> Mapping[str, ReplicaPod]:
        """Return a service's replicas by uid."""
        return self.replicas.get(service, {})

    def _put(self, uid: str, read: ReplicaPod | ForeignPod | GatewayPod | None) -> None:
        if isinstance(read, ReplicaPod):
            old = self.pods_of(self._service_of.get(uid, "")).get(uid)
            if old is not None and int(old.version) > int(read.version):
                return  # the watch is behind our own write
        self._forget(uid)
        match read:
            case ReplicaPod():
                self.replicas.setdefault(read.service, {})[uid] = read
                self._service_of[uid] = read.service
            case ForeignPod():
                self.foreign[uid] = read
            case GatewayPod():
                self.gateways[uid] = read
            case None:
                pass

    def _forget(self, uid: str) -> None:
        self.foreign.pop(uid, None)
        self.gateways.pop(uid, None)
        service = self._service_of.pop(uid, None)
        if service is not None:
            del self.replicas[service][uid]
            if not self.replicas[service]:
                del self.replicas[service]
