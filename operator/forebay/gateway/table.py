"""The service table: which models exist, under which names, with which replicas. Fed by reflectors (or by a test)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from forebay.gateway.envoy import Host
from forebay.observe.cluster import Change
from forebay.routing.service import ServiceSpec
from forebay.wire.lifecycle import ReplicaState
from forebay.wire.names import LABEL_SERVICE, LABEL_STATE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forebay.gateway.desk import Desk
    from forebay.gateway.endpoints import EndpointsFile
    from forebay.gateway.settings import Ports
    from forebay.observe.cluster import Object

# Envoy learns of a new endpoint in about 4 ms; a request that is sent there before gets a 503. A replica that has been
# in the file since it started has this behind it long before it serves.
SETTLE_MS = 250
# Without a policy object the shipped policies' ranks hold (policies/): somebody waits, or nobody does.
PRIORITY_OF_CLASS = {"Interactive": 100, "Batch": 10}
POLICY_OF_CLASS = {"Interactive": "interactive-chat", "Batch": "batch"}


@dataclass(frozen=True, slots=True)
class Known:
    """One InferenceService, as far as the gateway cares."""

    key: str
    name: str
    created: str
    names: tuple[str, ...]  # what clients may write into "model", its own name first
    policy: str
    priority_default: int
    batch_max: int
    prompt_tokens_max: int

    @property
    def created_s(self) -> int:
        """The creation time in seconds since 1970."""
        return int(datetime.fromisoformat(self.created).timestamp()) if self.created else 0


@dataclass(frozen=True, slots=True)
class Pod:
    """One replica's pod."""

    uid: str
    namespace: str
    service: str
    ip: str
    serving: bool  # labelled so, Ready, and not being deleted
    listed_ms: int  # since when its address has been in the endpoints file

    @property
    def key(self) -> str:
        """The key of its service."""
        return f"{self.namespace}/{self.service}"


def prune_service(raw: Object) -> Object:
    """Keep of an InferenceService what the table reads."""
    meta, spec = raw["metadata"], raw["spec"]
    return {
        "metadata": {k: meta[k] for k in ("name", "namespace", "uid", "creationTimestamp") if k in meta},
        "spec": {k: spec[k] for k in ("model", "engine", "class", "sloPolicyRef") if k in spec},
    }


def prune_pod(raw: Object) -> Object:
    """Keep of a pod what the table reads."""
    meta, status = raw["metadata"], raw.get("status", {})
    return {
        "metadata": {k: meta[k] for k in ("name", "namespace", "uid", "labels", "deletionTimestamp") if k in meta},
        "status": {
            "podIP": status.get("podIP"),
            "phase": status.get("phase"),
            "ready": any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ())),
        },
    }


def prune_policy(raw: Object) -> Object:
    """Keep of an SLOPolicy what the table reads."""
    return {
        "metadata": {"name": raw["metadata"]["name"]},
        "spec": {"priority": raw["spec"].get("priority", PRIORITY_OF_CLASS["Interactive"])},
    }


