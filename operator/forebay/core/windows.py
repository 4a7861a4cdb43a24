"""OBSERVED becomes counted: what changed between two readings, and how much of it fell into which second.

A counter means nothing by itself, only its change does. A new identity, a counter that went back, or a reading that
was absent before makes a new baseline; it never makes a number. A change that took several seconds to be seen is spread
over those seconds, so that a gateway that answers again after a pause does not look like a burst.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import repeat
from typing import TYPE_CHECKING, Final

import numpy as np

from forebay.core.memory import RING_SECONDS, GatewayBaseline, ReplicaBaseline, Ring
from forebay.core.snapshot import State
from forebay.core.units import SECOND_MS, UNKNOWN, clamp, known, segment_sum

if TYPE_CHECKING:
    from collections.abc import Hashable

    from forebay.core.memory import Recent
    from forebay.core.sight import Sight
    from forebay.core.snapshot import GatewayRows, ReplicaRows, Snapshot
    from forebay.core.units import I64, Bool

# Three intervals of a second: one lost answer is no news, three are.
FRESH_MS: Final = 3000
STABLE_SECONDS: Final = 60
# No engine makes 10^9 tokens between two looks: a larger change is a counter that was misread, and int64 stays safe.
CHANGE_MAX: Final = 10**9

_COUNTERS: Final = (
    "prompt_tokens_total",
    "generation_tokens_total",
    "prefix_query_tokens_total",
    "prefix_hit_tokens_total",
    "requests_finished_total",
    "ttft_sum_ms",
    "ttft_count",
    "itl_sum_ms",
    "itl_count",
)
_FINISHED: Final = _COUNTERS.index("requests_finished_total")


@dataclass(frozen=True, slots=True)
class ReplicaChange:
    """What each replica did between its last two readings; zero where there is only one. [R]."""

    elapsed_ms: I64  # between those readings; 0: there is nothing to compare
    running_before: I64
    waiting_before: I64
    requests_entered: I64
    started: Bool  # became ready since the last tick
    promoted: Bool  # was warm at the last tick and serves now
    # --- the counters, in the order of _COUNTERS
    prompt_tokens: I64
    generation_tokens: I64
    prefix_query_tokens: I64
    prefix_hit_tokens: I64
    requests_finished: I64
    ttft_sum_ms: I64
    ttft_count: I64
    itl_sum_ms: I64
    itl_count: I64


@dataclass(frozen=True, slots=True)
class GatewayChange:
    """What each gateway saw of each service between its last two readings. [G]."""

    elapsed_ms: I64
    arrivals: I64
    arrival_prompt_tokens: I64


def is_fresh(age_ms: I64) -> Bool:
    """Say which readings are young enough to judge by."""
    return known(age_ms) & (age_ms <= FRESH_MS)


def match(old: tuple[Hashable, ...], new: tuple[Hashable, ...]) -> I64:
    """Return for each of `new` its place in `old`, or -1."""
    if old == new:
        return np.arange(len(new))
    place = dict(zip(old, range(len(old)), strict=True))
    return np.fromiter(map(place.get, new, repeat(-1)), np.int64, len(new))


def compare_replicas(snapshot: Snapshot, before: ReplicaBaseline) -> tuple[ReplicaChange, ReplicaBaseline]:
    """Compare every replica's reading with its last one.

    Returns
    -------
    tuple
        The change, and the baseline for the next tick: a value that is absent now keeps its last reading there, so that
        the change over a gap is found when it closes.
    """
    rows = snapshot.replicas
    old = _at(before, match(before.uid, rows.uid))
    old_state, old_ready, old_read_ms, old_progress_ms = old[:4]
    old, new, read_ms = old[4:], _reading(rows), _read_ms(snapshot.now_ms, rows.age_ms)
    change = _change(old, new)
    done, comparable, restarted = _done(change[: len(_COUNTERS)], old_read_ms, read_ms)
    running_before, waiting_before = old[len(_COUNTERS) :]
    running, waiting = change[len(_COUNTERS) :]
    countable = comparable & known(change[_FINISHED]) & known(running) & known(waiting)
    entered = np.where(countable, clamp(done[_FINISHED] + running + waiting, 0, CHANGE_MAX), 0)
    change_of_rows = ReplicaChange(
        _elapsed_ms(comparable, old_read_ms, read_ms),
        np.where(comparable, running_before, UNKNOWN),
        np.where(comparable, waiting_before, UNKNOWN),
        entered,
        rows.ready & (old_ready == 0) & (old_state == State.STARTING),
        (rows.state == State.SERVING) & (old_state == State.WARM),
        *done,
    )
    progress_ms = _progress_ms(snapshot, old_progress_ms, change_of_rows, restarted)
    last_read_ms = np.where(known(read_ms), read_ms, old_read_ms)
    kept = np.where(known(new), new, old)
    ready = rows.ready.astype(np.int64)
    return change_of_rows, ReplicaBaseline(rows.uid, rows.state, ready, last_read_ms, progress_ms, *kept)


def compare_gateways(snapshot: Snapshot, before: GatewayBaseline) -> tuple[GatewayChange, GatewayBaseline]:
    """Compare every gateway's reading of every service with its last one; returns as `compare_replicas`."""
    rows = snapshot.gateways
    old = _at(before, _match_pairs(before, rows))
    old_read_ms, old = old[1], old[2:]
    new = np.stack([rows.arrivals_total, rows.arrival_prompt_tokens_total])
    read_ms = _read_ms(snapshot.now_ms, rows.age_ms)
    done, comparable, _ = _done(_change(old, new), old_read_ms, read_ms)
    last_read_ms = np.where(known(read_ms), read_ms, old_read_ms)
    kept = np.where(known(new), new, old)
    return (
        GatewayChange(_elapsed_ms(comparable, old_read_ms, read_ms), *done),
        GatewayBaseline(rows.uid, rows.service, last_read_ms, *kept),
    )


