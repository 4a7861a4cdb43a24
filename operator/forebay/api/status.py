"""The status of an InferenceService: conditions as every Kubernetes API has them, counts, and the last decision."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from forebay.api.base import ApiModel, Replicas, Text

Count = Annotated[int, Field(ge=0, le=1_000_000, strict=True)]
Time = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]


class ConditionStatus(StrEnum):
    """Whether a condition holds; Unknown is an answer."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(ApiModel):
    """One thing that is true, false or unknown of the service."""

    type: Annotated[str, Field(max_length=64)]
    """Ready, MetricsAvailable, ScalingActive, AbleToScale, ScalingLimited, WarmPoolReady, GPUCapacity, SLOMet or
    Progressing."""
    status: ConditionStatus
    """True, False or Unknown."""
    reason: Annotated[str, Field(min_length=1, max_length=128)]
    """Why, as one CamelCase word that scripts may match."""
    message: Text = ""
    """Why, and the next step, for people."""
    last_transition_time: Time
    """When status last changed."""
    observed_generation: Annotated[int, Field(ge=0, le=2**53, strict=True)] = 0
    """metadata.generation of the spec that this speaks of."""


class DecisionStep(ApiModel):
    """One stage of a decision."""

    stage: Annotated[str, Field(max_length=64)]
    """Name of the stage, for example demand, warm-pool or gpu-budget."""
    replicas: Count
    """Replicas wanted after this stage."""
    reason: Annotated[str, Field(max_length=128)]
    """Why, as one CamelCase word."""
    message: Annotated[str, Field(max_length=256)] = ""
    """Why, in words and numbers."""


class LastDecision(ApiModel):
    """The last decision that changed something, stage by stage; kubectl forebay explain prints it in full."""

    desired: Replicas
    """Serving replicas that came out."""
    steps: Annotated[
        tuple[DecisionStep, ...], Field(max_length=12, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = ()
    """The stages in order."""


class InferenceServiceStatus(ApiModel):
    """What runs, and why. Written when a number or a reason changes, never as a heartbeat."""

    observed_generation: Annotated[int, Field(ge=0, le=2**53, strict=True)] | None = None
    """metadata.generation of the spec that this speaks of."""
    replicas: Count | None = None
    """Replicas that exist: starting, warm, serving and draining ones together."""
    ready_replicas: Count | None = None
    """Serving replicas that answer."""
    warm_replicas: Count | None = None
    """Replicas that are loaded and rehearsed, but get no traffic until a burst comes."""
    desired_replicas: Count | None = None
    """Serving replicas that Forebay wants now."""
    selector: Annotated[str, Field(max_length=512)] | None = None
    """Label selector of the pods, as /scale publishes it."""
    last_scale_time: Time | None = None
    """When the number of serving replicas last changed."""
    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            max_length=16, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
        ),
    ] = ()
    """What is true of the service, why, and the next step. Ready is the one to wait for."""
    last_decision: LastDecision | None = None
    """The last decision that changed something, stage by stage."""
    memory: Annotated[str, Field(max_length=4096)] | None = None
    """What must survive a restart of Forebay so that it neither forgets nor repeats a decision: opaque, versioned."""
