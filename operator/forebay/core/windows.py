"""OBSERVED becomes counted: what changed between two readings, and how much of it fell into which second.

A counter means nothing by itself, only its change does. A new identity, a counter that went back, or a reading that
was absent before makes a new baseline; it never makes a number. A change that took several seconds to be seen is spread
over those seconds, so that a gateway that answers again after a pause does not look like a burst.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from forebay.core.memory import RING_SECONDS, GatewayBaseline, ReplicaBaseline, Ring
from forebay.core.snapshot import State
from forebay.core.units import SECOND_MS, UNKNOWN, known, segment_sum

if TYPE_CHECKING:
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


@dataclass(frozen=True, slots=True)
class ReplicaChange:
    """What each replica did between its last two readings; zero where there is only one. [R]."""

    elapsed_ms: I64  # between those readings; 0: there is nothing to compare
    prompt_tokens: I64
    generation_tokens: I64
    prefix_query_tokens: I64
    prefix_hit_tokens: I64
    requests_finished: I64
    ttft_sum_ms: I64
    ttft_count: I64
    itl_sum_ms: I64
    itl_count: I64
    running_before: I64
    waiting_before: I64
    requests_entered: I64
    started: Bool  # became ready since the last tick
    promoted: Bool  # was warm at the last tick and serves now


@dataclass(frozen=True, slots=True)
class GatewayChange:
    """What each gateway saw of each service between its last two readings. [G]."""

    elapsed_ms: I64
    arrivals: I64
    arrival_prompt_tokens: I64


def is_fresh(age_ms: I64) -> Bool:
    """Say which readings are young enough to judge by."""
    return known(age_ms) & (age_ms <= FRESH_MS)


def match(old: tuple[str, ...], new: tuple[str, ...]) -> I64:
    """Return for each of the sorted `new` its place in the sorted `old`, or -1."""
    if old == new:
        return np.arange(len(new))
    if not old or not new:
        return np.full(len(new), -1)
    haystack, needles = np.array(old), np.array(new)
    place = np.minimum(np.searchsorted(haystack, needles), len(old) - 1)
    return np.where(haystack[place] == needles, place, -1)


def compare_replicas(snapshot: Snapshot, before: ReplicaBaseline) -> tuple[ReplicaChange, ReplicaBaseline]:
    """Compare every replica's reading with its last one.

    Returns
    -------
    tuple
        The change, and the baseline for the next tick: a value that is absent now keeps its last reading there, so that
        the change over a gap is found when it closes.
    """
    rows = snapshot.replicas
    at = match(before.uid, rows.uid)
    old = {field.name: _at(getattr(before, field.name), at) for field in fields(ReplicaBaseline)[1:]}
    new = _reading(rows) | {"read_ms": _read_ms(snapshot.now_ms, rows.age_ms)}
    change = {name: _change(old[name], new[name]) for name in _COUNTERS}
    restarted = np.logical_or.reduce([known(change[name]) & (change[name] < 0) for name in _COUNTERS])
    comparable = known(old["read_ms"]) & known(new["read_ms"]) & ~restarted
    done = {name: np.where(comparable, np.clip(change[name], 0, CHANGE_MAX), 0) for name in _COUNTERS}
    running_before, waiting_before = old["requests_running"], old["requests_waiting"]
    in_engine = _change(running_before, new["requests_running"]) + _change(waiting_before, new["requests_waiting"])
    countable = comparable & known(change["requests_finished_total"])
    countable &= known(running_before) & known(new["requests_running"])
    countable &= known(waiting_before) & known(new["requests_waiting"])
    entered = np.where(countable, np.clip(done["requests_finished_total"] + in_engine, 0, CHANGE_MAX), 0)
    elapsed_ms = np.where(comparable, np.maximum(new["read_ms"] - old["read_ms"], 0), 0)
    ready = rows.ready.astype(np.int64)
    change_of_rows = ReplicaChange(
        elapsed_ms=elapsed_ms,
        prompt_tokens=done["prompt_tokens_total"],
        generation_tokens=done["generation_tokens_total"],
        prefix_query_tokens=done["prefix_query_tokens_total"],
        prefix_hit_tokens=done["prefix_hit_tokens_total"],
        requests_finished=done["requests_finished_total"],
        ttft_sum_ms=done["ttft_sum_ms"],
        ttft_count=done["ttft_count"],
        itl_sum_ms=done["itl_sum_ms"],
        itl_count=done["itl_count"],
        running_before=np.where(comparable, running_before, UNKNOWN),
        waiting_before=np.where(comparable, waiting_before, UNKNOWN),
        requests_entered=entered,
        started=(at >= 0) & rows.ready & (old["ready"] == 0) & (old["state"] == State.STARTING),
        promoted=(rows.state == State.SERVING) & (old["state"] == State.WARM),
    )
    kept = {name: np.where(known(new[name]), new[name], old[name]) for name in new}
    progress_ms = _progress_ms(snapshot, old["progress_ms"], done, restarted)
    return change_of_rows, ReplicaBaseline(rows.uid, rows.state, ready, progress_ms=progress_ms, **kept)


def compare_gateways(snapshot: Snapshot, before: GatewayBaseline) -> tuple[GatewayChange, GatewayBaseline]:
    """Compare every gateway's reading of every service with its last one; returns as `compare_replicas`."""
    rows = snapshot.gateways
    at = _match_pairs(before, rows)
    read_ms = _read_ms(snapshot.now_ms, rows.age_ms)
    old_read_ms = _at(before.read_ms, at)
    old = {name: _at(getattr(before, name), at) for name in ("arrivals_total", "arrival_prompt_tokens_total")}
    change = {name: _change(old[name], getattr(rows, name)) for name in old}
    restarted = np.logical_or.reduce([known(column) & (column < 0) for column in change.values()])
    comparable = known(old_read_ms) & known(read_ms) & ~restarted
    done = {name: np.where(comparable, np.clip(change[name], 0, CHANGE_MAX), 0) for name in old}
    kept = {name: np.where(known(getattr(rows, name)), getattr(rows, name), old[name]) for name in old}
    elapsed_ms = np.where(comparable, np.maximum(read_ms - old_read_ms, 0), 0)
    return (
        GatewayChange(elapsed_ms, done["arrivals_total"], done["arrival_prompt_tokens_total"]),
        GatewayBaseline(rows.uid, rows.service, np.where(known(read_ms), read_ms, old_read_ms), **kept),
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
    newest = now_ms // SECOND_MS - before_s
    total: I64 = column[(newest - np.arange(seconds)) % RING_SECONDS].sum(axis=0)
    return total


def sum_since(column: I64, now_ms: int, since_s: I64) -> I64:
    """Sum each service's rows from the second `since_s` to the present one; at most RING_SECONDS of them."""
    newest = now_ms // SECOND_MS
    backwards = np.cumsum(column[(newest - np.arange(RING_SECONDS)) % RING_SECONDS], axis=0)
    rows = np.clip(newest - since_s, 0, RING_SECONDS - 1)
    return backwards[rows, np.arange(column.shape[1])]


def _reading(rows: ReplicaRows) -> dict[str, I64]:
    names = (*_COUNTERS, "requests_running", "requests_waiting")
    counts = {"ttft_count": rows.ttft_buckets[:, -1], "itl_count": rows.itl_buckets[:, -1]}
    return {name: counts[name] if name in counts else getattr(rows, name) for name in names}


def _read_ms(now_ms: int, age_ms: I64) -> I64:
    return np.where(known(age_ms), now_ms - np.where(known(age_ms), age_ms, 0), UNKNOWN)


def _at(column: I64, at: I64) -> I64:
    """Pick the old row of each new one; UNKNOWN where it has none."""
    return np.concatenate([column, np.array([UNKNOWN])])[at]


def _change(old: I64, new: I64) -> I64:
    """Subtract where both are known; UNKNOWN elsewhere."""
    both = known(old) & known(new)
    return np.where(both, np.where(both, new, 0) - np.where(both, old, 0), UNKNOWN)


def _progress_ms(snapshot: Snapshot, last_ms: I64, done: dict[str, I64], restarted: Bool) -> I64:
    """Say when each replica last made a token or had nothing to do; a replica that cannot be seen is given the time."""
    rows = snapshot.replicas
    seen = is_fresh(rows.age_ms) & known(rows.requests_running) & known(rows.requests_waiting)
    idle = np.where(seen, rows.requests_running + rows.requests_waiting, 0) == 0
    moved = (done["generation_tokens_total"] > 0) | (done["prompt_tokens_total"] > 0) | restarted
    return np.where(~seen | idle | moved | ~known(last_ms), snapshot.now_ms, last_ms)


def _match_pairs(before: GatewayBaseline, rows: GatewayRows) -> I64:
    """Match (uid, service) pairs as `match` does single names."""
    if before.uid == rows.uid and np.array_equal(before.service, rows.service):
        return np.arange(len(rows.uid))
    if not before.uid or not rows.uid:
        return np.full(len(rows.uid), -1)
    _, number = np.unique(np.array(before.uid + rows.uid), return_inverse=True)
    width = 1 + max(before.service.max(), rows.service.max())
    pair = number * width + np.concatenate([before.service, rows.service])
    old, new = pair[: len(before.uid)], pair[len(before.uid) :]
    order = np.argsort(old, kind="stable")
    place = order[np.minimum(np.searchsorted(old[order], new), len(old) - 1)]
    return np.where(old[place] == new, place, -1)


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
        added = np.where(back < seconds, share + (back < odd), 0)
        column[(second - back) % RING_SECONDS] += segment_sum(added, service, column.shape[1])