def record(recent: Recent, snapshot: Snapshot, replicas: ReplicaChange, gateways: GatewayChange) -> tuple[Ring, Ring]:
    """Turn the ring to the present second and add what was counted.

    Returns
    -------
    tuple
        The ring, and what this tick added to its present second alone, as one row: what a detector of change looks at.
    """
    second = snapshot.now_ms // SECOND_MS
    row = second % RING_SECONDS
    ring = _turn(recent.ring, recent.now_ms // SECOND_MS, second)
    before = Ring(*(getattr(ring, field.name)[row].copy() for field in fields(Ring)))
    of_gateway, of_replica = snapshot.gateways.service, snapshot.replicas.service
    for column, change, service, elapsed_ms in (
        (ring.arrivals, gateways.arrivals, of_gateway, gateways.elapsed_ms),
        (ring.arrival_prompt_tokens, gateways.arrival_prompt_tokens, of_gateway, gateways.elapsed_ms),
        (ring.entered, replicas.requests_entered, of_replica, replicas.elapsed_ms),
        (ring.entered_prompt_tokens, replicas.prompt_tokens, of_replica, replicas.elapsed_ms),
    ):
        _spread(column, change, service, elapsed_ms, second)
    return ring, Ring(*(getattr(ring, field.name)[row] - getattr(before, field.name) for field in fields(Ring)))


def record_running(ring: Ring, seen: Sight) -> Ring:
    """Add how full the batches were since the last tick, for the services where a replica was read."""
    row = seen.now_ms // SECOND_MS % RING_SECONDS
    # A tick that comes late speaks of its own time only: two seconds at most.
    elapsed_ms = np.where(seen.fresh > 0, min(seen.elapsed_ms, 2 * SECOND_MS), 0)
    area, time = ring.running.copy(), ring.running_ms.copy()
    area[row] += seen.running * elapsed_ms
    time[row] += elapsed_ms
    return replace(ring, running=area, running_ms=time)


def window_sum(column: I64, now_ms: int, seconds: int, before_s: int = 0) -> I64:
    """Sum the last `seconds` rows of a ring's column, the present one included, leaving out the newest `before_s`."""
    end = (now_ms // SECOND_MS - before_s) % RING_SECONDS + 1
    begin = end - seconds
    total: I64 = column[max(begin, 0) : end].sum(axis=0)
    return total + column[begin:].sum(axis=0) if begin < 0 else total


def sum_since(column: I64, now_ms: int, since_s: I64) -> I64:
    """Sum each service's rows from the second `since_s` to the present one; at most RING_SECONDS of them."""
    newest = now_ms // SECOND_MS
    second = newest - (newest - np.arange(RING_SECONDS)) % RING_SECONDS
    total: I64 = np.where(second[:, None] >= np.minimum(since_s, newest), column, 0).sum(axis=0)
    return total


def _reading(rows: ReplicaRows) -> I64:
    """Return what a ReplicaBaseline keeps of a reading, a row each: the counters, then the gauges."""
    counts = {"ttft_count": rows.ttft_buckets[:, -1], "itl_count": rows.itl_buckets[:, -1]}
    counters = [counts[name] if name in counts else getattr(rows, name) for name in _COUNTERS]
    return np.stack([*counters, rows.requests_running, rows.requests_waiting])


def _read_ms(now_ms: int, age_ms: I64) -> I64:
    return np.where(known(age_ms), now_ms - age_ms, UNKNOWN)


def _at(before: ReplicaBaseline | GatewayBaseline, at: I64) -> I64:
    """Return the baseline's columns, a row each, with the old place of each new one; UNKNOWN where it has none."""
    columns = np.stack([getattr(before, field.name) for field in fields(before)[1:]])
    if not before.uid:
        return np.full((len(columns), len(at)), UNKNOWN)
    old = columns.take(at, axis=1)
    old[:, at < 0] = UNKNOWN
    return old


def _change(old: I64, new: I64) -> I64:
    """Subtract where both are known; UNKNOWN elsewhere."""
    change = new - old
    change[~(known(old) & known(new))] = UNKNOWN
    return change


def _done(change: I64, old_read_ms: I64, read_ms: I64) -> tuple[I64, Bool, Bool]:
    """Return by how much the counters grew, where two readings can be compared, and where a counter went back."""
    restarted = np.logical_or.reduce(known(change) & (change < 0))
    comparable = known(old_read_ms) & known(read_ms) & ~restarted
    return clamp(change, 0, CHANGE_MAX) * comparable, comparable, restarted


def _elapsed_ms(comparable: Bool, old_read_ms: I64, read_ms: I64) -> I64:
    return np.where(comparable, np.maximum(read_ms - old_read_ms, 0), 0)


def _progress_ms(snapshot: Snapshot, last_ms: I64, change: ReplicaChange, restarted: Bool) -> I64:
    """Say when each replica last made a token or had nothing to do; a replica that cannot be seen is given the time."""
    rows = snapshot.replicas
    seen = is_fresh(rows.age_ms) & known(rows.requests_running) & known(rows.requests_waiting)
    idle = np.where(seen, rows.requests_running + rows.requests_waiting, 0) == 0
    moved = (change.generation_tokens > 0) | (change.prompt_tokens > 0) | restarted
    return np.where(~seen | idle | moved | ~known(last_ms), snapshot.now_ms, last_ms)


def _match_pairs(before: GatewayBaseline, rows: GatewayRows) -> I64:
    """Match (uid, service) pairs as `match` does single names."""
    if before.uid == rows.uid and np.array_equal(before.service, rows.service):
        return np.arange(len(rows.uid))
    old, new = (tuple(zip(pairs.uid, pairs.service.tolist(), strict=True)) for pairs in (before, rows))
    return match(old, new)


def _turn(ring: Ring, last_s: int, now_s: int) -> Ring:
    """Empty the rows of the seconds that have passed since the last tick."""
    passed = min(now_s - last_s, RING_SECONDS)
    stale = (now_s - np.arange(passed)) % RING_SECONDS
    turned = {field.name: getattr(ring, field.name).copy() for field in fields(Ring)}
    for column in turned.values():
        column[stale] = 0
    return Ring(**turned)


def _spread(column: I64, change: I64, service: I64, elapsed_ms: I64, second: int) -> None:
    """Add each change evenly to the seconds that it took; what a stable window has forgotten is left out.

    The odd ones go to the newest seconds, one each, so that a larger change is nowhere a smaller one.
    """
    seconds = np.maximum(elapsed_ms // SECOND_MS, 1)
    share, odd = change // seconds, change % seconds
    for back in range(min(int(seconds.max(initial=1)), STABLE_SECONDS)):
        # Nearly all took one second: only the few others are looked at again.
        longer = seconds > back
        seconds, share, odd, service = seconds[longer], share[longer], odd[longer], service[longer]
        column[(second - back) % RING_SECONDS] += segment_sum(share + (back < odd), service, column.shape[1])
