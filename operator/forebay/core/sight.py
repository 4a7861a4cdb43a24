"""What is known of each service, and what may be done with it: rising needs a suspicion, falling needs knowledge.

    what is known                                  up                       down   floor
    every serving replica and gateway fresh        yes                      yes    yes
    some replicas fresh                            yes, extrapolated        no     yes
    no replica fresh, a gateway fresh              yes, from the gateway    no     yes
    nothing fresh                                  no: hold                 no     yes

A replica that holds requests and makes no token for three minutes is suspect: its queue is ignored and it is replaced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from forebay.core.reasons import Reason
from forebay.core.snapshot import State
from forebay.core.units import UNKNOWN, ceil_div, clamp, known, last_that_applies, or_else, segment_sum
from forebay.core.windows import STABLE_SECONDS, is_fresh

if TYPE_CHECKING:
    from forebay.core.memory import Memory, ReplicaBaseline
    from forebay.core.snapshot import GatewayRows, ReplicaRows, Snapshot
    from forebay.core.units import I64, Bool

# A long prefill of 128 k tokens takes under a minute on any GPU in the tables; three without a token is no work.
SUSPECT_MS: Final = 180_000
# The scheduler says at once that no node fits, and changes its mind when a pod leaves: ten seconds of patience.
UNSCHEDULABLE_MS: Final = 10_000
# Larger counts are misread ones; capping them keeps every product below in an int64.
COUNT_MAX: Final = 10**7
TOKENS_MAX: Final = 10**12


@dataclass(frozen=True, slots=True)
class Sight:
    """One look, summed up. Shape [S] unless said."""

    now_ms: int
    elapsed_ms: int  # since the last tick
    fresh_rows: Bool  # [R] its signals may be judged by
    suspect_rows: Bool  # [R]
    withdrawn_rows: Bool  # [R] found no node for too long
    # --- replicas by state; failed and withdrawn ones are in none of these
    serving: I64
    serving_ready: I64
    warm: I64
    warm_ready: I64
    starting: I64
    withdrawn: I64
    suspect: I64
    # --- what is known
    fresh: I64  # serving replicas whose signals are fresh
    gateways_fresh: I64
    gateways_expected: int
    may_rise: Bool
    may_fall: Bool
    reason: I64  # a Reason: the row of the table above
    # --- load: sums over serving replicas, extrapolated from the fresh ones
    running: I64
    waiting: I64
    kv_tokens_used: I64  # UNKNOWN where no fresh replica says it
    kv_tokens_each: I64  # a replica's KV slots, UNKNOWN likewise
    held: I64
    held_prompt_tokens: I64
    held_oldest_ms: I64
    in_flight: I64  # sent to replicas and not ended, as the gateways know it at once and the engines a look later

    @property
    def present(self) -> I64:
        """Replicas that have a pod and may yet serve."""
        return self.serving + self.warm + self.starting

    @property
    def gateways_tell(self) -> Bool:
        """Where every gateway answers they know all arrivals; engines see a held backlog arrive at once, and late."""
        answer: Bool = (self.gateways_fresh >= self.gateways_expected) & (self.gateways_fresh > 0)
        return answer

    @property
    def occupied(self) -> I64:
        """Requests that are anywhere between gateway and last token, by what the engines say."""
        return self.running + self.waiting + self.held

    @property
    def seated(self) -> I64:
        """The same by whoever saw more: in a burst's first second the engines' numbers are of before the burst."""
        answer: I64 = np.maximum(self.running + self.waiting, self.in_flight) + self.held
        return answer


def look(memory: Memory, snapshot: Snapshot, baseline: ReplicaBaseline) -> Sight:
    """Sum up what is seen of each service, and say what may be done.

    Parameters
    ----------
    memory
        Of the last tick.
    snapshot
        What is seen now.
    baseline
        This tick's, for who has made progress.
    """
    rows, gateways, services = snapshot.replicas, snapshot.gateways, len(memory.services)

    def count(where: Bool) -> I64:
        return segment_sum(where.astype(np.int64), rows.service, services)

    withdrawn = rows.unschedulable & (rows.since_created_ms >= UNSCHEDULABLE_MS) & (rows.state == State.STARTING)
    alive = ~rows.failed & ~withdrawn
    serving = alive & (rows.state == State.SERVING)
    warm = alive & (rows.state == State.WARM)
    fresh = alive & is_fresh(rows.age_ms) & known(rows.requests_running) & known(rows.requests_waiting)
    suspect = fresh & (snapshot.now_ms - baseline.progress_ms >= SUSPECT_MS)
    gateway_fresh = is_fresh(gateways.age_ms)
    counts = {
        "serving": count(serving),
        "serving_ready": count(serving & rows.ready & ~suspect),
        "warm": count(warm),
        "warm_ready": count(warm & rows.ready),
        "starting": count(alive & (rows.state == State.STARTING)),
        "withdrawn": count(withdrawn),
        "suspect": count(suspect),
        "fresh": count(serving & fresh),
        "gateways_fresh": segment_sum(gateway_fresh.astype(np.int64), gateways.service, services),
    }
    settled = snapshot.now_ms - memory.recent.timers.since_ms >= STABLE_SECONDS * 1000
    unready = counts["serving"] - count(serving & rows.ready)
    may_rise, may_fall, reason = _permissions(counts, unready, snapshot.gateways_expected, settled)
    return Sight(
        now_ms=snapshot.now_ms,
        elapsed_ms=snapshot.now_ms - memory.recent.now_ms,
        fresh_rows=fresh,
        suspect_rows=suspect,
        withdrawn_rows=withdrawn,
        gateways_expected=snapshot.gateways_expected,
        may_rise=may_rise,
        may_fall=may_fall,
        reason=reason,
        **counts,
        **_engine_load(rows, serving & fresh & ~suspect, serving & ~suspect, services),
        **_held(gateways, gateway_fresh, services),
    )


def _permissions(counts: dict[str, I64], unready: I64, expected: int, settled: Bool) -> tuple[Bool, Bool, I64]:
    """Read the table at the top of this file; the last reason that applies is told."""
    serving, fresh, gateways = counts["serving"], counts["fresh"], counts["gateways_fresh"]
    may_rise = (fresh > 0) | (gateways > 0)
    gateways_all = (gateways >= expected) if expected > 0 else (serving > 0)
    may_fall = settled & (fresh == serving) & (unready == 0) & gateways_all
    reason = last_that_applies(
        np.full_like(serving, int(Reason.METRICS_FRESH)),
        (~settled, Reason.SETTLING),
        (unready > 0, Reason.REPLICAS_UNREADY),
        (~gateways_all, Reason.GATEWAY_STALE),
        (fresh < serving, Reason.METRICS_PARTLY_STALE),
        ((fresh == 0) & (serving > 0), Reason.GATEWAY_DEMAND_ONLY),
        (~may_rise, Reason.METRICS_STALE),
        (~may_rise & (serving == 0), Reason.NOTHING_SERVES),
    )
    return may_rise, may_fall, reason


def _engine_load(rows: ReplicaRows, read: Bool, all_rows: Bool, services: int) -> dict[str, I64]:
    """Sum over the replicas that were read, and stretch the sums to those that were not."""
    readers = segment_sum(read.astype(np.int64), rows.service, services)
    everyone = segment_sum(all_rows.astype(np.int64), rows.service, services)
    divisor = np.maximum(readers, 1)

    def stretched(column: I64, largest: int) -> I64:
        value = np.where(read & known(column), clamp(column, 0, largest), 0)
        return ceil_div(segment_sum(value, rows.service, services) * everyone, divisor)

    def known_to_all(column: I64) -> Bool:
        says = segment_sum((read & known(column)).astype(np.int64), rows.service, services)
        answer: Bool = (says == readers) & (readers > 0)
        return answer

    total = stretched(rows.kv_tokens_total, TOKENS_MAX)
    each = np.maximum(total // np.maximum(everyone, 1), 1)
    return {
        "running": stretched(rows.requests_running, COUNT_MAX),
        "waiting": stretched(rows.requests_waiting, COUNT_MAX),
        "kv_tokens_used": np.where(
            known_to_all(rows.kv_tokens_used), stretched(rows.kv_tokens_used, TOKENS_MAX), UNKNOWN
        ),
        "kv_tokens_each": np.where(known_to_all(rows.kv_tokens_total), each, UNKNOWN),
    }


def _held(gateways: GatewayRows, fresh: Bool, services: int) -> dict[str, I64]:
    """Sum what gateways hold; those that do not answer add nothing, which is why nothing may fall meanwhile."""

    def capped(column: I64, largest: int) -> I64:
        return np.where(fresh, clamp(or_else(column, 0), 0, largest), 0)

    oldest = np.zeros(services, np.int64)
    np.maximum.at(oldest, gateways.service, capped(gateways.held_oldest_ms, TOKENS_MAX))
    return {
        "held": segment_sum(capped(gateways.requests_held, COUNT_MAX), gateways.service, services),
        "held_prompt_tokens": segment_sum(capped(gateways.held_prompt_tokens, TOKENS_MAX), gateways.service, services),
        "held_oldest_ms": oldest,
        "in_flight": segment_sum(capped(gateways.requests_in_flight, COUNT_MAX), gateways.service, services),
    }
