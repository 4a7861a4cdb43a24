"""DECIDE: the whole judgement, top to bottom, a stage a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forebay.core import consolidation, forecast, learning, placement, promotion, sight, stages, warm_pool, windows
from forebay.core.capacity import capacity_of_one
from forebay.core.memory import Memory, Recent, Safety
from forebay.core.need import need_of
from forebay.core.units import or_else

if TYPE_CHECKING:
    from forebay.core.decision import Decisions
    from forebay.core.fleet import FleetSpec
    from forebay.core.snapshot import Snapshot

STAGES = (
    "signals",
    "demand",
    "backlog",
    "headroom",
    "warm-pool",
    "consolidation",
    "bounds",
    "gpu-budget",
    "promotion",
    "disruption",
)


def step(fleet: FleetSpec, memory: Memory, snapshot: Snapshot) -> tuple[Memory, Decisions]:
    """Judge the whole fleet once.

    Parameters
    ----------
    fleet
        What every service is told to be.
    memory
        What the last tick left; its services must be the fleet's (see `forebay.core.memory.carry`).
    snapshot
        What is seen now; `now_ms` must not lie before the last tick's.

    Returns
    -------
    tuple
        The memory for the next tick, and the verdicts. The arguments are left as they were.
    """
    learned, recent, now_ms = memory.learned, memory.recent, snapshot.now_ms

    # What happened since the last look, and what is known.
    change, replicas = windows.compare_replicas(snapshot, recent.replicas)
    traffic, gateways = windows.compare_gateways(snapshot, recent.gateways)
    ring, tick = windows.record(recent, snapshot, change, traffic)
    seen = sight.look(memory, snapshot, replicas)
    ring = windows.record_running(ring, seen)

    # What one replica can do, what arrives, and what that needs: by what was learned before this look.
    usual = learning.lengthen(learning.what_is_usual(fleet, learned), recent)
    capacity = capacity_of_one(fleet, usual, seen)
    timers = forecast.watch(ring, tick, recent.timers, usual.dispersion_milli, seen)
    timers, rates = forecast.measure(ring, timers, usual, seen)
    need = need_of(rates, capacity, usual)
    timers = placement.withdraw(timers, seen)
    last_serving = or_else(memory.safety.replicas_serving, seen.serving)
    last_needed = or_else(timers.needed, last_serving)
    last_warm = or_else(memory.safety.replicas_warm, seen.warm + seen.starting)
    facts = stages.Facts(fleet, seen, usual, capacity, need, timers, learned, last_needed, last_serving, last_warm)

    # The verdicts.
    known = stages.signals(facts)
    needed = stages.demand(facts, known)
    drained = stages.backlog(facts, needed)
    spared = stages.headroom(facts, drained)
    pooled = warm_pool.warm_pool(facts, spared)
    kept, timers = consolidation.consolidation(facts, pooled)
    bounded = stages.bounds(facts, kept)
    granted = placement.gpu_budget(facts, bounded, snapshot)
    spread = promotion.promotion(facts, granted)
    final = stages.disruption(facts, spread)
    verdicts = (known, needed, drained, spared, pooled, kept, bounded, granted, spread, final)

    # What to remember. A want that the budget refused stays wanted.
    serving = np.maximum(final.serving, bounded.serving)
    warm = np.maximum(final.serving + final.warm, bounded.serving + bounded.warm) - serving
    timers = consolidation.remember_shrinking(facts, timers, np.maximum(granted.serving, bounded.serving))
    timers = promotion.remember_raising(facts, timers, serving)
    timers, ended, rise = warm_pool.count_period(timers, facts)
    learned = learning.learn(fleet, learned, usual, snapshot, change, timers=recent.timers)
    learned = learning.learn_dispersion(learned, recent, seen)
    learned = learning.learn_rise(learned, ended, rise)
    learned, timers = warm_pool.learn_base(learned, timers, facts)
    after = Memory(fleet.services, Safety(serving, warm), learned, Recent(now_ms, ring, timers, replicas, gateways))
    suspects, victims = placement.suspects(snapshot, seen), placement.victims(snapshot, facts, final)
    return after, stages.conclude(STAGES, verdicts, facts, suspects, victims)
