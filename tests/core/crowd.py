"""Fleets of thousands drawn by a seed: services of every kind, and look after look at replicas that are never still."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from forebay.core.fleet import FleetSpec, Mode
from forebay.core.snapshot import GatewayRows, ReplicaRows, Snapshot, State
from forebay.core.units import UNKNOWN
from forebay.wire.signals import ITL_BOUNDS_MS, TTFT_BOUNDS_MS
from tests.core import build

if TYPE_CHECKING:
    from collections.abc import Iterator

PLENTY = 10**6  # GPUs: no budget binds
GATEWAYS = ("g0", "g1")
RARELY = 0.02  # of the replicas a look: changes its state, is not there, or lost its counters
# The look after which some services get twenty times as many requests.
BURST_AT = 6

# The most that a second adds to each counter of a replica.
GROWTH = {
    "prompt_tokens_total": 5000,
    "generation_tokens_total": 400,
    "prefix_query_tokens_total": 5000,
    "prefix_hit_tokens_total": 2500,
    "requests_finished_total": 6,
    "ttft_sum_ms": 4000,
    "itl_sum_ms": 12_000,
    "ttft_count": 6,
    "itl_count": 400,
}
_BUCKETS = {"ttft_count": ("ttft_buckets", TTFT_BOUNDS_MS), "itl_count": ("itl_buckets", ITL_BOUNDS_MS)}


def fleet(dice: np.random.Generator, services: int) -> FleetSpec:
    """All modes and classes, bounds narrow and wide, with and without a step-time model."""

    def some(*values: int | bool) -> Any:
        return dice.choice(np.array(values), services)

    return replace(
        build.fleet(*({} for _ in range(services)), gpus_max=PLENTY),
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


def looks(dice: np.random.Generator, spec: FleetSpec, replicas: Any) -> Iterator[Snapshot]:
    """Look at the fleet once a second, for ever.

    Parameters
    ----------
    replicas
        [S] of each service.
    """
    service = dice.permutation(np.repeat(np.arange(len(spec.services)), replicas))
    count = len(service)
    uids = [f"r{row:06}" for row in range(count)]
    state = dice.choice(np.array([State.SERVING] * 5 + list(State)), count)
    totals = dict.fromkeys(GROWTH, np.zeros(count, np.int64))
    for second in itertools.count(100):
        restarted = dice.random(count) < RARELY
        for name, most in GROWTH.items():
            totals[name] = np.where(restarted, 0, totals[name] + dice.integers(0, most + 1, count))
        state = np.where(dice.random(count) < RARELY, dice.choice(np.array(list(State)), count), state)
        there = dice.random(count) > RARELY
        rows = _replicas(dice, spec, service[there], state[there], {name: totals[name][there] for name in GROWTH})
        yield Snapshot(
            now_ms=second * 1000,
            replicas=replace(rows, uid=tuple(itertools.compress(uids, there))),
            gateways=_gateways(dice, len(spec.services), second - 100),
            gateways_expected=len(GATEWAYS),
            gpus_allocatable=np.array([PLENTY]),
            gpus_foreign=np.array([0]),
        )


def _replicas(dice: np.random.Generator, spec: FleetSpec, service: Any, state: Any, totals: Any) -> ReplicaRows:
    """Return what a look reads of these replicas; a few readings are stale or absent. Without names."""
    count = len(service)
    told = {
        "service": service,
        "state": state,
        "age_ms": _mostly(dice, np.full(count, 200), UNKNOWN),
        "since_created_ms": dice.integers(0, 300_000, count),
        "ready": dice.random(count) > RARELY,
        "failed": dice.random(count) < RARELY,
        "unschedulable": dice.random(count) < RARELY,
        "outdated": np.zeros(count, np.bool_),
        "gpus": spec.gpus_per_replica[service],
        "requests_running": _mostly(dice, dice.integers(0, 9, count), UNKNOWN),
        "requests_waiting": dice.integers(0, 4, count) * (dice.random(count) < 10 * RARELY),
        "kv_tokens_total": np.full(count, 100_000),
        "kv_tokens_used": _mostly(dice, dice.integers(0, 50_000, count), UNKNOWN),
    }
    for name, column in totals.items():
        buckets, bounds = _BUCKETS.get(name, (name, ()))
        # Only the last bucket, the count of all, is read by core.
        told[buckets] = np.repeat(column[:, None], len(bounds) + 1, axis=1) if bounds else column
    return ReplicaRows(uid=(), **{name: told.get(name, np.zeros(count, np.int64)) for name in _names(ReplicaRows)})


def _gateways(dice: np.random.Generator, services: int, second: int) -> GatewayRows:
    """Return what every gateway says of every service; every third service gets a burst."""
    count = len(GATEWAYS) * services
    service = np.tile(np.arange(services), len(GATEWAYS))
    arrivals = (1 + service % 5) * second + (service % 3 == 1) * max(0, second - BURST_AT) * 20
    told = {
        "service": service,
        "age_ms": _mostly(dice, np.full(count, 100), 60_000),
        "requests_held": dice.integers(0, 5, count) * (dice.random(count) < 5 * RARELY),
        "held_prompt_tokens": dice.integers(0, 5000, count),
        "held_oldest_ms": dice.integers(0, 900, count),
        "arrivals_total": arrivals,
        "arrival_prompt_tokens_total": arrivals * 700,
    }
    columns = {name: told.get(name, np.zeros(count, np.int64)) for name in _names(GatewayRows)}
    return GatewayRows(uid=tuple(np.repeat(GATEWAYS, services).tolist()), **columns)


def _mostly(dice: np.random.Generator, column: Any, otherwise: int) -> Any:
    return np.where(dice.random(len(column)) < RARELY, otherwise, column)


def _names(rows: type[ReplicaRows | GatewayRows]) -> list[str]:
    return [field.name for field in fields(rows) if field.name != "uid"]
