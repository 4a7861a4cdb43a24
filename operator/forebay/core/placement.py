"""Who gets the GPUs of a pool, and who goes first when fewer are wanted.

Serving replicas of all services come before warm ones of any; within each of these, what already runs comes first, then
priority, then whoever has least of what it asks for. What cannot be had is said so and not left pending.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from forebay.core.reasons import Reason
from forebay.core.snapshot import State
from forebay.core.stages import Verdict, holds
from forebay.core.units import MILLI, UNKNOWN, clamp, known, last_that_applies, or_else, segment_sum

if TYPE_CHECKING:
    from forebay.core.memory import Timers
    from forebay.core.sight import Sight
    from forebay.core.snapshot import Snapshot
    from forebay.core.stages import Facts
    from forebay.core.units import I64, Bool

# A replica that no node could take is tried again after half a minute, then a minute, at last every five.
BACKOFF_LEAST_MS: Final = 30_000
BACKOFF_MOST_MS: Final = 300_000
_UNBOUNDED: Final = 2**60
_UNREADY: Final = 3  # place among the kinds of victims


def withdraw(timers: Timers, seen: Sight) -> Timers:
    """Start or stop the pause after which replicas that found no node are tried again."""
    pausing = known(timers.retry_ms) & (seen.now_ms < or_else(timers.retry_ms, 0))
    again = (seen.withdrawn > 0) & ~pausing
    # Twice the last pause without a refusal: there is room again, and the next refusal starts from the beginning.
    since_ms = seen.now_ms - or_else(timers.retry_ms, seen.now_ms)
    calm = (seen.withdrawn == 0) & (since_ms >= 2 * timers.backoff_ms)
    longer = clamp(2 * timers.backoff_ms, BACKOFF_LEAST_MS, BACKOFF_MOST_MS)
    backoff_ms = np.where(again, longer, np.where(calm, 0, timers.backoff_ms))
    retry_ms = np.where(again, seen.now_ms + backoff_ms, np.where(calm, UNKNOWN, timers.retry_ms))
    return replace(timers, backoff_ms=backoff_ms, retry_ms=retry_ms)


def gpu_budget(facts: Facts, before: Verdict, snapshot: Snapshot) -> Verdict:
    """Share each pool's GPUs out; where its nodes cannot be read, nothing new is started."""
    fleet, seen, present = facts.fleet, facts.seen, facts.seen.present
    pool = np.where(fleet.gpus_per_replica > 0, fleet.pool, len(fleet.pools))
    readable = np.append(known(snapshot.gpus_allocatable) & known(snapshot.gpus_foreign), [True])[pool]
    pausing = known(facts.timers.retry_ms) & (seen.now_ms < or_else(facts.timers.retry_ms, 0))
    stuck = pausing | ~readable
    hold = holds(facts)
    total = before.serving + before.warm
    # What may not be removed has its GPUs already, even beyond the budget.
    kept = np.minimum(np.where(hold, total, before.serving), present)
    missing = np.maximum(before.serving - kept, 0)
    more_serving = np.where(stuck, 0, missing)
    warm = total - kept - missing
    kept_warm = np.minimum(warm, present - kept)
    more_warm = np.where(stuck, 0, warm - kept_warm)
    available = _available(fleet.gpus_max, snapshot)
    untouchable = np.where(hold, kept, 0)
    left = available - segment_sum(untouchable * fleet.gpus_per_replica, pool, len(available))
    asks = np.stack([kept - untouchable, more_serving, kept_warm, more_warm])
    kept, more_serving, kept_warm, more_warm = _allocate(facts, asks, pool, np.maximum(left, 0))
    granted = untouchable + kept + more_serving
    serving = np.minimum(before.serving, granted)
    warm = np.minimum(before.warm, granted + kept_warm + more_warm - serving)
    short = serving + warm < total
    reason = np.where(short, Reason.GPU_CAPACITY, Reason.NONE)
    reason = np.where(short & ~readable, Reason.GPU_NODES_UNREADABLE, reason)
    reason = np.where(pausing & (short | (seen.withdrawn > 0)), Reason.UNSCHEDULABLE, reason)
    used = segment_sum(snapshot.replicas.gpus, pool[snapshot.replicas.service], len(available))
    told = np.where((pool < len(fleet.pools)) & (available[pool] < _UNBOUNDED), available[pool], UNKNOWN)
    return Verdict(
        serving,
        warm,
        reason,
        (
            ("gpus_wanted", total * fleet.gpus_per_replica),
            ("gpus_granted", (serving + warm) * fleet.gpus_per_replica),
            ("gpus_available", told),
            ("gpus_used", used[pool]),
            ("unschedulable", seen.withdrawn),
            ("retry_ms", np.where(pausing, or_else(facts.timers.retry_ms, 0) - seen.now_ms, 0)),
        ),
    )


