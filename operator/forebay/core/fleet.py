"""What the fleet is told to be: every service and pool as columns, made by `resolve`, the only translator.

One row a service, sorted by key; one row a pool, sorted by key. All columns are int64 unless they say otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.core.units import I64, Bool


class Mode(IntEnum):
    """Who drives a service (`spec.scaling.mode`)."""

    AUTO = 0
    MANUAL = 1
    PAUSED = 2


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """The fleet's specification. Shapes: [S] = one row a service, [P] = one row a pool."""

    services: tuple[str, ...]  # "namespace/name", sorted
    pools: tuple[str, ...]  # GPUPool name, or "default/<resource>" for the implicit pool of a resource; sorted

    # --- who drives, and between which bounds [S]
    mode: I64  # a Mode
    batch_class: Bool  # class Batch: may reach zero
    blocked: Bool  # cannot run as specified (policy missing, model does not fit): hold what is there, start nothing
    replicas_manual: I64  # spec.replicas, obeyed in Manual
    replicas_min: I64
    replicas_max: I64
    idle_ms: I64  # without a request for this long a Batch service goes to zero
    scale_down_delay_ms: I64
    priority: I64

    # --- the SLO [S]
    ttft_target_ms: I64
    ttft_per_1k_prompt_tokens_ms: I64
    itl_mean_ms: I64
    itl_worst_second_ms: I64
    attainment_permille: I64
    burst_multiplier_milli: I64  # the expected burst: demand may become this many times as large ...
    burst_within_ms: I64  # ... within this time; a floor for the warm pool while history is short
    headroom_milli: I64
    warm_gpus_max: I64  # policy's maxIdleGPUs

    # --- one replica [S]
    pool: I64  # row in pools
    gpus_per_replica: I64  # 0: runs on the CPU, so no GPU budget binds; a limit on idle GPUs counts it as 1
    batch_max: I64  # maxNumSeqs
    step_tokens_max: I64  # maxNumBatchedTokens
    kv_tokens_prior: I64  # KV token slots by the formula, UNKNOWN where the model is not in the tables
    # Prior of the step time: c0 + c1*B + c2*context + p1*n + p2*n^2, engine overhead included
    # (engine_model.step_time); UNKNOWN where neither a profile nor a roofline gives one.
    step_c0_ps: I64
    step_c1_ps: I64  # a sequence
    step_c2_ps: I64  # a context token
    step_p1_ps: I64  # a prompt token
    step_p2_fs: I64  # a squared prompt token
    lead_promote_ms: I64  # prior: label written until traffic arrives
    lead_cold_ms: I64  # prior: pod created until ready

    # --- what may be spent, one row a pool
    gpus_max: I64  # GPUPool.spec.maxGPUs, UNKNOWN where only the nodes bound it
