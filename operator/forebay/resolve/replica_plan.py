"""What one replica of a service is: everything that `actuate` needs to make its pod, but not the pod itself."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson

from forebay.api.engine import EngineType, Switch
from forebay.wire.replica_config import ENGINE_EMULATED, ENGINE_VLLM, Emulation, ReplicaConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.api.engine import EmulatedSettings
    from forebay.api.inference_service import InferenceService
    from forebay.resolve.defaults import ReplicaDefaults
    from forebay.resolve.profiles import Prior

ENGINES = {EngineType.VLLM: ENGINE_VLLM, EngineType.EMULATED: ENGINE_EMULATED}
# Of the hash: 40 bits for the annotation; pod names carry the first five characters.
REVISION_CHARACTERS = 10
# The kubelet kills at the end of the grace period; the supervisor has until the drain deadline, then needs to stop its
# engine (10 s for a request that slipped in) and the container's runtime to notice.
GRACE_BEYOND_DRAIN_S = 30


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """One replica, before the user's pod template is laid over it."""

    image: str
    config: ReplicaConfig
    resource: str | None  # extended resource; None: no device
    gpus: int  # of that resource; 0 without one
    node_selector: Mapping[str, str]  # of the GPUPool
    credentials_secret: str | None  # its keys become environment variables
    claim: str | None  # PersistentVolumeClaim of a pvc:// model, mounted at wire.replica_config.MODEL_MOUNT
    termination_grace_seconds: int
    template: Mapping[str, Any]  # spec.template as written: {"metadata": ..., "spec": ...}
    revision: str  # equal for replicas that are interchangeable


def replica_plan(
    service: InferenceService,
    served_names: tuple[str, ...],
    node_selector: Mapping[str, str],
    defaults: ReplicaDefaults,
    imitated: Prior | None,
) -> ReplicaPlan:
    """Plan a replica.

    Parameters
    ----------
    service
        The service; its first accelerator is the one.
    served_names
        The names that it keeps, its own first.
    node_selector
        Of its pool.
    defaults
        Images and the operator's identity.
    imitated
        What an emulated engine imitates; None for a real one.
    """
    spec, accelerator = service.spec, service.spec.accelerators[0]
    config = _config(service, served_names, defaults.operator_username, imitated)
    bare = ReplicaPlan(
        image=spec.engine.image or defaults.image(spec.engine.type),
        config=config,
        resource=accelerator.resource,
        gpus=spec.gpus_per_replica,
        node_selector=dict(node_selector),
        credentials_secret=spec.model.credentials_secret_ref.name if spec.model.credentials_secret_ref else None,
        claim=_claim(spec.model.uri),
        termination_grace_seconds=spec.drain.deadline_seconds + GRACE_BEYOND_DRAIN_S,
        template=spec.template.model_dump(by_alias=True, exclude_unset=True) if spec.template else {},
        revision="",
    )
    return replace(bare, revision=_revision(bare))


def _config(
    service: InferenceService,
    served_names: tuple[str, ...],
    operator_username: str,
    imitated: Prior | None,
) -> ReplicaConfig:
    spec, engine = service.spec, service.spec.engine
    return ReplicaConfig(
        engine=ENGINES[engine.type],
        model_uri=spec.model.uri,
        served_names=served_names,
        dtype=engine.dtype.lower(),
        kv_cache_dtype=engine.kv_cache_dtype.lower(),
        max_model_len=engine.max_model_len,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        gpu_memory_utilization_permille=engine.gpu_memory_utilization_permille,
        prefix_caching=engine.prefix_caching is Switch.ENABLED,
        tensor_parallel=spec.parallelism.tensor,
        extra_args=engine.extra_args,
        start_deadline_ms=engine.start_deadline_seconds * 1000,
        drain_deadline_ms=spec.drain.deadline_seconds * 1000,
        operator_username=operator_username,
        emulation=None if imitated is None else _emulation(engine.emulation, imitated),
    )


def _emulation(settings: EmulatedSettings, prior: Prior) -> Emulation:
    times = prior.times
    return Emulation(
        step_c0_ps=times.c0_ps,
        step_c1_ps=times.c1_ps,
        step_c2_ps=times.c2_ps,
        step_p1_ps=times.p1_ps,
        step_p2_fs=times.p2_fs,
        kv_tokens_total=prior.kv_tokens_total,
        cold_start_ms=settings.cold_start_seconds * 1000,
        wake_ms=settings.wake_milliseconds,
        model_error_permille=settings.model_error_permille,
        step_noise_permille=settings.step_noise_permille,
        seed=settings.seed,
    )


def _claim(uri: str) -> str | None:
    scheme, _, rest = uri.partition("://")
    return rest.partition("/")[0] if scheme == "pvc" else None


def _revision(plan: ReplicaPlan) -> str:
    """Hash what a replica is made of, less what may differ between replicas that stand in for one another.

    A deadline, a node label of the pool or a renamed operator does not change what a replica answers, so it replaces
    none; new pods simply get the new value.
    """
    config = replace(plan.config, start_deadline_ms=0, drain_deadline_ms=0, operator_username="")
    made_of = (plan.image, config, plan.resource, plan.gpus, plan.credentials_secret, plan.template)
    text = orjson.dumps(made_of, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()[:REVISION_CHARACTERS]
