"""GPUPool: what may be spent on one kind of device."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

from forebay.api.base import RESOURCE_PATTERN, ApiModel, Label, ObjectMeta, Resource
from forebay.api.rules import Rule, ruled

RESOURCE_RULE = Rule(
    f"!has(self.resource) || self.resource.matches('{RESOURCE_PATTERN}')",
    "write the extended resource as its device plugin advertises it, for example nvidia.com/gpu",
    holds=lambda self: self.resource is None or re.fullmatch(RESOURCE_PATTERN, self.resource) is not None,
    field=".resource",
)


@ruled(RESOURCE_RULE)
class GPUPoolSpec(ApiModel):
    """Which devices belong to the pool, and how many of them Forebay may hold."""

    resource: Resource
    """Extended resource of the devices, for example nvidia.com/gpu. A service that refers to the pool must ask for the
    same resource."""
    node_selector: Annotated[dict[str, Label], Field(max_length=16)] = Field(default_factory=dict)
    """Labels of the nodes that belong to the pool, for example {"gpu.example.com/type": "h100"}. Replicas of services
    that refer to the pool run only there. Default: every node that offers the resource."""
    max_gpus: Annotated[Annotated[int, Field(ge=0, le=1_000_000, strict=True)] | None, Field(alias="maxGPUs")] = None
    """Most GPUs that all replicas of the pool may hold at once: serving, warm, starting and draining ones together.
    Default: what the nodes offer. When it binds, services with a higher policy priority come first."""


class GPUPool(ApiModel):
    """A GPUPool says how many GPUs of one kind Forebay may spend.

    Services name it in spec.accelerators[].gpuPoolRef; without one, all nodes that offer the resource form one pool.
    """

    metadata: ObjectMeta
    spec: GPUPoolSpec
    """Which devices belong to the pool, and how many of them Forebay may hold."""
