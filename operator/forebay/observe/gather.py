"""OBSERVE, last step: pods, nodes, readings and the fleet become one Snapshot. Pure; what is absent is UNKNOWN."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np

from forebay.core.reasons import Reason
from forebay.core.snapshot import GatewayRows, ReplicaRows, Snapshot, State
from forebay.core.units import UNKNOWN
from forebay.wire.lifecycle import EnginePhase, ReplicaState
from forebay.wire.signals import ITL_BOUNDS_MS, TTFT_BOUNDS_MS, GatewayService

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from forebay.core.units import I64
    from forebay.observe.gateways import GatewayReading
    from forebay.observe.pods import Node, ReplicaPod
    from forebay.observe.scrape import Reading
    from forebay.observe.world import World
    from forebay.resolve.fleet import Fleet
    from forebay.resolve.references import Pool
    from forebay.wire.signals import ReplicaSignals

STATES = {
    ReplicaState.STARTING: State.STARTING,
    ReplicaState.WARM: State.WARM,
    ReplicaState.SERVING: State.SERVING,
    ReplicaState.DRAINING: State.DRAINING,
}
# The node controller waits 40 s for a heartbeat before it says that a node is lost; a kubelet that restarts is back
# within seconds of that. After this long in addition its replicas count as failed and are replaced.
NODE_LOST_MS = 30_000

# Columns of ReplicaRows that come from a reading, in the order in which a reading's row holds them.
SIGNALS = (
    "start_ms", "requests_running", "requests_waiting", "kv_tokens_total", "kv_tokens_used", "prompt_tokens_total",
    "generation_tokens_total", "prefix_query_tokens_total", "prefix_hit_tokens_total", "preemptions_total",
    "requests_finished_total", "ttft_sum_ms", "itl_sum_ms",
)  # fmt: skip
_TTFT = len(TTFT_BOUNDS_MS) + 1
_ITL = len(ITL_BOUNDS_MS) + 1
_WIDTH = len(SIGNALS) + _TTFT + _ITL
_ABSENT = np.full(_WIDTH, UNKNOWN)
_COUNTS = tuple(field.name for field in fields(GatewayService))


def signal_row(signals: ReplicaSignals) -> I64:
    """Lay a replica's document out as one row: SIGNALS, then both histograms."""
    total = _times(signals.kv_blocks_total, signals.kv_block_tokens)
    used = _times(total, signals.kv_used_permille)
    known = {"kv_tokens_total": total, "kv_tokens_used": None if used is None else used // 1000}
    values = [known[name] if name in known else getattr(signals, name) for name in SIGNALS]
    values += signals.ttft_buckets or (None,) * _TTFT
    values += signals.itl_buckets or (None,) * _ITL
    return np.array([UNKNOWN if value is None else value for value in values], np.int64)


def _times(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one * other


def replicas(
    world: World, readings: Mapping[str, Reading], *, nodes_known: bool, wall_ms: int
) -> dict[str, tuple[ReplicaPod, ...]]:
    """List every service's replicas, sorted by uid, those as failed whose engine says so or whose node is lost.

    Parameters
    ----------
    world
        Pods and nodes.
    readings
        Pod uid to the last thing that it said.
    nodes_known
        Whether the mirror of the nodes is to be believed.
    wall_ms
        The clock of the cluster's timestamps.
    """
    alive = {node.name for node in world.nodes.values() if not _is_lost(node, wall_ms)}

    def seen(pod: ReplicaPod) -> ReplicaPod:
        if pod.failed:
            return pod
        if nodes_known and pod.node and pod.node not in alive:
            return replace(pod, failure=Reason.ENGINE_FAILED, failure_message=f"node {pod.node} is lost")
        reading = readings.get(pod.uid)
        if reading is not None and reading.signals.phase == EnginePhase.FAILED:
            # Never ready: the label is still the first one. The supervisor's log has the engine's last words.
            never = pod.state is ReplicaState.STARTING
            reason = Reason.ENGINE_NEVER_READY if never else Reason.ENGINE_FAILED
            return replace(pod, failure=reason, failure_message=f"see kubectl logs {pod.name}")
        return pod

    return {service: tuple(seen(pods[uid]) for uid in sorted(pods)) for service, pods in sorted(world.replicas.items())}


def gather(
    fleet: Fleet,
    world: World,
    pods: Mapping[str, Sequence[ReplicaPod]],
    readings: Mapping[str, Reading],
    gateways: Mapping[str, GatewayReading],
    *,
    nodes_known: bool,
    now_ms: int,
    wall_ms: int,
) -> Snapshot:
    """Take one look.

    Parameters
    ----------
    fleet
        The specification; its rows name services and pools.
    world
        Pods and nodes.
    pods
        From `replicas`.
    readings, gateways
        Pod uid to the last thing that it said.
    nodes_known
        Whether the mirror of the nodes is to be believed.
    now_ms, wall_ms
        The loop's clock and the clock of the cluster's timestamps.
    """
    rows = {service.key: row for row, service in enumerate(fleet.services)}
    listed = [(rows[service], pod) for service, of in pods.items() if service in rows for pod in of]
    listed.sort(key=lambda item: item[1].uid)
    allocatable, foreign = _pools(fleet, world, nodes_known=nodes_known)
    return Snapshot(
        now_ms=now_ms,
        replicas=_replica_rows(fleet, listed, readings, now_ms=now_ms, wall_ms=wall_ms),
        gateways=_gateway_rows(rows, gateways, now_ms),
        gateways_expected=len(world.gateways),
        gpus_allocatable=allocatable,
        gpus_foreign=foreign,
    )


def _is_lost(node: Node, wall_ms: int) -> bool:
    return node.lost_since_ms is not None and wall_ms - node.lost_since_ms >= NODE_LOST_MS


def _replica_rows(
    fleet: Fleet,
    pods: Sequence[tuple[int, ReplicaPod]],
    readings: Mapping[str, Reading],
    *,
    now_ms: int,
    wall_ms: int,
) -> ReplicaRows:
    revisions = [service.plan.revision if service.plan else None for service in fleet.services]
    heard = [readings.get(pod.uid) for _, pod in pods]
    ages = [reading.age_ms(now_ms) if reading is not None else None for reading in heard]
    block = np.array([_ABSENT if r is None else r.row for r in heard], np.int64).reshape(len(pods), _WIDTH)
    by_signal = {name: block[:, place].copy() for place, name in enumerate(SIGNALS)}
    return ReplicaRows(
        uid=tuple(pod.uid for _, pod in pods),
        service=_ints(row for row, _ in pods),
        state=_ints(State.DRAINING if pod.leaving else STATES[pod.state] for _, pod in pods),
        age_ms=_ints(UNKNOWN if age is None else age for age in ages),
        since_created_ms=_ints(max(0, wall_ms - pod.created_ms) for _, pod in pods),
        ready=_bools(pod.ready and not pod.deleting for _, pod in pods),
        failed=_bools(pod.failed for _, pod in pods),
        unschedulable=_bools(pod.unschedulable for _, pod in pods),
        outdated=_bools(revisions[row] is not None and pod.revision != revisions[row] for row, pod in pods),
        gpus=_ints(pod.gpus for _, pod in pods),
        ttft_buckets=block[:, len(SIGNALS) : len(SIGNALS) + _TTFT].copy(),
        itl_buckets=block[:, len(SIGNALS) + _TTFT :].copy(),
        **by_signal,
    )


def _gateway_rows(rows: Mapping[str, int], gateways: Mapping[str, GatewayReading], now_ms: int) -> GatewayRows:
    entries = sorted(
        (
            (uid, rows[key], max(0, now_ms - reading.received_ms), service)
            for uid, reading in gateways.items()
            for key, service in reading.signals.services.items()
            if key in rows
        ),
        key=lambda entry: entry[:2],
    )
    return GatewayRows(
        uid=tuple(uid for uid, *_ in entries),
        service=_ints(row for _, row, *_ in entries),
        age_ms=_ints(age for _, _, age, _ in entries),
        **{name: _ints(getattr(service, name) for *_, service in entries) for name in _COUNTS},
    )


def _pools(fleet: Fleet, world: World, *, nodes_known: bool) -> tuple[I64, I64]:
    """Count each pool's devices, and those of them that others hold: foreign pods, and replicas of other pools."""
    count = len(fleet.pools)
    if not nodes_known:
        return np.full(count, UNKNOWN), np.zeros(count, np.int64)
    pool_of = {service.key: service.pool.name for service in fleet.services}
    held: dict[tuple[str, str], int] = {}  # (node, resource) to devices held by any pod
    own: dict[tuple[str, str, str], int] = {}  # (pool, node, resource) to devices held by replicas of that pool
    for pod in world.foreign.values():
        held[pod.node, pod.resource] = held.get((pod.node, pod.resource), 0) + pod.gpus
    for service, pods in world.replicas.items():
        pool = pool_of.get(service, "")
        for replica in pods.values():
            if replica.node and replica.gpus:
                at = (replica.node, replica.resource)
                held[at] = held.get(at, 0) + replica.gpus
                own[pool, *at] = own.get((pool, *at), 0) + replica.gpus
    allocatable, foreign = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for row, of in enumerate(fleet.pools):
        for node in world.nodes.values():
            if not _belongs(node, of):
                continue
            taken = held.get((node.name, of.resource), 0)
            # What cannot take new pods offers what is held there and no more: it neither adds nor takes room.
            allocatable[row] += node.devices[of.resource] if node.usable else taken
            foreign[row] += taken - own.get((of.name, node.name, of.resource), 0)
    return allocatable, foreign


def _belongs(node: Node, pool: Pool) -> bool:
    selector = pool.node_selector.items()
    return pool.resource in node.devices and all(node.labels.get(key) == value for key, value in selector)


def _ints(values: Iterable[int]) -> I64:
    return np.fromiter(values, np.int64)


def _bools(values: Iterable[bool]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.fromiter(values, np.bool_)
