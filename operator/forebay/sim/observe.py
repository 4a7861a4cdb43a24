"""What is seen of the simulated world: by the operator a snapshot, by a rival's metrics system a sample.

Nothing else of it reaches a judgement; both speak of what was scraped last, not of what is true.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forebay.core.snapshot import GatewayRows, ReplicaRows, Snapshot, State
from forebay.engine_model.bank import RUNNING, WAITING
from forebay.sim.datapath import layout
from forebay.sim.sample import Sample
from forebay.wire.signals import ITL_BOUNDS_MS, TTFT_BOUNDS_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.sim.service import SimulatedService


def snapshot_of(services: Sequence[SimulatedService], gpus: Sequence[int], now_us: int, clock_ms: int) -> Snapshot:
    """Make of the world what the operator would have gathered; `gpus` are each pool's, uids are `<row>-<number>`."""
    tables = [service.columns() for service in services]
    columns = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    uid = tuple(
        f"{row:05d}-{number:07d}" for row, number in zip(columns["service"], columns.pop("number"), strict=True)
    )
    false = np.zeros(len(uid), bool)
    replicas = ReplicaRows(
        uid=uid,
        failed=false,
        unschedulable=false,
        outdated=false,
        ttft_buckets=np.repeat(columns.pop("ttft_count")[:, None], len(TTFT_BOUNDS_MS) + 1, axis=1),
        itl_buckets=np.repeat(columns.pop("itl_count")[:, None], len(ITL_BOUNDS_MS) + 1, axis=1),
        **columns,
    )
    return Snapshot(
        now_ms=clock_ms,
        replicas=replicas,
        gateways=_gateway_rows(services, now_us),
        gateways_expected=1,
        gpus_allocatable=np.array(gpus, np.int64),
        gpus_foreign=np.zeros(len(gpus), np.int64),
    )


def _gateway_rows(services: Sequence[SimulatedService], now_us: int) -> GatewayRows:
    clock = np.stack([np.asarray(service.path.clock) for service in services])
    oldest = [
        (now_us - int(service.path.arrived[service.path.hold_after[0]])) // 1000
        if service.path.clock[layout.HELD]
        else 0
        for service in services
    ]
    ended = clock[:, layout.ANSWERED] + clock[:, layout.REFUSED] + clock[:, layout.FAILED]
    zero = np.zeros(len(services), np.int64)
    return GatewayRows(
        uid=("gateway",) * len(services),
        service=np.arange(len(services)),
        age_ms=zero,
        requests_held=clock[:, layout.HELD],
        held_prompt_tokens=clock[:, layout.HELD_TOKENS],
        held_oldest_ms=np.array(oldest, np.int64),
        requests_in_flight=clock[:, layout.ARRIVALS] - ended - clock[:, layout.HELD],
        arrivals_total=clock[:, layout.ARRIVALS],
        arrival_prompt_tokens_total=clock[:, layout.ARRIVAL_TOKENS],
        admitted_total=clock[:, layout.ARRIVALS],
        answered_total=clock[:, layout.ANSWERED],
        refused_total=clock[:, layout.REFUSED],
        aborted_total=zero,
        failed_total=clock[:, layout.FAILED],
    )


def sample_of(service: SimulatedService) -> Sample:
    """Make of the world what a metrics system would have scraped of one service, at the time of its last scrape."""
    scrape, clock = service.last_scrape, service.path.clock
    live = service.state == State.SERVING
    lane = scrape.lane

    def total(field: int) -> int:
        return int(lane[:, field].sum() + scrape.past[field])

    return Sample(
        at_ms=scrape.at_us // 1000,
        replicas=service.count(State.STARTING, State.SERVING),
        replicas_ready=int(live.sum()),
        running=scrape.counts[live, RUNNING],
        waiting=scrape.counts[live, WAITING],
        held=int(clock[layout.HELD]),
        kv_usage_milli=service.kv_used_milli(scrape)[live],
        arrivals_total=int(clock[layout.ARRIVALS]),
        finished_total=int(clock[layout.ANSWERED]),
        prompt_tokens_total=int(clock[layout.ARRIVAL_TOKENS]),
        generation_tokens_total=total(layout.GENERATION_TOTAL),
        ttft_sum_ms=total(layout.TTFT_SUM_US) // 1000,
        ttft_count=total(layout.TTFT_COUNT),
        itl_sum_ms=total(layout.ITL_SUM_US) // 1000,
        itl_count=total(layout.ITL_COUNT),
    )
