"""Shrinking: only when fewer have sufficed for the whole delay, and everything needed is known.

Two counts are settled alike: the serving replicas, and the serving and warm ones together. The delay is cut in halves;
at the end of each, what was most needed in the last two has sufficed for a whole delay. Time that cannot be judged
stops the clock, it does not set it back.

A removal can be wrong in two ways. Under the same load: what was asked back is kept for half an hour of that load. Or
the need comes back to what it was before it had halved: from then on the delay is as long as that gap, up to eightfold,
because idling through it costs less than cold starts that come too late; without such gaps it is halved again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from forebay.core.reasons import Reason
from forebay.core.stages import Verdict
from forebay.core.units import MILLI, UNKNOWN, ceil_div, known, last_that_applies, or_else

if TYPE_CHECKING:
    from forebay.core.memory import Timers
    from forebay.core.stages import Facts
    from forebay.core.units import I64, Bool

# A removal that had to be taken back within this time under the same load is not tried again for as long.
REGRET_MS: Final = 1_800_000
_SAME_LOAD_MILLI: Final = 1250
_LESS_LOAD_MILLI: Final = 900
# What returns within the longest delay would have been met by it. 60 s become eight minutes: bursts of an editor's
# traffic (Azure code) are two to five minutes apart.
_STRETCH_MOST: Final = 8
# The next gap may be longer by a quarter. What a burst needed fades over five minutes of less.
_GAP_MARGIN_MILLI: Final = 1250
_HIGH_MEMORY_MS: Final = 300_000
# Of the KV slots when shrinking: the rest is for what grows while it is looked at.
_KV_KEEP_MILLI: Final = 900


@dataclass(frozen=True, slots=True)
class _Clock:
    """Since when fewer would do, as `Timers` has it. [S]."""

    half_ms: I64
    most: I64
    before: I64
    to: I64


def consolidation(facts: Facts, before: Verdict) -> tuple[Verdict, Timers]:
    """Let replicas go that have not been needed for the whole delay; a Batch service without requests goes to zero.

    Returns
    -------
    tuple
        The verdict, and the clocks behind it.
    """
    fleet, seen, timers = facts.fleet, facts.seen, facts.timers
    regret = known(timers.regret_until_ms)
    suffices = np.maximum(before.serving, _suffices(facts))
    keep = np.maximum(suffices, np.where(regret, timers.regret_replicas, 1))
    clock = _Clock(timers.shrink_half_ms, timers.shrink_most, timers.shrink_before, timers.shrink_to)
    settled, shrink = _settle(facts, facts.last_needed, before.serving, keep, clock)
    idle = fleet.batch_class & (fleet.replicas_min == 0) & (seen.now_ms - timers.busy_ms >= fleet.idle_ms)
    serving = np.where(idle & seen.may_fall, 0, settled)
    wanted = before.serving + before.warm
    clock = _Clock(timers.release_half_ms, timers.release_most, timers.release_before, timers.release_to)
    last = facts.last_serving + facts.last_warm
    total, release = _settle(facts, last, wanted, np.maximum(keep, wanted), clock)
    verdict = Verdict(
        serving,
        np.where(serving == 0, 0, np.maximum(total - serving, 0)),
        _reason(facts, before, serving, suffices, idle),
        (
            ("keep", keep),
            ("to", serving),
            ("waited_ms", _waited_ms(facts, shrink)),
            ("delay_ms", _delay_ms(facts)),
            ("idle_ms", fleet.idle_ms),
        ),
    )
    clocks = replace(
        timers,
        shrink_half_ms=shrink.half_ms,
        shrink_most=shrink.most,
        shrink_before=shrink.before,
        shrink_to=shrink.to,
        release_half_ms=release.half_ms,
        release_most=release.most,
        release_before=release.before,
        release_to=release.to,
    )
    return verdict, clocks


def remember_shrinking(facts: Facts, timers: Timers, needed: I64) -> Timers:
    """Note what was removed under which need, and whether growing now takes a removal back."""
    now_ms, need, last = facts.seen.now_ms, facts.need.milli, facts.last_needed
    shrinks = needed < last
    recent = known(timers.shrunk_ms) & (now_ms - or_else(timers.shrunk_ms, now_ms) < REGRET_MS)
    same_load = need * MILLI <= or_else(timers.shrunk_need_milli, 0) * _SAME_LOAD_MILLI
    regrets = (needed > last) & recent & same_load & (needed >= or_else(timers.shrunk_from, 0))
    over = or_else(timers.regret_until_ms, now_ms) <= now_ms
    # Less load may be served by fewer after all; twice as much says that it was a burst that was growing, not regret.
    over |= need * MILLI < or_else(timers.regret_need_milli, 0) * _LESS_LOAD_MILLI
    over |= need > 2 * or_else(timers.regret_need_milli, 0)
    return replace(
        timers,
        shrunk_ms=np.where(shrinks, now_ms, timers.shrunk_ms),
        shrunk_from=np.where(shrinks, last, timers.shrunk_from),
        shrunk_need_milli=np.where(shrinks, need, timers.shrunk_need_milli),
        regret_until_ms=np.where(regrets, now_ms + REGRET_MS, np.where(over, UNKNOWN, timers.regret_until_ms)),
        regret_replicas=np.where(regrets, needed, timers.regret_replicas),
        regret_need_milli=np.where(regrets, need, timers.regret_need_milli),
        needed=needed,
        **_stretch(facts),
    )


def _delay_ms(facts: Facts) -> I64:
    """Return how long fewer have to suffice before any goes."""
    return np.maximum(or_else(facts.timers.delay_ms, 0), facts.fleet.scale_down_delay_ms)


def _stretch(facts: Facts) -> dict[str, I64]:
    """Stretch the delay to the gap after which a burst has come back; halve it when none has for long."""
    timers, now_ms, need, delay_ms = facts.timers, facts.seen.now_ms, facts.need.milli, _delay_ms(facts)
    longest_ms = _STRETCH_MOST * facts.fleet.scale_down_delay_ms
    low_for_ms = now_ms - or_else(timers.low_ms, now_ms)
    # What was forgotten is no longer what the need comes back to.
    high = np.where(low_for_ms > longest_ms, 0, timers.high_milli)
    low = facts.seen.may_rise & (2 * need < high)
    back = facts.seen.may_rise & known(timers.low_ms) & ~low & (low_for_ms <= longest_ms)
    gap_ms = np.minimum(low_for_ms * _GAP_MARGIN_MILLI // MILLI, longest_ms)
    asked = back & (gap_ms > delay_ms // 2)
    calm = known(timers.delayed_ms) & ~asked & (now_ms - or_else(timers.delayed_ms, now_ms) >= 2 * longest_ms)
    fallen = high - high * min(facts.seen.elapsed_ms, _HIGH_MEMORY_MS) // _HIGH_MEMORY_MS
    unseen = ~facts.seen.may_rise
    return {
        "high_milli": np.where(low | unseen, high, np.maximum(need, fallen)),
        "low_ms": np.where(low, or_else(timers.low_ms, now_ms), np.where(unseen, timers.low_ms, UNKNOWN)),
        "delay_ms": np.where(asked, np.maximum(gap_ms, delay_ms), np.where(calm, delay_ms // 2, timers.delay_ms)),
        "delayed_ms": np.where(asked | calm, now_ms, timers.delayed_ms),
    }


def _suffices(facts: Facts) -> I64:
    """Return the fewest replicas that stay within KEEP_MILLI of every target, and whose KV cache fits."""
    need, capacity, seen = facts.need, facts.capacity, facts.seen
    by_use = ceil_div(need.keep_milli, MILLI)
    slots = or_else(capacity.kv_tokens, 0) * _KV_KEEP_MILLI // MILLI
    by_kv = np.where(slots > 0, ceil_div(or_else(seen.kv_tokens_used, 0), np.maximum(slots, 1)), 0)
    # While somebody waits for a replica beyond the promise, what was ordered is still needed, however late it comes.
    late = (seen.held > 0) & (seen.held_oldest_ms > capacity.slack_ms)
    return np.maximum(np.maximum(by_use, by_kv), np.where(late, facts.last_needed, 0))


def _settle(facts: Facts, last: I64, wanted: I64, keep: I64, clock: _Clock) -> tuple[I64, _Clock]:
    """Grow at once to what is wanted; shrink to the most that was needed during a whole delay."""
    seen = facts.seen
    fewer = keep < last
    begins = fewer & ~known(clock.half_ms)
    stopped_ms = np.where(seen.may_fall, 0, seen.elapsed_ms)
    half_ms = np.where(begins, seen.now_ms, or_else(clock.half_ms, 0) + stopped_ms)
    most = np.where(begins, keep, np.maximum(clock.most, keep))
    ends = fewer & seen.may_fall & (seen.now_ms - half_ms >= _delay_ms(facts) // 2)
    to = np.where(ends & known(clock.before), np.maximum(clock.before, most), clock.to)
    # What has sufficed may have become too little since the half ended.
    enough = np.minimum(np.maximum(to, keep), last)
    replicas = np.where(fewer & seen.may_fall & known(to), enough, np.maximum(last, wanted))
    return replicas, _Clock(
        half_ms=np.where(fewer, np.where(ends, seen.now_ms, half_ms), UNKNOWN),
        most=np.where(fewer, np.where(ends, keep, most), UNKNOWN),
        before=np.where(fewer, np.where(ends, most, clock.before), UNKNOWN),
        to=np.where(fewer, to, UNKNOWN),
    )


def _waited_ms(facts: Facts, clock: _Clock) -> I64:
    """Return how long fewer have sufficed, as far as it matters: no longer than the delay."""
    half_ms = np.where(known(clock.before), _delay_ms(facts) // 2, 0)
    return np.where(known(clock.half_ms), facts.seen.now_ms - or_else(clock.half_ms, 0) + half_ms, 0)


def _reason(facts: Facts, before: Verdict, serving: I64, suffices: I64, idle: Bool) -> I64:
    """Say why more are kept than are needed, or why some go; the last that applies is told."""
    seen, timers, last = facts.seen, facts.timers, facts.last_needed
    kept = serving > before.serving
    return last_that_applies(
        np.full_like(serving, int(Reason.NONE)),
        (kept, Reason.SHRINK_WAITS),
        (kept & (suffices >= serving), Reason.SHRINK_WOULD_MISS_SLO),
        (kept & known(timers.regret_until_ms) & (timers.regret_replicas >= serving), Reason.SHRINK_WAS_REGRETTED),
        (kept & ~seen.may_fall, seen.reason),
        (serving < last, Reason.SHRINK),
        ((serving < last) & idle & (serving == 0), Reason.IDLE),
    )
