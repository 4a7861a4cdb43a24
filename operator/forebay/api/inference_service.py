"""InferenceService: a model, an engine, an accelerator, an SLO. Forebay makes the replicas."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from forebay.api.base import ApiModel, LocalRef, ObjectMeta, Replicas, Resource, Seconds
from forebay.api.engine import Engine
from forebay.api.gpu_pool import RESOURCE_RULE
from forebay.api.rules import Rule, ruled
from forebay.api.status import InferenceServiceStatus

# Scheme, then a body without blanks; the part after @ of an hf:// URI is a revision (a branch, tag or commit).
URI_PATTERN = r"^(hf://[^/@\s]+/[^/@\s]+(@[^@\s]+)?|(pvc|s3)://[^/@\s]+(/[^@\s]*)?|file:///[^@\s]+)$"
SERVED_NAME_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._:/-]*$"
NAME_PATTERN = "^[a-z]([a-z0-9-]*[a-z0-9])?$"
# Pod names are <service>-<5 of hash>-<ordinal up to 4 digits>, and at most 63 characters make a host name.
MAX_SERVICE_NAME = 50

ServedName = Annotated[str, Field(min_length=1, max_length=253)]


class ServiceClass(StrEnum):
    """Whether somebody waits for the answer."""

    INTERACTIVE = "Interactive"
    BATCH = "Batch"


class ScalingMode(StrEnum):
    """Who sets the number of replicas."""

    AUTO = "Auto"
    MANUAL = "Manual"
    PAUSED = "Paused"


def _cel(pattern: str) -> str:
    return "'" + pattern.replace("\\", "\\\\") + "'"


@ruled(
    Rule(
        f"self.uri.matches({_cel(URI_PATTERN)})",
        "write hf://ORGANISATION/MODEL, optionally with @REVISION, or pvc://CLAIM/PATH, s3://BUCKET/PATH, or "
        "file:///PATH for a folder in the image",
        holds=lambda self: re.fullmatch(URI_PATTERN, self.uri) is not None,
        field=".uri",
    ),
    Rule(
        f"(!has(self.servedName) || self.servedName.matches('{SERVED_NAME_PATTERN}')) && "
        f"(!has(self.aliases) || self.aliases.all(a, a.matches('{SERVED_NAME_PATTERN}')))",
        "a served name or alias begins with a letter or digit and goes on with letters, digits and . _ : / -",
        holds=lambda self: all(
            re.fullmatch(SERVED_NAME_PATTERN, n) for n in (self.served_name or "default", *self.aliases)
        ),
    ),
    Rule(
        "!has(self.servedName) || !has(self.aliases) || !(self.servedName in self.aliases)",
        "servedName need not be repeated among the aliases: remove it there",
        holds=lambda self: self.served_name not in self.aliases,
        field=".aliases",
    ),
)
class Model(ApiModel):
    """Which model is served, and by which names clients ask for it."""

    uri: Annotated[str, Field(min_length=1, max_length=512)]
    """Where the weights are: hf://meta-llama/Llama-3.1-8B-Instruct (optionally @REVISION), pvc://CLAIM/PATH for a
    volume of this namespace, s3://BUCKET/PATH, or file:///PATH for a folder in the image. Only the revision can be
    changed later."""
    served_name: ServedName | None = None
    """What clients write into "model". Unique among all services; where two want the same name the older service
    keeps it. Default: metadata.name."""
    aliases: Annotated[
        tuple[ServedName, ...], Field(max_length=16, json_schema_extra={"x-kubernetes-list-type": "set"})
    ] = ()
    """Further names for the same model."""
    credentials_secret_ref: LocalRef | None = None
    """Secret in the service's namespace whose keys become environment variables of the engine, for example HF_TOKEN."""


@ruled(
    RESOURCE_RULE,
    Rule(
        "!has(self.gpuPoolRef) || has(self.resource)",
        "a pool hands out devices: write resource too, for example nvidia.com/gpu, or remove gpuPoolRef",
        holds=lambda self: self.gpu_pool_ref is None or self.resource is not None,
        field=".gpuPoolRef",
    ),
)
class Accelerator(ApiModel):
    """One kind of device that the model may run on."""

    name: Annotated[str, Field(min_length=1, max_length=63, pattern="^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")]
    """A name of your choice within this list."""
    type: Annotated[str, Field(min_length=1, max_length=63)]
    """What the device is: A100, H100, H200, B200, L40S or CPU have measured profiles or known memory. Of any other
    type Forebay learns the speed from the running engine."""
    resource: Resource | None = None
    """Extended resource that a replica requests, one for each rank of parallelism.tensor, for example nvidia.com/gpu.
    Without it no device is requested, and the replica runs on the CPU."""
    gpu_pool_ref: LocalRef | None = None
    """GPUPool that pays for the devices. Default: all nodes that offer the resource."""


