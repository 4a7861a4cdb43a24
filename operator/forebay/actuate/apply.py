"""ACT, second half: actions become API calls, in order, fenced and bounded; a failed one is decided anew."""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from forebay.actuate.client import APPLY, MERGE
from forebay.actuate.diff import Create, Delete, SetState
from forebay.actuate.errors import ActError, AlreadyThereError, ConflictError, GoneError
from forebay.wire import names
from forebay.wire.lifecycle import ReplicaState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from forebay.actuate.client import Kube
    from forebay.actuate.diff import Action

log = logging.getLogger(__name__)

Object: TypeAlias = dict[str, Any]

CONCURRENCY = 32  # the API server does 600 writes a second on two cores; more in flight only adds waiting
_OURS = {"fieldManager": names.FIELD_MANAGER}


@dataclass(frozen=True, slots=True)
class Result:
    """What became of an action: the pod as the server now has it, or why not."""

    action: Action
    pod: Object | None = None
    error: ActError | None = None


class Actuator:
    """Carries out actions through the fenced client."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._slots = asyncio.Semaphore(CONCURRENCY)

    async def carry_out(self, actions: Iterable[Action], manifest: Callable[[Create], Object]) -> list[Result]:
        """Carry out the actions of one service: first who serves and who waits, then who leaves and who comes.

        `manifest` makes the pod of a Create. Where a label could not be written nobody leaves: the successor may not be
        in its place. Nothing is raised: what fails is decided anew from what exists at the next tick.
        """
        every = list(actions)
        labels: list[Action] = [a for a in every if isinstance(a, SetState) and a.state is not ReplicaState.DRAINING]
        results = await self._at_once(labels, manifest)
        rest = [a for a in every if a not in labels]
        if any(result.error is not None for result in results):
            rest = [a for a in rest if isinstance(a, Create)]
        return results + await self._at_once(rest, manifest)

    async def _at_once(self, actions: list[Action], manifest: Callable[[Create], Object]) -> list[Result]:
        chains = [list(group) for _, group in itertools.groupby(actions, key=lambda action: action.name)]
        done = await asyncio.gather(*(self._chain(chain, manifest) for chain in chains))
        return [result for results in done for result in results]

    async def _chain(self, actions: list[Action], manifest: Callable[[Create], Object]) -> list[Result]:
        results: list[Result] = []
        for action in actions:
            async with self._slots:
                result = await self._one(action, manifest)
            results.append(result)
            if result.error is not None:
                break
        return results

    async def _one(self, action: Action, manifest: Callable[[Create], Object]) -> Result:
        try:
            match action:
                case Create():
                    return Result(action, pod=await self._create(action, manifest(action)))
                case SetState():
                    return Result(action, pod=await self._set_state(action))
                case Delete():
                    return Result(action, pod=await self._delete(action))
        except ActError as error:
            extra = {"action": type(action).__name__, "pod": action.name, "service": action.service}
            log.warning("an action failed", extra={**extra, "error": str(error)})
            return Result(action, error=error)

    async def _create(self, action: Create, pod: Object) -> Object | None:
        path = f"/api/v1/namespaces/{action.service.partition('/')[0]}/pods"
        try:
            return await self._kube.write("POST", path, pod, query=_OURS)
        except AlreadyThereError:
            return None  # made by us before a restart, or by the leader before us: the watch will show it

    async def _set_state(self, action: SetState) -> Object:
        body = {
            "metadata": {
                # Another pod of this name, or a pod changed since it was judged, is a conflict and not this replica.
                "uid": action.uid,
                "resourceVersion": action.version,
                "labels": {names.LABEL_STATE: action.state.value},
            }
        }
        return await self._kube.write("PATCH", pod_path(action), body, query=_OURS, content=MERGE)

    async def _delete(self, action: Delete) -> Object | None:
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": action.uid}}
        try:
            pod = await self._kube.write("DELETE", pod_path(action), body)
        except (GoneError, ConflictError):
            return None  # gone already; a namesake with another uid is not the pod that was judged
        return pod if pod.get("kind") == "Pod" else None


def pod_path(action: Action) -> str:
    """Return the URL path of the action's pod."""
    return f"/api/v1/namespaces/{action.service.partition('/')[0]}/pods/{action.name}"


def _resource_path(group: str, plural: str, namespace: str, name: str) -> str:
    return f"/apis/{group}/namespaces/{namespace}/{plural}/{name}"


async def apply_status(kube: Kube, service: str, version: str, status: Object) -> Object:
    """Apply the whole status of an InferenceService, and return the object as it is then.

    Parameters
    ----------
    kube
        The fenced client.
    service
        namespace/name.
    version
        resourceVersion that the status was made for: a writer who slept through the end of its lease gets a conflict.
    status
        All fields that Forebay owns; one left out is removed.

    Raises
    ------
    ActError
        As errors.py says.
    """
    namespace, _, name = service.partition("/")
    body = {
        "apiVersion": names.API_VERSION,
        "kind": "InferenceService",
        "metadata": {"name": name, "namespace": namespace, "resourceVersion": version},
        "status": status,
    }
    path = _resource_path(names.API_VERSION, "inferenceservices", namespace, name) + "/status"
    query = {"fieldManager": names.STATUS_FIELD_MANAGER, "force": "true"}
    return await kube.write("PATCH", path, body, query=query, content=APPLY)


async def set_scale(kube: Kube, service: str, replicas: int) -> None:
    """Write spec.replicas through /scale, which is how an autoscaler may touch a user's object.

    Raises
    ------
    ActError
        As errors.py says.
    """
    namespace, _, name = service.partition("/")
    path = _resource_path(names.API_VERSION, "inferenceservices", namespace, name) + "/scale"
    await kube.write("PATCH", path, {"spec": {"replicas": replicas}}, query=_OURS, content=MERGE)


async def apply_checkpoint(kube: Kube, service: str, owner: Object, memory: str) -> None:
    """Write the learned memory of a service.

    Raises
    ------
    ActError
        As errors.py says.
    """
    namespace, _, name = service.partition("/")
    body = {
        "apiVersion": names.API_VERSION,
        "kind": "ServiceCheckpoint",
        "metadata": {"name": name, "namespace": namespace, "ownerReferences": [owner]},
        "spec": {"memory": memory},
    }
    path = _resource_path(names.API_VERSION, "servicecheckpoints", namespace, name)
    await kube.write("PATCH", path, body, query={**_OURS, "force": "true"}, content=APPLY)


async def apply_disruption_budget(kube: Kube, budget: Object) -> None:
    """Write a PodDisruptionBudget made by `pods.disruption_budget`.

    Raises
    ------
    ActError
        As errors.py says.
    """
    meta = budget["metadata"]
    path = _resource_path("policy/v1", "poddisruptionbudgets", meta["namespace"], meta["name"])
    await kube.write("PATCH", path, budget, query={**_OURS, "force": "true"}, content=APPLY)


async def create_event(kube: Kube, event: Object) -> None:
    """Write an event of events.k8s.io/v1.

    Raises
    ------
    ActError
        As errors.py says.
    """
    path = f"/apis/events.k8s.io/v1/namespaces/{event['metadata']['namespace']}/events"
    await kube.write("POST", path, event, query=_OURS)
