"""One service: its references, its replica, its numbers, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forebay.api.engine import EngineType
from forebay.api.inference_service import ScalingMode, ServiceClass
from forebay.core.fleet import Mode
from forebay.core.reasons import Reason
from forebay.core.units import UNKNOWN
from forebay.resolve.columns import Row
from forebay.resolve.defaults import LEAD_COLD_VLLM_MS, LEAD_POD_MS, LEAD_PROMOTE_MS, POLICY_BY_CLASS
from forebay.resolve.priors import prior_of
from forebay.resolve.problem import Problem
from forebay.resolve.references import CPU_POOL, Pool, policy_of, pool_of
from forebay.resolve.replica_plan import ReplicaPlan, replica_plan
from forebay.resolve.served_names import key_of, names_claimed
from forebay.wire.names import ANNOTATION_PAUSED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.api.inference_service import InferenceService, InferenceServiceSpec
    from forebay.api.parse import InvalidObjectError
    from forebay.api.slo_policy import SLOPolicySpec
    from forebay.resolve.defaults import ReplicaDefaults
    from forebay.resolve.profiles import Prior

Object = dict[str, Any]

MODES = {ScalingMode.AUTO: Mode.AUTO, ScalingMode.MANUAL: Mode.MANUAL, ScalingMode.PAUSED: Mode.PAUSED}
REPLICAS_MAX = 10_000  # of an unreadable service: no bound that could remove what runs


@dataclass(frozen=True, slots=True)
class World:
    """All that a service may refer to."""

    policies: Mapping[str, SLOPolicySpec | InvalidObjectError]
    pools: Mapping[str, Pool | InvalidObjectError]
    namespaces: Mapping[str, Mapping[str, str]]
    owners: Mapping[str, str]  # served name to the service that keeps it
    defaults: ReplicaDefaults


@dataclass(frozen=True, slots=True)
class Service:
    """What the shells need of one row of FleetSpec.services."""

    key: str  # "namespace/name"
    uid: str
    generation: int
    spec: InferenceServiceSpec | None  # None: unreadable
    served_names: tuple[str, ...]  # the names that it keeps, its own first
    mode: Mode
    slo: SLOPolicySpec
    pool: Pool
    prior: Prior | None  # None: nothing is known of its speed and memory
    plan: ReplicaPlan | None  # None: no replica can be made
    problems: tuple[Problem, ...]

    @property
    def blocked(self) -> bool:
        """Say whether nothing may be started."""
        return any(problem.blocking for problem in self.problems)

    def row(self, pool: int) -> Row:
        """Return the numbers that core judges; `pool` is the pool's row."""
        spec, slo, prior = self.spec, self.slo, self.prior
        times = prior.times if prior else None
        return Row(
            mode=self.mode,
            batch_class=spec is not None and spec.service_class is ServiceClass.BATCH,
            blocked=self.blocked,
            replicas_manual=spec.replicas if spec else 0,
            replicas_min=spec.scaling.min_replicas if spec else 0,
            replicas_max=spec.scaling.max_replicas if spec else REPLICAS_MAX,
            idle_ms=(spec.scaling.idle_seconds if spec else 0) * 1000,
            scale_down_delay_ms=(spec.scaling.scale_down_delay_seconds if spec else 0) * 1000,
            priority=slo.priority,
            ttft_target_ms=slo.ttft.target_milliseconds,
            ttft_per_1k_prompt_tokens_ms=slo.ttft.per_thousand_prompt_tokens_milliseconds,
            itl_mean_ms=slo.itl.mean_milliseconds,
            itl_worst_second_ms=slo.itl.worst,
            attainment_permille=slo.attainment_permille,
            burst_multiplier_milli=slo.burst.multiplier * 1000,
            burst_within_ms=slo.burst.within_seconds * 1000,
            headroom_milli=slo.headroom_percent * 10,
            warm_gpus_max=slo.max_idle_gpus,
            pool=pool,
            gpus_per_replica=spec.gpus_per_replica if spec else 0,
            batch_max=spec.engine.max_num_seqs if spec else 1,
            step_tokens_max=spec.engine.max_num_batched_tokens if spec else 1,
            kv_tokens_prior=prior.kv_tokens_total if prior else UNKNOWN,
            step_c0_ps=times.c0_ps if times else UNKNOWN,
            step_c1_ps=times.c1_ps if times else UNKNOWN,
            step_c2_ps=times.c2_ps if times else UNKNOWN,
            step_p1_ps=times.p1_ps if times else UNKNOWN,
            step_p2_fs=times.p2_fs if times else UNKNOWN,
            lead_promote_ms=LEAD_PROMOTE_MS,
            lead_cold_ms=_lead_cold_ms(self.spec),
        )


def resolve_service(raw: Object, service: InferenceService, world: World) -> Service:
    """Resolve one service that could be read."""
    key = key_of(raw)
    kept, conflict = _names(raw, key, world.owners)
    slo, policy_problem = policy_of(service, world.policies, world.namespaces)
    pool, pool_problem = pool_of(service.spec.accelerators[0], world.pools)
    prior, misfit = prior_of(service.spec)
    problems = tuple(p for p in (conflict, policy_problem, pool_problem, misfit) if p is not None)
    emulated = service.spec.engine.type is EngineType.EMULATED
    return Service(
        key=key,
        uid=raw["metadata"].get("uid", ""),
        generation=raw["metadata"].get("generation", 0),
        spec=service.spec,
        served_names=kept,
        mode=_mode(raw, service),
        slo=slo,
        pool=pool,
        prior=prior,
        plan=None
        if any(problem.blocking for problem in problems)
        else replica_plan(service, kept, pool.node_selector, world.defaults, prior if emulated else None),
        problems=problems,
    )


def unreadable(raw: Object, error: InvalidObjectError) -> Service:
    """Keep a row for a service whose spec breaks schema or rules: what it has stays, nothing is started."""
    return Service(
        key=key_of(raw),
        uid=raw["metadata"].get("uid", ""),
        generation=raw["metadata"].get("generation", 0),
        spec=None,
        served_names=(),
        mode=Mode.PAUSED,
        slo=POLICY_BY_CLASS[ServiceClass.INTERACTIVE],
        pool=CPU_POOL,
        prior=None,
        plan=None,
        problems=(Problem(Reason.INVALID_SPEC, str(error)),),
    )


def _names(raw: Object, key: str, owners: Mapping[str, str]) -> tuple[tuple[str, ...], Problem | None]:
    """Return the names that a service keeps; without its own name it cannot be reached, so that blocks it."""
    claimed = names_claimed(raw)
    kept = tuple(name for name in claimed if owners.get(name) == key)
    lost = [name for name in claimed if name not in kept]
    if not lost:
        return kept, None
    told = ", ".join(f'"{name}" is kept by {owners[name]}' for name in lost)
    return kept, Problem(Reason.NAME_CONFLICT, told, blocking=claimed[0] in lost)


def _mode(raw: Object, service: InferenceService) -> Mode:
    paused = raw["metadata"].get("annotations", {}).get(ANNOTATION_PAUSED)
    return Mode.PAUSED if paused == "true" else MODES[service.spec.scaling.mode]


def _lead_cold_ms(spec: InferenceServiceSpec | None) -> int:
    if spec is None or spec.engine.type is EngineType.VLLM:
        return LEAD_COLD_VLLM_MS
    return LEAD_POD_MS + spec.engine.emulation.cold_start_seconds * 1000
