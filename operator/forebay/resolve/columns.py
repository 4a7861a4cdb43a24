"""Rows of numbers become core's columns."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from forebay.core.fleet import FleetSpec

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Row:
    """One service's numbers, by the names of FleetSpec's columns."""

    mode: int
    batch_class: bool
    blocked: bool
    replicas_manual: int
    replicas_min: int
    replicas_max: int
    idle_ms: int
    scale_down_delay_ms: int
    priority: int
    ttft_target_ms: int
    ttft_per_1k_prompt_tokens_ms: int
    itl_mean_ms: int
    itl_worst_second_ms: int
    attainment_permille: int
    burst_multiplier_milli: int
    burst_within_ms: int
    headroom_milli: int
    warm_gpus_max: int
    pool: int
    gpus_per_replica: int
    batch_max: int
    step_tokens_max: int
    kv_tokens_prior: int
    step_c0_ps: int
    step_c1_ps: int
    step_c2_ps: int
    step_p1_ps: int
    step_p2_fs: int
    lead_promote_ms: int
    lead_cold_ms: int


def columns(services: Sequence[str], rows: Sequence[Row], pools: Sequence[str], gpus_max: Sequence[int]) -> FleetSpec:
    """Return the fleet as columns.

    Parameters
    ----------
    services
        Keys, sorted.
    rows
        One a service, in the same order.
    pools
        Names, sorted.
    gpus_max
        One a pool, in the same order.
    """
    by_name: dict[str, Any] = {
        field.name: np.array(
            [getattr(row, field.name) for row in rows], dtype=np.bool_ if field.type == "bool" else np.int64
        )
        for field in fields(Row)
    }
    return FleetSpec(
        services=tuple(services), pools=tuple(pools), gpus_max=np.array(gpus_max, dtype=np.int64), **by_name
    )
