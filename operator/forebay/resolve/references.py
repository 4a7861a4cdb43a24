"""What a service refers to by name, its SLOPolicy and its GPUPool: found, allowed and sound, or why not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forebay.api.gpu_pool import GPUPool
from forebay.api.parse import InvalidObjectError, parse
from forebay.api.slo_policy import SLOPolicy, SLOPolicySpec
from forebay.core.reasons import Reason
from forebay.core.units import UNKNOWN
from forebay.resolve.defaults import POLICY_BY_CLASS
from forebay.resolve.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.api.inference_service import Accelerator, InferenceService

Object = dict[str, Any]

NO_DEVICE = "default/cpu"  # the pool of replicas that ask for no device
# Every namespace has this label with its own name, also where the operator may not read namespaces.
NAMESPACE_NAME_LABEL = "kubernetes.io/metadata.name"


@dataclass(frozen=True, slots=True)
class Pool:
    """What `observe` counts for one row of FleetSpec.pools."""

    name: str
    resource: str  # empty: no device is asked for, so there is nothing to count: 0 GPUs of 0
    node_selector: Mapping[str, str]
    gpus_max: int  # UNKNOWN: what the nodes offer


CPU_POOL = Pool(NO_DEVICE, "", {}, UNKNOWN)


def read_policy(raw: Object) -> SLOPolicySpec | InvalidObjectError:
    """Return a policy's spec, or what is wrong with it."""
    try:
        return parse(SLOPolicy, raw).spec
    except InvalidObjectError as error:
        return error


def read_pool(raw: Object) -> Pool | InvalidObjectError:
    """Return a pool, or what is wrong with it."""
    try:
        spec = parse(GPUPool, raw).spec
    except InvalidObjectError as error:
        return error
    limit = UNKNOWN if spec.max_gpus is None else spec.max_gpus
    return Pool(raw["metadata"]["name"], spec.resource, spec.node_selector, limit)


def policy_of(
    service: InferenceService,
    policies: Mapping[str, SLOPolicySpec | InvalidObjectError],
    namespaces: Mapping[str, Mapping[str, str]],
) -> tuple[SLOPolicySpec, Problem | None]:
    """Find a service's policy; where there is none to be had, the default of its class and the problem."""
    fallback = POLICY_BY_CLASS[service.spec.service_class]
    if service.spec.slo_policy_ref is None:
        return fallback, None
    name, namespace = service.spec.slo_policy_ref.name, service.metadata.namespace
    found = policies.get(name)
    if found is None:
        return fallback, Problem(Reason.POLICY_NOT_FOUND, name)
    if isinstance(found, InvalidObjectError):
        return fallback, Problem(Reason.INVALID_SPEC, f"SLOPolicy {name}: {found}")
    labels = {NAMESPACE_NAME_LABEL: namespace} | dict(namespaces.get(namespace, {}))
    if not found.allowed_namespaces.selects(labels):
        return fallback, Problem(Reason.POLICY_NOT_ALLOWED, f"{name} in namespace {namespace}")
    return found, None


def pool_of(accelerator: Accelerator, pools: Mapping[str, Pool | InvalidObjectError]) -> tuple[Pool, Problem | None]:
    """Find an accelerator's pool: the one that it names, or the implicit one of its resource."""
    if accelerator.resource is None:
        return CPU_POOL, None
    implicit = Pool(f"default/{accelerator.resource}", accelerator.resource, {}, UNKNOWN)
    if accelerator.gpu_pool_ref is None:
        return implicit, None
    name = accelerator.gpu_pool_ref.name
    found = pools.get(name)
    if found is None:
        return implicit, Problem(Reason.POOL_NOT_FOUND, name)
    if isinstance(found, InvalidObjectError):
        return implicit, Problem(Reason.INVALID_SPEC, f"GPUPool {name}: {found}")
    if found.resource != accelerator.resource:
        what = f"GPUPool {name} hands out {found.resource}, not {accelerator.resource}: name another pool or resource"
        return implicit, Problem(Reason.INVALID_SPEC, what)
    return found, None
