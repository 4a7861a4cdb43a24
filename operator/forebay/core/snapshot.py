"""One look at the cluster: what `observe` gathers and `step` judges. Times are integers that arrive as arguments.

A column holds UNKNOWN where a reading is absent; `age_ms` says how old the readings of a row are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.core.units import I64, Bool


class State(IntEnum):
    """`forebay.wire.lifecycle.ReplicaState` as a number."""

    STARTING = 0
    WARM = 1
    SERVING = 2
    DRAINING = 3


@dataclass(frozen=True, slots=True)
class ReplicaRows:
    """One row a replica that has a pod, sorted by uid. Shape [R] unless said."""

    uid: tuple[str, ...]
    service: I64  # row in FleetSpec.services
    state: I64  # a State
    age_ms: I64  # age of the signals below; UNKNOWN: never read
    since_created_ms: I64
    ready: Bool  # the pod is Ready: its engine answered and was rehearsed
    failed: Bool  # the engine failed, the image cannot be pulled, or the pod ended
    unschedulable: Bool  # the scheduler said that no node can take it
    outdated: Bool  # made for an older revision of the spec
    gpus: I64
    start_ms: I64  # how long the engine took to become READY; UNKNOWN while it starts
    requests_running: I64
    requests_waiting: I64
    kv_tokens_total: I64
    kv_tokens_used: I64
    prompt_tokens_total: I64
    generation_tokens_total: I64
    prefix_query_tokens_total: I64
    prefix_hit_tokens_total: I64
    preemptions_total: I64
    requests_finished_total: I64
    ttft_sum_ms: I64
    itl_sum_ms: I64
    ttft_buckets: I64  # [R, len(TTFT_BOUNDS_MS) + 1], cumulative; a row is all UNKNOWN or all known
    itl_buckets: I64  # [R, len(ITL_BOUNDS_MS) + 1]


@dataclass(frozen=True, slots=True)
class GatewayRows:
    """One row a (gateway, service) pair, sorted by (uid, service). Shape [G]."""

    uid: tuple[str, ...]
    service: I64
    age_ms: I64
    requests_held: I64
    held_prompt_tokens: I64
    held_oldest_ms: I64
    requests_in_flight: I64
    arrivals_total: I64
    arrival_prompt_tokens_total: I64
    admitted_total: I64
    answered_total: I64
    refused_total: I64
    aborted_total: I64
    failed_total: I64


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that one tick knows."""

    now_ms: int  # of the loop's clock; only differences mean anything
    replicas: ReplicaRows
    gateways: GatewayRows
    gateways_expected: int  # gateway pods that exist, whether or not they answer
    gpus_allocatable: I64  # [P] healthy GPUs on the pool's nodes; UNKNOWN: nodes could not be read
    gpus_foreign: I64  # [P] of those, held by pods that are not ours