class Parallelism(ApiModel):
    """How one replica is spread over several devices."""

    tensor: Annotated[int, Field(ge=1, le=16, strict=True)] = 1
    """Devices that one replica's layers are split across (tensor parallelism), all on one node: 1, 2, 4 or 8 as a
    rule."""


class Scaling(ApiModel):
    """Who sets the number of replicas, and between which bounds."""

    mode: ScalingMode = ScalingMode.AUTO
    """Auto: Forebay decides between minReplicas and maxReplicas. Manual: a person, or another autoscaler through
    /scale, sets spec.replicas. Paused: the number of replicas stays as it is; so it does with the annotation
    forebay.dev/paused: "true"."""
    min_replicas: Replicas = 1
    """Fewest serving replicas in Auto. 0 is allowed only for class: Batch."""
    max_replicas: Annotated[int, Field(ge=1, le=10_000, strict=True)] = 10
    """Most replicas in Auto, warm ones included; the policy's maxIdleGPUs bounds how many of them wait warm."""
    idle_seconds: Seconds = 300
    """A Batch service with minReplicas 0 goes to zero after this many seconds without a request."""
    scale_down_delay_seconds: Seconds = 60
    """A replica is removed only after it was not needed for this many seconds without interruption. Where the
    need halves and soon comes back, it is as long as that gap, at most eightfold."""


class Drain(ApiModel):
    """How a replica leaves."""

    deadline_seconds: Annotated[int, Field(ge=5, le=86_400, strict=True)] = 600
    """Longest time in seconds that a leaving replica waits for its running requests. Longer answers than that are
    cut."""


@ruled(
    Rule(
        "!has(self.labels) || self.labels.all(k, !k.startsWith('forebay.dev/') && !k.startsWith('app.kubernetes.io/'))",
        "labels under forebay.dev/ and app.kubernetes.io/ are set by Forebay: choose another prefix",
        holds=lambda self: not any(k.startswith(("forebay.dev/", "app.kubernetes.io/")) for k in self.labels),
        field=".labels",
    ),
)
class TemplateMetadata(ApiModel):
    """Labels and annotations of the replicas' pods."""

    labels: Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=64)] = Field(
        default_factory=dict
    )
    """Labels to add."""
    annotations: Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=64)] = Field(
        default_factory=dict
    )
    """Annotations to add."""


class PodTemplate(ApiModel):
    """A pod template that is laid over the one that Forebay makes."""

    metadata: TemplateMetadata | None = None
    """Labels and annotations of the replicas' pods."""
    spec: Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})] | None = (
        None
    )
    """A pod spec (see kubectl explain pod.spec): tolerations, volumes, resources and the like. Objects are merged,
    lists of named objects (containers, volumes, env) are merged by name, other lists replace Forebay's. The engine's
    container is named "engine"."""


