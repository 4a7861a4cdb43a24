"""How many replicas wait loaded and awake: what a burst would need before a cold start could bring it.

The pool is sized from demand alone, so that its own success does not shrink it: the quantile of the rises of the need
within one cold lead time, as measured; the policy's burst while history is short. Both stand on the base, the need
between bursts: a burst that is being served is what the pool was for, and orders no pool of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from forebay.core import histogram
from forebay.core.learning import RISE_BOUNDS
from forebay.core.need import replicas_for
from forebay.core.reasons import Reason
from forebay.core.stages import Verdict
from forebay.core.units import MILLI, SECOND_MS, UNKNOWN, ceil_div, clamp, known, last_that_applies, or_else
from forebay.core.windows import STABLE_SECONDS

if TYPE_CHECKING:
    from forebay.core.memory import Learned, Timers
    from forebay.core.stages import Facts
    from forebay.core.units import I64, Bool

# The base follows the need with half an hour's memory upwards and two minutes' downwards; what has lasted longer than
# five minutes at twice the base is no burst, it is the new base.
_BASE_RISE_MS: Final = 1_800_000
_BASE_FALL_MS: Final = 120_000
_BURST_LONGEST_MS: Final = 300_000
# Before traffic has filled the stable window its rate is understated: seen as 0.03 replicas after 10 s of traffic that
# kept 1.4 busy, which gave the pool away in the moment of the burst.
_BASE_LEAST_MS: Final = STABLE_SECONDS * SECOND_MS
# Four periods for every one that may exceed the quantile: with 99 % asked and cold starts of 90 s, ten hours.
_HISTORY: Final = 4


def warm_pool(facts: Facts, before: Verdict) -> Verdict:
    """Ask for warm replicas beside the serving ones; none where nothing serves, no more than the policy pays for."""
    fleet, usual = facts.fleet, facts.usual
    base_milli = facts.learned.base_micro // 1000
    # The base of a new service is unknown, not zero: minReplicas stands for it until traffic was measured. A service
    # that has been there for long is not new: a request now and then must not start a pool each time.
    new = (base_milli == 0) & (facts.seen.now_ms < or_else(facts.timers.new_until_ms, 0))
    base = np.where(new, fleet.replicas_min, replicas_for(base_milli, fleet, facts.capacity, usual))
    # A burst that takes longer than a cold start is met by cold starts for its later part.
    reached_milli = np.minimum(MILLI, MILLI * usual.lead_cold_ms // np.maximum(fleet.burst_within_ms, 1))
    multiplier = MILLI + np.maximum(fleet.burst_multiplier_milli - MILLI, 0) * reached_milli // MILLI
    burst = np.where(
        new,
        ceil_div(fleet.replicas_min * multiplier, MILLI),
        replicas_for(base_milli * multiplier // MILLI, fleet, facts.capacity, usual),
    )
    periods = facts.learned.rise.sum(axis=1)
    history = _HISTORY * MILLI // np.maximum(MILLI - fleet.attainment_permille, 1)
    by_policy = ceil_div((burst - base) * np.maximum(history - periods, 0), history)
    by_measure = RISE_BOUNDS[histogram.quantile(facts.learned.rise, fleet.attainment_permille)]
    # What `bounds` will lift to minReplicas serves then: it is part of what a burst finds, and no part of the pool.
    lifted = np.maximum(fleet.replicas_min - before.serving, 0)
    wanted = base + np.maximum(by_policy, by_measure) - before.serving - lifted
    nothing_serves = (before.serving == 0) & ~new
    wanted = np.where(nothing_serves | (base == 0), 0, np.maximum(wanted, 0))
    affordable = fleet.warm_gpus_max // np.maximum(fleet.gpus_per_replica, 1)
    room = np.maximum(fleet.replicas_max - before.serving - lifted, 0)
    pool = np.minimum(wanted, np.minimum(affordable, room))
    warm = np.where(facts.seen.may_rise, pool + lifted, before.warm)
    return Verdict(
        before.serving,
        warm,
        _reason(pool, wanted, by_policy, by_measure, before.serving > base),
        (
            ("warm", pool),
            ("warm_wanted", wanted),
            ("base_milli", base_milli),
            ("burst_replicas", burst),
            ("multiplier_milli", fleet.burst_multiplier_milli),
            ("rise", by_measure),
            ("epochs", periods),
            ("lead_cold_ms", usual.lead_cold_ms),
        ),
    )


def learn_base(learned: Learned, timers: Timers, facts: Facts) -> tuple[Learned, Timers]:
    """Let the base follow the stable need, but not into a burst."""
    now_ms, elapsed_ms = facts.seen.now_ms, facts.seen.elapsed_ms
    base, stable = learned.base_micro, facts.need.stable_milli * 1000
    age_ms = now_ms - or_else(timers.traffic_since_ms, now_ms)
    above = (stable > 2 * base) & (base > 0)
    above_ms = np.where(above, or_else(timers.above_base_since_ms, now_ms), UNKNOWN)
    burst = above & (now_ms - or_else(above_ms, now_ms) < _BURST_LONGEST_MS)
    slow_ms = clamp(age_ms, _BASE_LEAST_MS, _BASE_RISE_MS)
    memory_ms = np.where(2 * stable < base, np.minimum(slow_ms, _BASE_FALL_MS), slow_ms)
    followed = base + (stable - base) * np.minimum(elapsed_ms, memory_ms) // memory_ms
    # The first traffic is the base at once, when it has lasted long enough to be a rate; so is a burst that stays.
    jumps = (base == 0) & (age_ms >= _BASE_LEAST_MS) | above & ~burst
    stays = burst | (base == 0) | ~facts.seen.may_rise
    base = np.where(jumps & facts.seen.may_rise, stable, np.where(stays, base, followed))
    clocks = replace(
        timers,
        above_base_since_ms=np.where(jumps, UNKNOWN, above_ms),
        new_until_ms=np.where(base > 0, UNKNOWN, timers.new_until_ms),
    )
    return replace(learned, base_micro=base), clocks


def count_period(timers: Timers, facts: Facts) -> tuple[Timers, Bool, I64]:
    """Follow the need through periods of one cold lead time.

    Returns
    -------
    tuple
        The clocks; where a period has ended; and by how many replicas the need rose above the base in it.
    """
    now_ms, base_milli = facts.seen.now_ms, facts.learned.base_micro // 1000
    needed, base = (
        replicas_for(milli, facts.fleet, facts.capacity, facts.usual) for milli in (facts.need.milli, base_milli)
    )
    above = np.where(facts.seen.may_rise & (base_milli > 0), np.maximum(needed - base, 0), 0)
    most = np.maximum(timers.period_most, above)
    whole = now_ms - timers.period_since_ms >= facts.usual.lead_cold_ms
    moved = replace(
        timers,
        period_since_ms=np.where(whole, now_ms, timers.period_since_ms),
        period_most=np.where(whole, above, most),
    )
    # A service without traffic says nothing about bursts, nor does a period that began before the windows were full:
    # after a restart the need seems to rise from nothing.
    full = timers.period_since_ms - timers.since_ms >= STABLE_SECONDS * SECOND_MS
    return moved, whole & full & known(timers.traffic_since_ms), most


def _reason(pool: I64, wanted: I64, by_policy: I64, by_measure: I64, drawn: Bool) -> I64:
    """Say what sizes the pool; the last that applies is told."""
    return last_that_applies(
        np.full_like(pool, int(Reason.NONE)),
        (drawn & (np.maximum(by_policy, by_measure) > 0), Reason.WARM_POOL_DRAWN),
        (pool > 0, np.where(by_policy > by_measure, Reason.WARM_POOL_POLICY_BURST, Reason.WARM_POOL_MEASURED)),
        (pool < wanted, Reason.WARM_POOL_LIMITED),
    )