def suspects(snapshot: Snapshot, seen: Sight) -> tuple[str, ...]:
    """Name the replicas to replace whatever else is unknown."""
    leaving = snapshot.replicas.state == State.DRAINING
    return tuple(
        snapshot.replicas.uid[row] for row in np.flatnonzero((seen.suspect_rows | seen.withdrawn_rows) & ~leaving)
    )


def victims(snapshot: Snapshot, facts: Facts, verdict: Verdict) -> tuple[str, ...]:
    """Order the replicas that may go: those that are of no use first, then those whose leaving costs least.

    Failed, suspect, without a node, not ready (the youngest first), outdated, warm, and then by the requests that they
    hold; a queue that nobody could read counts as the longest. Of a service that may not shrink, only what has failed.
    """
    rows, seen = snapshot.replicas, facts.seen
    services = len(facts.fleet.services)
    present = rows.state != State.DRAINING

    def count(where: Bool) -> I64:
        return segment_sum(where.astype(np.int64), rows.service, services)

    surplus = (count(present) > verdict.serving + verdict.warm) | (count(rows.state == State.SERVING) > verdict.serving)
    surplus |= count(rows.outdated & present) > 0
    may_go = present & (rows.failed | seen.suspect_rows | (surplus & ~holds(facts))[rows.service])
    if not may_go.any():
        return ()
    kind = last_that_applies(
        np.full(len(rows.uid), 6),
        (rows.state == State.WARM, 5),
        (rows.outdated, 4),
        (~rows.ready, _UNREADY),
        (seen.withdrawn_rows, 2),
        (seen.suspect_rows, 1),
        (rows.failed, 0),
    )
    read = seen.fresh_rows
    work = np.where(read, or_else(rows.requests_running, 0) + or_else(rows.requests_waiting, 0), _UNBOUNDED)
    cost = np.where(kind == _UNREADY, or_else(rows.since_created_ms, 0), work)
    may = np.flatnonzero(may_go)
    return tuple(rows.uid[row] for row in may[np.lexsort((cost[may], kind[may], rows.service[may]))])


def _available(gpus_max: I64, snapshot: Snapshot) -> I64:
    """Return each pool's GPUs: what its owner allows, of what its nodes offer; one more entry for services without."""
    allowed = or_else(gpus_max, _UNBOUNDED)
    read = known(snapshot.gpus_allocatable) & known(snapshot.gpus_foreign)
    offered = or_else(snapshot.gpus_allocatable, 0) - or_else(snapshot.gpus_foreign, 0)
    return np.append(np.where(read, clamp(offered, 0, allowed), allowed), [_UNBOUNDED])


def _allocate(facts: Facts, asks: I64, pool: I64, available: I64) -> I64:
    """Fill the asks [tiers, S], in replicas, one after another out of each pool.

    Within a tier the order is priority, then the smallest share of what is asked for, then the name.
    """
    fleet = facts.fleet
    tiers, services = asks.shape
    # What fits as a whole fits in any order.
    asked = segment_sum(asks.sum(axis=0) * fleet.gpus_per_replica, pool, len(available))
    if (asked <= available).all():
        return asks
    share = MILLI * facts.seen.present // np.maximum(asks.sum(axis=0), 1)
    tier = np.repeat(np.arange(tiers), services)
    owner = np.tile(np.arange(services), tiers)
    order = np.lexsort((owner, share[owner], -fleet.priority[owner], tier, pool[owner]))
    each, home = fleet.gpus_per_replica[owner[order]], pool[owner[order]]
    gpus = asks.ravel()[order] * each
    before = np.cumsum(gpus) - gpus
    before -= before[np.searchsorted(home, home)] if len(home) else 0
    fits = clamp(available[home] - before, 0, gpus)
    granted = np.zeros(tiers * services, np.int64)
    granted[order] = np.where(each > 0, fits // np.maximum(each, 1), asks.ravel()[order])
    return granted.reshape(tiers, services)