# Two rules about scaling and engine stand here, because the API server checks the default `{}` of those objects against
# their own rules before it fills in the defaults within, and would refuse the CRD.
@ruled(
    Rule(
        "self.scaling.minReplicas <= self.scaling.maxReplicas",
        "minReplicas %d exceeds maxReplicas %d: lower the one or raise the other",
        holds=lambda self: self.scaling.min_replicas <= self.scaling.max_replicas,
        field=".scaling.minReplicas",
        values=("self.scaling.minReplicas", "self.scaling.maxReplicas"),
    ),
    Rule(
        "self.engine.maxNumBatchedTokens >= self.engine.maxNumSeqs",
        "a step of %d tokens cannot give each of %d sequences its token: raise maxNumBatchedTokens or lower maxNumSeqs",
        holds=lambda self: self.engine.max_num_batched_tokens >= self.engine.max_num_seqs,
        field=".engine.maxNumBatchedTokens",
        values=("self.engine.maxNumBatchedTokens", "self.engine.maxNumSeqs"),
    ),
    Rule(
        "self.class != 'Interactive' || self.scaling.minReplicas > 0",
        "an Interactive service never scales to zero: write minReplicas 1 or more, or class: Batch if its callers can "
        "wait for a cold start",
        holds=lambda self: self.service_class is not ServiceClass.INTERACTIVE or self.scaling.min_replicas > 0,
        field=".scaling.minReplicas",
    ),
    Rule(
        "self.class != 'Interactive' || self.replicas > 0",
        "an Interactive service never scales to zero: write replicas 1 or more, or class: Batch if its callers can "
        "wait for a cold start",
        holds=lambda self: self.service_class is not ServiceClass.INTERACTIVE or self.replicas > 0,
        field=".replicas",
    ),
    Rule(
        "self.parallelism.tensor == 1 || self.accelerators.all(a, has(a.resource))",
        "parallelism.tensor %d splits a replica over devices, but an accelerator names none: write its resource, for "
        "example nvidia.com/gpu, or tensor: 1",
        holds=lambda self: self.parallelism.tensor == 1 or all(a.resource is not None for a in self.accelerators),
        field=".parallelism.tensor",
        values=("self.parallelism.tensor",),
    ),
    Rule(
        "self.model.uri.split('@')[0] == oldSelf.model.uri.split('@')[0]",
        "another model is another service: only the revision after @ can change. Make a new InferenceService, move the "
        "clients, then delete this one",
        holds_between=lambda new, old: new.model.uri.split("@")[0] == old.model.uri.split("@")[0],
        field=".model.uri",
    ),
    Rule(
        "self.engine.type == oldSelf.engine.type",
        "the engine's type cannot change: make a new InferenceService, move the clients, then delete this one",
        holds_between=lambda new, old: new.engine.type is old.engine.type,
        field=".engine.type",
    ),
    Rule(
        "self.parallelism == oldSelf.parallelism",
        "parallelism cannot change: make a new InferenceService, move the clients, then delete this one",
        holds_between=lambda new, old: new.parallelism == old.parallelism,
        field=".parallelism",
    ),
)
class InferenceServiceSpec(ApiModel):
    """What to serve, on what, and how it may scale. Only model and accelerators must be written."""

    model: Model
    """Which model is served, and by which names clients ask for it."""
    engine: Engine = Engine()
    """Which inference engine runs, and the settings that its capacity depends on."""
    accelerators: Annotated[
        tuple[Accelerator, ...],
        Field(
            min_length=1,
            max_length=1,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ]
    """Devices that the model may run on: one entry."""
    parallelism: Parallelism = Parallelism()
    """How one replica is spread over several devices. It cannot be changed later."""
    service_class: Annotated[ServiceClass, Field(alias="class")] = ServiceClass.INTERACTIVE
    """Interactive: somebody waits, so at least one replica always serves. Batch: callers can wait for a cold start, so
    minReplicas may be 0."""
    replicas: Replicas = 1
    """Number of serving replicas. Forebay writes it in scaling.mode Auto; you or another autoscaler write it, also with
    kubectl scale, in Manual. Leave it out of files that you apply again and again."""
    scaling: Scaling = Scaling()
    """Who sets the number of replicas, and between which bounds."""
    slo_policy_ref: LocalRef | None = None
    """SLOPolicy that the service is held to. Default: what interactive-chat says for class Interactive, batch for
    Batch."""
    drain: Drain = Drain()
    """How a replica leaves."""
    template: PodTemplate | None = None
    """A pod template that is laid over the one that Forebay makes."""

    @property
    def gpus_per_replica(self) -> int:
        """Return how many devices one replica holds; 0 on the CPU."""
        return self.parallelism.tensor if self.accelerators[0].resource else 0


@ruled(
    Rule(
        f"self.metadata.name.size() <= {MAX_SERVICE_NAME} && self.metadata.name.matches('{NAME_PATTERN}')",
        f"metadata.name becomes a label and the start of pod names: write at most {MAX_SERVICE_NAME} small letters, "
        "digits and hyphens, beginning with a letter",
        holds=lambda self: (
            len(self.metadata.name) <= MAX_SERVICE_NAME and re.fullmatch(NAME_PATTERN, self.metadata.name) is not None
        ),
    ),
)
class InferenceService(ApiModel):
    """An InferenceService is a model that clients ask for by its name: an engine, its devices, and the SLO to hold.

    Forebay makes, scales and replaces its replicas. KServe has a kind of the same name, so write
    inferenceservices.forebay.dev.
    """

    metadata: ObjectMeta
    spec: InferenceServiceSpec
    """What to serve, on what, and how it may scale. Only model and accelerators must be written."""
    status: InferenceServiceStatus = InferenceServiceStatus()
    """What runs, and why."""