class Table:
    """Everything the gateway knows of the cluster; tells the book and the endpoints file what changed."""

    def __init__(self, desk: Desk, endpoints: EndpointsFile, ports: Ports, now_ms: Callable[[], int]) -> None:
        self._desk, self._endpoints, self._ports, self._now_ms = desk, endpoints, ports, now_ms
        self._services: dict[str, Known] = {}
        self._pods: dict[str, Pod] = {}
        self._policies: dict[str, int] = {}
        self._by_model: dict[str, Known] | None = None  # None: to be made anew
        self._promoted = asyncio.Event()
        self._keys_of: dict[str, set[str]] = {}  # a service's name to the services that bear it in their namespaces
        self._pods_of: dict[str, set[str]] = {}  # a service's name to the pods of all that bear it

    # --- what changes -----------------------------------------------------------------------------------------------

    def on_service(self, change: Change, obj: Object) -> None:
        """Take a change of an InferenceService."""
        known = _known(obj)
        self._by_model = None
        if change is Change.DELETED:
            self._services.pop(known.key, None)
            self._keys_of.get(known.name, set()).discard(known.key)
            self._desk.drop_service(known.key)
        else:
            self._services[known.key] = known
            self._keys_of.setdefault(known.name, set()).add(known.key)
            self._desk.set_service(self._spec(known))
        # The oldest keeps a name: a namesake's pods may have won or lost their place under /svc/.
        for uid in self._pods_of.get(known.name, ()):
            self._tell(self._pods[uid])

    def on_policy(self, change: Change, obj: Object) -> None:
        """Take a change of an SLOPolicy."""
        name = obj["metadata"]["name"]
        if change is Change.DELETED:
            self._policies.pop(name, None)
        else:
            self._policies[name] = obj["spec"]["priority"]
        for known in self._services.values():
            if known.policy == name:
                self._desk.set_service(self._spec(known))

    def on_pod(self, change: Change, obj: Object) -> None:
        """Take a change of a replica's pod."""
        meta, status = obj["metadata"], obj["status"]
        uid, labels = meta["uid"], meta.get("labels", {})
        ended = change is Change.DELETED or status["phase"] in {"Succeeded", "Failed"}
        before = self._pods.pop(uid, None)
        if before is not None:
            self._pods_of[before.service].discard(uid)
        if ended or not status["podIP"] or LABEL_SERVICE not in labels:
            self._endpoints.put(uid, None)
            if before is not None:
                self._desk.drop_replica(before.key, uid)
            return
        listed_ms = before.listed_ms if before is not None and before.ip == status["podIP"] else self._now_ms()
        serving = (
            labels.get(LABEL_STATE) == ReplicaState.SERVING and status["ready"] and "deletionTimestamp" not in meta
        )
        pod = Pod(uid, meta["namespace"], labels[LABEL_SERVICE], status["podIP"], serving, listed_ms)
        self._pods[uid] = pod
        if serving and (before is None or not before.serving):
            self._promoted.set()
        self._pods_of.setdefault(pod.service, set()).add(uid)
        self._tell(pod)

    def _tell(self, pod: Pod) -> None:
        known = self._services.get(pod.key)
        by_path = known is not None and pod.serving and self.of_path(pod.service) is known
        self._endpoints.put(pod.uid, Host(pod.ip, self._ports.engine, pod.service if by_path else None))
        if known is None:
            return  # told once the service is known
        settled_in_ms = pod.listed_ms + SETTLE_MS - self._now_ms()
        routable = pod.serving and settled_in_ms <= 0
        self._desk.set_replica(pod.key, pod.uid, f"{pod.ip}:{self._ports.engine}", routable=routable)
        if pod.serving and not routable:
            asyncio.get_running_loop().call_later(settled_in_ms / 1_000, self._settled, pod.uid)

    def _settled(self, uid: str) -> None:
        pod = self._pods.get(uid)
        if pod is not None:
            self._tell(pod)

    def _spec(self, known: Known) -> ServiceSpec:
        priority = self._policies.get(known.policy, known.priority_default)
        return ServiceSpec(known.key, priority, known.batch_max, known.prompt_tokens_max)

    # --- what is asked ----------------------------------------------------------------------------------------------

    def of_model(self, model: str) -> Known | None:
        """Find the service behind a name that a client wrote; None: nobody serves it."""
        return self._names().get(model)

    def of_path(self, name: str) -> Known | None:
        """Find the service behind /svc/NAME/; of several namesakes the oldest."""
        namesakes = (self._services[key] for key in self._keys_of.get(name, ()))
        return min(namesakes, key=_age_order, default=None)

    def models(self) -> Iterator[tuple[str, Known]]:
        """Yield every name that a client may write, in order."""
        yield from sorted(self._names().items(), key=lambda row: row[0])

    def serving(self) -> Iterator[Pod]:
        """Yield the pods that serve."""
        return (pod for pod in self._pods.values() if pod.serving)

    async def wait_for_promotion(self, timeout_s: float) -> None:
        """Return when a replica began to serve since the last call, or after a time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._promoted.wait()
        except TimeoutError:
            pass
        self._promoted.clear()

    def _names(self) -> dict[str, Known]:
        if self._by_model is None:
            self._by_model = {}
            # The oldest object keeps a name, so that nobody takes another's traffic by creating something.
            for known in sorted(self._services.values(), key=_age_order):
                for name in known.names:
                    self._by_model.setdefault(name, known)
        return self._by_model


def _age_order(known: Known) -> tuple[str, str]:
    return (known.created, known.key)


def _known(obj: Object) -> Known:
    meta, spec = obj["metadata"], obj["spec"]
    model, engine = spec.get("model", {}), spec.get("engine", {})
    kind = spec.get("class", "Interactive")
    return Known(
        key=f"{meta['namespace']}/{meta['name']}",
        name=meta["name"],
        created=meta.get("creationTimestamp", ""),
        names=(model.get("servedName") or meta["name"], *model.get("aliases", ())),
        policy=spec.get("sloPolicyRef", {}).get("name") or POLICY_OF_CLASS.get(kind, ""),
        priority_default=PRIORITY_OF_CLASS.get(kind, 0),
        batch_max=engine.get("maxNumSeqs", 256),
        prompt_tokens_max=engine.get("maxModelLen", 8_192),
    )
