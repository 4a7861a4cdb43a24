"""Fleets and snapshots for tests of core: one sentence each, everything else at a default that is derived here.

The default replica is an 8B model on an L40S with eight slots. Its decode step is 20 ms + 0.5 ms a sequence: 24 ms at
eight, so 8 / 0.024 s = 333 tokens/s. An answer has 200 tokens: 0.6 s of a full replica's time, 4.8 s in the batch. A
prompt has 1000 tokens at 0.1 ms: 0.1 s of its time. One request costs 0.7 s, so a replica does 1.43 requests/s.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from forebay.core.fleet import FleetSpec, Mode
from forebay.core.memory import Memory, initial_memory
from forebay.core.snapshot import GatewayRows, ReplicaRows, Snapshot, State
from forebay.core.units import UNKNOWN
from forebay.wire.signals import ITL_BOUNDS_MS, TTFT_BOUNDS_MS

PS_PER_MS = 10**9
ANSWER_TOKENS = 200
PROMPT_TOKENS = 1000

_SERVICE = {
    "mode": Mode.AUTO,
    "batch_class": False,
    "blocked": False,
    "replicas_manual": 1,
    "replicas_min": 1,
    "replicas_max": 20,
    "idle_ms": 300_000,
    "scale_down_delay_ms": 120_000,
    "priority": 100,
    "ttft_target_ms": 500,
    "ttft_per_1k_prompt_tokens_ms": 150,
    "itl_mean_ms": 50,
    "itl_worst_second_ms": 200,
    "attainment_permille": 990,
    "burst_multiplier_milli": 5000,
    "burst_within_ms": 30_000,
    "headroom_milli": 150,
    "warm_gpus_max": 8,
    "pool": 0,
    "gpus_per_replica": 1,
    "batch_max": 8,
    "step_tokens_max": 2048,
    "kv_tokens_prior": 100_000,
    "step_c0_ps": 20 * PS_PER_MS,
    "step_c1_ps": PS_PER_MS // 2,
    "step_c2_ps": 0,
    "step_p1_ps": PS_PER_MS // 10,
    "step_p2_fs": 0,
    "lead_promote_ms": 200,
    "lead_cold_ms": 90_000,
}

_REPLICA = {
    "state": State.SERVING,
    "age_ms": 200,
    "since_created_ms": 600_000,
    "ready": True,
    "failed": False,
    "unschedulable": False,
    "outdated": False,
    "gpus": 1,
    "start_ms": 80_000,
    "requests_running": 0,
    "requests_waiting": 0,
    "kv_tokens_total": 100_000,
    "kv_tokens_used": 0,
    "prompt_tokens_total": 0,
    "generation_tokens_total": 0,
    "prefix_query_tokens_total": 0,
    "prefix_hit_tokens_total": 0,
    "preemptions_total": 0,
    "requests_finished_total": 0,
    "ttft_sum_ms": 0,
    "itl_sum_ms": 0,
    "ttft_count": 0,
    "itl_count": 0,
}

_GATEWAY = {
    "age_ms": 100,
    "requests_held": 0,
    "held_prompt_tokens": 0,
    "held_oldest_ms": 0,
    "requests_in_flight": 0,
    "arrivals_total": 0,
    "arrival_prompt_tokens_total": 0,
    "admitted_total": 0,
    "answered_total": 0,
    "refused_total": 0,
    "aborted_total": 0,
    "failed_total": 0,
}

UNREAD = {
    name: UNKNOWN
    for name in _REPLICA
    if name not in {"state", "since_created_ms", "ready", "failed", "gpus", "start_ms"}
} | {"unschedulable": False, "outdated": False}


def fleet(*services: dict[str, Any], gpus_max: int = UNKNOWN) -> FleetSpec:
    """A fleet of services a/s0, a/s1, ... in one pool; each dictionary overrides defaults."""
    columns = {
        name: np.array(
            [(_SERVICE | service)[name] for service in services], bool if isinstance(value, bool) else np.int64
        )
        for name, value in _SERVICE.items()
    }
    keys = tuple(f"a/s{row}" for row in range(len(services)))
    return FleetSpec(services=keys, pools=("gpus",), gpus_max=np.array([gpus_max]), **columns)


def replica_rows(rows: list[dict[str, Any]]) -> ReplicaRows:
    """Replicas r0000, r0001, ... of service 0 unless said."""
    full = [_REPLICA | {"service": 0} | row for row in rows]
    count = len(full)

    def column(name: str) -> Any:
        return np.array([row[name] for row in full], bool if isinstance(_REPLICA.get(name), bool) else np.int64)

    def buckets(name: str, bounds: int) -> Any:
        # Only the last entry, the count of all, is read by core.
        return np.repeat(column(name).reshape(count, 1), bounds + 1, axis=1)

    return ReplicaRows(
        uid=tuple(row.get("uid", f"r{place:04}") for place, row in enumerate(full)),
        service=column("service"),
        ttft_buckets=buckets("ttft_count", len(TTFT_BOUNDS_MS)),
        itl_buckets=buckets("itl_count", len(ITL_BOUNDS_MS)),
        **{name: column(name) for name in _REPLICA if name not in {"ttft_count", "itl_count"}},
    )


def gateway_rows(rows: list[dict[str, Any]]) -> GatewayRows:
    """One gateway g0 for service 0 unless said."""
    full = [_GATEWAY | {"service": 0, "uid": "g0"} | row for row in rows]
    names = [field.name for field in fields(GatewayRows)]
    columns = {name: np.array([row[name] for row in full], np.int64) for name in names if name != "uid"}
    return GatewayRows(uid=tuple(row["uid"] for row in full), **columns)


def snapshot(
    now_ms: int,
    replicas: list[dict[str, Any]],
    gateways: list[dict[str, Any]] | None = None,
    *,
    gateways_expected: int = 1,
    allocatable: int = 64,
    foreign: int = 0,
) -> Snapshot:
    """One look; by default one gateway that answers."""
    return Snapshot(
        now_ms=now_ms,
        replicas=replica_rows(replicas),
        gateways=gateway_rows([{}] if gateways is None else gateways),
        gateways_expected=gateways_expected,
        gpus_allocatable=np.array([allocatable]),
        gpus_foreign=np.array([foreign]),
    )


def settled(spec: FleetSpec, serving: int, warm: int = 0, now_ms: int = 0) -> Memory:
    """Memory that decided this in the past and whose windows are full of silence."""
    memory = initial_memory(spec, now_ms - 3_600_000)
    count = len(spec.services)
    safety = replace(memory.safety, replicas_serving=np.full(count, serving), replicas_warm=np.full(count, warm))
    timers = replace(memory.recent.timers, busy_ms=np.full(count, now_ms - 1000))
    return replace(memory, safety=safety, recent=replace(memory.recent, now_ms=now_ms - 1000, timers=timers))
