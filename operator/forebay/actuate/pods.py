"""ACT: what a replica's pod looks like. Pure: a plan becomes a manifest, and the user's template is laid over it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from forebay.wire import names
from forebay.wire.lifecycle import ReplicaState
from forebay.wire.replica_config import ENV_CONFIG, ENV_POD_NAME, ENV_POD_UID, MODEL_MOUNT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forebay.resolve.replica_plan import ReplicaPlan

Object: TypeAlias = dict[str, Any]

CONTAINER = "engine"
# What an image's own user may be is not known; this one exists in no image and so owns nothing in any.
USER_ID = 65532
TOKEN_SECONDS = 3607  # the kubelet renews at 80 % of it; the odd seconds mark it as the usual kind of pod token
SERVICE_ACCOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"

# In these lists of a pod's spec the element's identity is another field than its name.
_KEYS = {"volumeMounts": "mountPath", "ports": "containerPort", "volumeDevices": "devicePath"}
# An element of these lists is one of many kinds; two kinds merged would be refused by the API server.
_WHOLE = {"volumes"}


def manifest(plan: ReplicaPlan, service: str, service_uid: str, name: str, pull_policy: str = "IfNotPresent") -> Object:
    """Make a replica's pod.

    Parameters
    ----------
    plan
        What the service asks for.
    service, service_uid
        namespace/name and uid of the InferenceService.
    name
        From `diff.Create`.
    pull_policy
        Of the engine's image.

    Returns
    -------
    dict
        The manifest as JSON. The user's template is merged over Forebay's pod; identity, ownership, the contract's
        environment and the device count are laid over both.
    """
    namespace, short = service.split("/")
    metadata = plan.template.get("metadata", {})
    spec = merge(_spec(plan, pull_policy), plan.template.get("spec", {}))
    spec["containers"] = [_kept(plan, c) if c.get("name") == CONTAINER else c for c in spec["containers"]]
    spec["restartPolicy"] = "Never"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {**metadata.get("labels", {}), **labels(short)},
            "annotations": {
                **metadata.get("annotations", {}),
                names.ANNOTATION_REVISION: plan.revision,
                names.ANNOTATION_SERVED_NAME: plan.config.served_names[0],
            },
            "ownerReferences": [owner(short, service_uid)],
        },
        "spec": spec,
    }


def labels(service: str) -> dict[str, str]:
    """Return the labels of a new replica of this service."""
    return {
        names.LABEL_NAME: "forebay-replica",
        names.LABEL_INSTANCE: service,
        names.LABEL_COMPONENT: names.COMPONENT_REPLICA,
        names.LABEL_MANAGED_BY: "forebay",
        names.LABEL_PART_OF: "forebay",
        names.LABEL_SERVICE: service,
        names.LABEL_ROLE: names.ROLE_UNIFIED,
        names.LABEL_STATE: ReplicaState.STARTING.value,
    }


def owner(service: str, uid: str) -> Object:
    """Return the controller reference; it does not block the owner's deletion, which would need more rights."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "InferenceService",
        "name": service,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def disruption_budget(namespace: str, service: str, uid: str) -> Object:
    """Make the PodDisruptionBudget: of the serving replicas, one at a time may be evicted."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": service,
            "namespace": namespace,
            "labels": {names.LABEL_MANAGED_BY: "forebay", names.LABEL_SERVICE: service},
            "ownerReferences": [owner(service, uid)],
        },
        "spec": {
            "maxUnavailable": 1,
            "selector": {
                "matchLabels": {
                    names.LABEL_SERVICE: service,
                    names.LABEL_STATE: ReplicaState.SERVING.value,
                }
            },
        },
    }


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Object:
    """Lay one object over another: maps merge deep, lists of named objects merge by name, other lists replace."""
    merged: Object = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            merged[key] = merge(old, value)
        elif isinstance(old, list) and isinstance(value, list):
            merged[key] = _merge_lists(old, value, _KEYS.get(key, "name"), whole=key in _WHOLE)
        else:
            merged[key] = value
    return merged


def _merge_lists(base: Sequence[Any], over: Sequence[Any], key: str, *, whole: bool) -> list[Any]:
    if not all(isinstance(item, dict) and key in item for item in (*base, *over)):
        return list(over)
    later = {item[key]: item for item in over}
    known = {item[key] for item in base}
    merged = [merge({} if whole else item, later[item[key]]) if item[key] in later else item for item in base]
    return merged + [item for item in over if item[key] not in known]


def _spec(plan: ReplicaPlan, pull_policy: str) -> Object:
    spec: Object = {
        "terminationGracePeriodSeconds": plan.termination_grace_seconds,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(plan, pull_policy)],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            {"name": "api-token", "projected": {"defaultMode": 0o440, "sources": _token_sources()}},
        ],
    }
    if plan.node_selector:
        spec["nodeSelector"] = dict(plan.node_selector)
    if plan.claim is not None:
        spec["volumes"].append({"name": "model", "persistentVolumeClaim": {"claimName": plan.claim, "readOnly": True}})
        spec["containers"][0]["volumeMounts"].append({"name": "model", "mountPath": MODEL_MOUNT, "readOnly": True})
    return spec


def _container(plan: ReplicaPlan, pull_policy: str) -> Object:
    container: Object = {
        "name": CONTAINER,
        "image": plan.image,
        "imagePullPolicy": pull_policy,
        "env": [*_contract(plan), {"name": "HOME", "value": "/tmp"}],  # noqa: S108 - a volume of the pod's own
        "ports": [
            {"name": "http", "containerPort": names.ENGINE_PORT},
            {"name": "supervisor", "containerPort": names.SUPERVISOR_PORT},
        ],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        # The supervisor answers within a second of its start, long before its engine does: a minute is for the machine.
        "startupProbe": _probe(names.PATH_HEALTH, period=1, failures=60),
        "livenessProbe": _probe(names.PATH_HEALTH, period=10, failures=3),
        "readinessProbe": _probe(names.PATH_READY, period=2, failures=2),
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - a volume of the pod's own
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - tensor parallelism talks through it
            {"name": "api-token", "mountPath": SERVICE_ACCOUNT_PATH, "readOnly": True},
        ],
    }
    if plan.credentials_secret is not None:
        container["envFrom"] = [{"secretRef": {"name": plan.credentials_secret}}]
    return container


def _kept(plan: ReplicaPlan, container: Object) -> Object:
    """Lay over a container what no template may change: the contract with the supervisor, and the devices."""
    ours = {item["name"] for item in _contract(plan)}
    kept = dict(container)
    kept["env"] = [*_contract(plan), *(item for item in container.get("env", ()) if item["name"] not in ours)]
    if plan.resource is not None and plan.gpus > 0:
        devices = {"limits": {plan.resource: str(plan.gpus)}, "requests": {plan.resource: str(plan.gpus)}}
        kept["resources"] = merge(container.get("resources", {}), devices)
    return kept


def _contract(plan: ReplicaPlan) -> list[Object]:
    return [
        {"name": ENV_CONFIG, "value": plan.config.to_json()},
        {"name": ENV_POD_UID, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        {"name": ENV_POD_NAME, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]


def _probe(path: str, *, period: int, failures: int) -> Object:
    return {
        "httpGet": {"path": path, "port": names.SUPERVISOR_PORT},
        "periodSeconds": period,
        "timeoutSeconds": 2,
        "failureThreshold": failures,
    }


def _token_sources() -> list[Object]:
    """Project what the supervisor needs for a TokenReview: the pod's own token, the server's CA, the namespace."""
    namespace = {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}
    return [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_SECONDS}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [namespace]}},
    ]
