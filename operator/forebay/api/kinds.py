"""The four kinds: how the API server and kubectl know them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.api.gpu_pool import GPUPool
from forebay.api.inference_service import InferenceService
from forebay.api.service_checkpoint import ServiceCheckpoint
from forebay.api.slo_policy import SLOPolicy

if TYPE_CHECKING:
    from forebay.api.base import ApiModel


@dataclass(frozen=True, slots=True)
class Column:
    """One column of `kubectl get`."""

    name: str
    path: str
    description: str
    type: str = "string"


@dataclass(frozen=True, slots=True)
class Kind:
    """One custom resource."""

    model: type[ApiModel]
    plural: str
    short_name: str
    namespaced: bool
    columns: tuple[Column, ...]
    scalable: bool = False

    @property
    def name(self) -> str:
        """Return the Kind as objects spell it."""
        return self.model.__name__


def _condition(type_: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{type_}")].{field}'


_AGE = Column("Age", ".metadata.creationTimestamp", "Since when the object exists.", "date")

INFERENCE_SERVICE = Kind(
    InferenceService,
    "inferenceservices",
    "fbsvc",
    namespaced=True,
    scalable=True,
    columns=(
        Column("Model", ".spec.model.uri", "Where the weights come from."),
        Column("Ready", _condition("Ready", "status"), "Whether the service answers."),
        Column("Replicas", ".status.replicas", "Replicas that exist, in any state.", "integer"),
        Column("Desired", ".status.desiredReplicas", "Serving replicas that Forebay wants.", "integer"),
        Column("Warm", ".status.warmReplicas", "Loaded replicas that wait for a burst.", "integer"),
        Column("SLO", _condition("SLOMet", "status"), "Whether the SLO holds."),
        Column("Reason", _condition("Ready", "reason"), "Why the service is ready or not."),
        _AGE,
    ),
)
SLO_POLICY = Kind(
    SLOPolicy,
    "slopolicies",
    "slo",
    namespaced=False,
    columns=(
        Column("TTFT", ".spec.ttft.targetMilliseconds", "Target of the time to first token, in ms.", "integer"),
        Column("ITL", ".spec.itl.meanMilliseconds", "Target of the mean gap between tokens, in ms.", "integer"),
        Column("Burst", ".spec.burst.multiplier", "How many times traffic may grow.", "integer"),
        Column("Idle-GPUs", ".spec.maxIdleGPUs", "Most GPUs in warm replicas of one service.", "integer"),
        Column("Priority", ".spec.priority", "Larger comes first.", "integer"),
        _AGE,
    ),
)
GPU_POOL = Kind(
    GPUPool,
    "gpupools",
    "gpupool",
    namespaced=False,
    columns=(
        Column("Resource", ".spec.resource", "Extended resource of the devices."),
        Column("Max-GPUs", ".spec.maxGPUs", "Most GPUs that may be held.", "integer"),
        _AGE,
    ),
)
SERVICE_CHECKPOINT = Kind(
    ServiceCheckpoint,
    "servicecheckpoints",
    "fbcp",
    namespaced=True,
    columns=(_AGE,),
)
KINDS = (INFERENCE_SERVICE, SLO_POLICY, GPU_POOL, SERVICE_CHECKPOINT)
