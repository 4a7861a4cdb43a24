"""A service decides alone as it does among ten thousand, where no budget binds."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from forebay.core.fleet import FleetSpec, Mode
from forebay.core.memory import initial_memory
from forebay.core.snapshot import GatewayRows, ReplicaRows, Snapshot, State
from forebay.core.step import step
from forebay.core.units import UNKNOWN
from forebay.wire.signals import ITL_BOUNDS_MS, TTFT_BOUNDS_MS
from tests.core import build
from tests.properties.test_core_step import only, only_fleet, retold

SERVICES = 10_000
REPLICAS_MOST = 10
LOOKS = 12
ALONE = 30  # of the ten thousand, judged once more for themselves
PLENTY = 10**6

# Counters of each replica: (name, most that a second adds).
GROWTH = {
    "prompt_tokens_total": 5000,
    "generation_tokens_total": 400,
    "prefix_query_tokens_total": 5000,
    "prefix_hit_tokens_total": 2500,
    "requests_finished_total": 6,
    "ttft_sum_ms": 4000,
    "itl_sum_ms": 12_000,
}


def fleet_of(dice: np.random.Generator, services: int) -> FleetSpec:
    """Services of every kind: modes, classes, bounds, with and without a step-time model."""
    spec = build.fleet(*({} for _ in range(services)), gpus_max=PLENTY)

    def some(*values: int | bool) -> Any:
        return dice.choice(np.array(values), services)

    return replace(
        spec,
        # Names sort as rows do, so that the last tie among equals is broken alike.
        services=tuple(f"a/s{row:05}" for row in range(services)),
        mode=some(*[Mode.AUTO] * 6, Mode.MANUAL, Mode.PAUSED),
        batch_class=some(False, False, True),
        blocked=some(*[False] * 7, True),
        replicas_min=dice.integers(0, 3, services),
        replicas_max=dice.integers(3, 30, services),
        idle_ms=some(1000, 30_000),
        scale_down_delay_ms=some(0, 2000, 8000),
        ttft_target_ms=some(1, 500, 5000),
        itl_mean_ms=some(5, 50),
        burst_multiplier_milli=some(1000, 5000),
        headroom_milli=some(0, 150),
        gpus_per_replica=some(0, 1, 4),
        batch_max=some(1, 8, 256),
        kv_tokens_prior=some(UNKNOWN, 10, 100_000),
        step_c0_ps=some(UNKNOWN, 20 * build.PS_PER_MS),
        step_p2_fs=some(0, 700),
    )


def looks_at(dice: np.random.Generator, spec: FleetSpec, looks: int) -> list[Snapshot]:
    """Look after look, a second apart, at replicas that come, work, restart, fall silent and go."""
    services = len(spec.services)
    each = dice.integers(0, REPLICAS_MOST + 1, services)
    service = np.repeat(np.arange(services), each)
    count = len(service)
    uid = np.array([f"r{row:06}" for row in dice.permutation(count)])
    order = np.argsort(uid)
    uid, service = uid[order], service[order]
    state = dice.choice(np.array([State.SERVING] * 5 + list(State)), count)
    totals: dict[str, Any] = {name: np.zeros(count, np.int64) for name in (*GROWTH, "ttft_count", "itl_count")}
    seen = []
    for place in range(looks):
        for name, most in (GROWTH | {"ttft_count": 6, "itl_count": 400}).items():
            totals[name] = totals[name] + dice.integers(0, most + 1, count)
        restarted = dice.random(count) < 0.01
        totals = {name: np.where(restarted, 0, column) for name, column in totals.items()}
        there = dice.random(count) > 0.02
        rows = replica_rows(dice, spec, uid[there], service[there], state[there])
        rows = replace(rows, **{name: totals[name][there] for name in GROWTH})
        buckets: dict[str, Any] = {
            f"{kind}_buckets": np.repeat(totals[f"{kind}_count"][there][:, None], len(bounds) + 1, axis=1)
            for kind, bounds in (("ttft", TTFT_BOUNDS_MS), ("itl", ITL_BOUNDS_MS))
        }
        state = np.where(dice.random(count) < 0.02, dice.choice(np.array(list(State)), count), state)
        seen.append(
            Snapshot(
                now_ms=100_000 + 1000 * place,
                replicas=replace(rows, **buckets),
                gateways=gateway_rows(dice, services, place),
                gateways_expected=2,
                gpus_allocatable=np.array([PLENTY]),
                gpus_foreign=np.array([0]),
            )
        )
    return seen


def sometimes(dice: np.random.Generator, column: Any, share: float, instead: Any) -> Any:
    return np.where(dice.random(len(column)) < share, instead, column)


def replica_rows(dice: np.random.Generator, spec: FleetSpec, uid: Any, service: Any, state: Any) -> ReplicaRows:
    """What a look reads of these replicas beside their counters; a few readings are stale or absent."""
    count = len(uid)
    plain = build.replica_rows([])
    columns = {
        field.name: np.zeros(count, getattr(plain, field.name).dtype)
        for field in fields(plain)
        if field.name not in {"uid", "ttft_buckets", "itl_buckets"}
    }
    told = {
        "service": service,
        "state": state,
        "age_ms": sometimes(dice, np.full(count, 200), 0.02, UNKNOWN),
        "since_created_ms": dice.integers(0, 300_000, count),
        "ready": dice.random(count) > 0.05,
        "failed": dice.random(count) < 0.01,
        "unschedulable": dice.random(count) < 0.01,
        "gpus": spec.gpus_per_replica[service],
        "requests_running": sometimes(dice, dice.integers(0, 9, count), 0.01, UNKNOWN),
        "requests_waiting": dice.integers(0, 4, count) * (dice.random(count) < 0.2),
        "kv_tokens_total": np.full(count, 100_000),
        "kv_tokens_used": sometimes(dice, dice.integers(0, 50_000, count), 0.01, UNKNOWN),
    }
    buckets = {name: np.zeros((count, 1), np.int64) for name in ("ttft_buckets", "itl_buckets")}
    return ReplicaRows(uid=tuple(uid.tolist()), **(columns | told | buckets))


def gateway_rows(dice: np.random.Generator, services: int, place: int) -> GatewayRows:
    """Two gateways; arrivals of every service jump in the later looks, so that bursts begin."""
    count = 2 * services
    columns = {field.name: np.zeros(count, np.int64) for field in fields(GatewayRows) if field.name != "uid"}
    service = np.tile(np.arange(services), 2)
    arrivals = (1 + service % 5) * place + (service % 3) * max(0, place - 6) * 20
    told = {
        "service": service,
        "age_ms": sometimes(dice, np.full(count, 100), 0.01, 60_000),
        "requests_held": dice.integers(0, 5, count) * (dice.random(count) < 0.1),
        "held_prompt_tokens": dice.integers(0, 5000, count),
        "held_oldest_ms": dice.integers(0, 900, count),
        "arrivals_total": arrivals,
        "arrival_prompt_tokens_total": arrivals * 700,
    }
    return GatewayRows(uid=("g0",) * services + ("g1",) * services, **(columns | told))


@pytest.mark.parametrize("seed", [1, 2])
def test_a_service_decides_alone_as_among_ten_thousand(seed: int) -> None:
    dice = np.random.default_rng(seed)
    spec = fleet_of(dice, SERVICES)
    looks = looks_at(dice, spec, LOOKS)
    rows = dice.choice(SERVICES, ALONE, replace=False).tolist()
    together, alone = initial_memory(spec, 0), {row: initial_memory(only_fleet(spec, row), 0) for row in rows}
    moved = 0
    for look in looks:
        together, among = step(spec, together, look)
        for row in rows:
            alone[row], single = step(only_fleet(spec, row), alone[row], only(look, row))
            assert among.decision(row) == replace(single.decision(0), steps=retold(single, among, row))
            moved += int(single.replicas_serving[0] != single.replicas_after[0, 0])
    assert moved > ALONE  # a world in which nothing changes would prove nothing
