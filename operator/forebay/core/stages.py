"""The verdicts, each its own small function: facts and the last stage's numbers in, numbers and a reason out.

A stage never looks at the world, only at `Facts`; it never undoes a floor that an earlier stage set for safety without
saying so. `replicas` are serving replicas; `total` adds the warm ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from forebay.core.decision import Decisions
from forebay.core.fleet import Mode
from forebay.core.need import replicas_for
from forebay.core.reasons import Reason
from forebay.core.units import MILLI, ceil_div, clamp

if TYPE_CHECKING:
    from forebay.core.capacity import Capacity
    from forebay.core.fleet import FleetSpec
    from forebay.core.learning import Usual
    from forebay.core.memory import Learned, Timers
    from forebay.core.need import Need
    from forebay.core.sight import Sight
    from forebay.core.units import I64, Bool

# More replicas or tokens than any fleet has; capping them keeps products in an int64.
_REPLICAS_MAX: Final = 10**6
_TOKENS_MAX: Final = 10**9


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that the stages may weigh."""

    fleet: FleetSpec
    seen: Sight
    usual: Usual
    capacity: Capacity
    need: Need
    timers: Timers
    learned: Learned  # before this look
    last_needed: I64  # of the last decision's serving replicas, those that there was a need for
    last_serving: I64  # the last decision; what was found where there was none
    last_warm: I64


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one stage says. [S]."""

    serving: I64
    warm: I64
    reason: I64  # a Reason, NONE where the stage left the numbers as they were
    inputs: tuple[tuple[str, I64], ...]


def signals(facts: Facts) -> Verdict:
    """Say what is known; the numbers are the last decision's."""
    seen = facts.seen
    return Verdict(
        facts.last_needed,
        facts.last_serving + facts.last_warm - facts.last_needed,
        np.where((seen.suspect > 0) & seen.may_fall, Reason.REPLICA_SUSPECT, seen.reason),
        (
            ("serving", seen.serving),
            ("fresh", seen.fresh),
            ("unready", seen.serving - seen.serving_ready),
            ("suspect", seen.suspect),
            ("warm", seen.warm),
            ("starting", seen.starting),
            ("gateways_fresh", seen.gateways_fresh),
            ("gateways_expected", np.full_like(seen.serving, seen.gateways_expected)),
        ),
    )


def demand(facts: Facts, before: Verdict) -> Verdict:
    """Ask for what traffic keeps busy; hold the last decision where nothing at all is known."""
    need, capacity = facts.need, facts.capacity
    replicas = _on_evidence(facts, ceil_div(need.milli, MILLI), ceil_div(need.sure_milli, MILLI))
    replicas = np.where(facts.seen.may_rise, replicas, facts.last_needed)
    return Verdict(
        replicas,
        before.warm,
        np.where(facts.seen.may_rise, need.reason, facts.seen.reason),
        (
            ("need_milli", need.milli),
            ("prefill_milli", need.prefill_milli),
            ("decode_milli", need.decode_milli),
            ("sequences_milli", need.sequences_milli),
            ("arrivals_milli_per_s", need.arrivals_milli),
            ("prompt_tokens", facts.usual.prompt_tokens),
            ("answer_tokens", facts.usual.answer_tokens),
            ("batch_best", capacity.batch_best),
            ("step_us", capacity.step_us),
            ("prefill_us", capacity.prefill_us),
            ("serving", facts.seen.serving),
        ),
    )


def backlog(facts: Facts, before: Verdict) -> Verdict:
    """Ask for what drains the requests that wait within the TTFT slack, as far as replicas can come in time.

    Warm replicas come in time. Cold ones do not, where a cold start takes longer than the slack: then they are ordered
    for what will still be waiting when they arrive, and not at all while others are starting, because what has piled up
    during a boot is the boot's doing. From nothing, the first order is the whole order.
    """
    seen, capacity, lead_ms = facts.seen, facts.capacity, facts.usual.lead_cold_ms
    waits = seen.waiting + seen.held > 0
    seats = np.where(waits, _seats_within_slack(facts), 0)
    ask = np.where(waits, np.maximum(seats, _prefill_within_slack(facts)), 0)
    ready = np.minimum(ask, seen.serving_ready + seen.warm_ready)
    nothing_yet = seen.serving + seen.starting == 0
    in_time = lead_ms <= capacity.slack_ms
    coming = (seen.starting > 0) & (seen.serving > 0) & ~in_time
    cold = np.where(nothing_yet | ~capacity.modelled, seats, _still_waiting_after_boot(facts))
    cold = np.where(in_time, ask, np.where(waits & ~coming, cold, 0))
    wanted = np.minimum(np.maximum(ready, cold), _REPLICAS_MAX)
    replicas = np.where(seen.may_rise, np.maximum(before.serving, wanted), before.serving)
    activated = nothing_yet & (facts.last_serving == 0)
    reason = np.where(activated, Reason.ACTIVATED, Reason.BACKLOG)
    reason = np.where(replicas > before.serving, reason, Reason.NONE)
    frozen = coming & (ask > replicas)
    return Verdict(
        replicas,
        before.warm,
        np.where(frozen, Reason.BACKLOG_CAPACITY_STARTING, reason),
        (
            ("waiting", seen.waiting),
            ("held", seen.held),
            ("held_oldest_ms", seen.held_oldest_ms),
            ("pending_prompt_tokens", _pending_prompt_tokens(facts)),
            ("slack_ms", capacity.slack_ms),
            ("starting", seen.starting),
            ("lead_cold_ms", lead_ms),
        ),
    )


def _on_evidence(facts: Facts, suspected: I64, sure: I64) -> I64:
    """Promote on suspicion, boot on evidence: what is loaded costs nothing to use, a cold start comes too late."""
    wanted: I64 = np.maximum(np.minimum(suspected, facts.seen.present), sure)
    return wanted


def _seats_within_slack(facts: Facts) -> I64:
    """Return the replicas in whose slots the last request that waits sits down in time.

    While it waits for `slack`, a share slack / residence of the slots falls free, so N requests need
    N / batch * residence / (residence + slack) replicas. What has been waited is gone from the slack: slots that were
    expected to fall free, and did not, are no longer counted on.
    """
    seen, capacity = facts.seen, facts.capacity
    slots_milli = seen.seated * MILLI // capacity.batch_best
    left_ms = np.maximum(capacity.slack_ms - seen.held_oldest_ms, 0)
    turned_milli = slots_milli * capacity.residence_ms // (capacity.residence_ms + left_ms)
    return ceil_div(np.where(capacity.modelled, turned_milli, slots_milli), MILLI)


def _prefill_within_slack(facts: Facts) -> I64:
    """Return the replicas that compute the pending prompts in time; none where no number of them could."""
    capacity = facts.capacity
    work_ms = _pending_prompt_tokens(facts) * capacity.prefill_ns_per_token // 10**6
    within_ms = np.maximum(np.maximum(capacity.slack_ms, capacity.prefill_us // 1000), 1)
    return np.where(capacity.feasible, ceil_div(np.minimum(work_ms, 10**12), within_ms), 0)


def _still_waiting_after_boot(facts: Facts) -> I64:
    """Return the replicas for the traffic and for what will wait when a cold one arrives, drained in as long again."""
    seen, capacity, lead_ms = facts.seen, facts.capacity, facts.usual.lead_cold_ms
    work_ms = np.minimum((seen.waiting + seen.held) * capacity.residence_ms // capacity.batch_best, 10**12)
    spare_milli = np.maximum(seen.present * MILLI - facts.need.sure_milli, 0)
    left_milli = np.maximum(work_ms * MILLI // lead_ms - spare_milli, 0)
    return ceil_div(facts.need.sure_milli + left_milli, MILLI)


def _pending_prompt_tokens(facts: Facts) -> I64:
    """Return the prompt tokens that wait at gateways and, by the mean prompt, in engines."""
    return np.minimum(facts.seen.held_prompt_tokens + facts.seen.waiting * facts.usual.prompt_tokens, _TOKENS_MAX)


def headroom(facts: Facts, before: Verdict) -> Verdict:
    """Add the policy's headroom, or what chance may add where that is more."""
    fleet, need = facts.fleet, facts.need
    policy = need.milli * fleet.headroom_milli // MILLI
    margin = need.margin_milli
    suspected, sure = (
        replicas_for(milli, fleet, facts.capacity, facts.usual) for milli in (need.milli, need.sure_milli)
    )
    wanted = np.maximum(_on_evidence(facts, suspected, sure), ceil_div(need.crowded_milli, MILLI))
    replicas = np.where(facts.seen.may_rise, np.maximum(before.serving, wanted), before.serving)
    reason = np.where(margin > policy, Reason.SMALL_FLEET_MARGIN, Reason.HEADROOM)
    return Verdict(
        replicas,
        before.warm,
        np.where(replicas > before.serving, reason, Reason.NONE),
        (("headroom_milli", fleet.headroom_milli), ("margin_milli", margin), ("crowded_milli", need.crowded_milli)),
    )


def bounds(facts: Facts, before: Verdict) -> Verdict:
    """Keep within minReplicas and maxReplicas; obey a person in Manual; leave what is there if paused or blocked."""
    fleet, seen = facts.fleet, facts.seen
    least = np.where(fleet.batch_class, fleet.replicas_min, np.maximum(fleet.replicas_min, 1))
    most = np.maximum(fleet.replicas_max, least)
    serving = clamp(before.serving, least, most)
    # What the floor lifts was asked for already, as part of the pool.
    warm = clamp(before.serving + before.warm - serving, 0, most - serving)
    reason = np.where(serving > before.serving, Reason.MIN_REPLICAS, Reason.NONE)
    reason = np.where(serving < before.serving, Reason.MAX_REPLICAS, reason)
    there = np.minimum(facts.last_serving, seen.present)
    for applies, serving_then, warm_then, told in (
        (fleet.mode == Mode.MANUAL, fleet.replicas_manual, 0, Reason.MANUAL),
        (fleet.mode == Mode.PAUSED, facts.last_serving, facts.last_warm, Reason.PAUSED),
        (fleet.blocked, there, np.minimum(facts.last_warm, seen.present - there), Reason.BLOCKED),
    ):
        serving = np.where(applies, serving_then, serving)
        warm = np.where(applies, warm_then, warm)
        reason = np.where(applies, told, reason)
    return Verdict(
        serving,
        warm,
        reason,
        (
            ("wanted", before.serving),
            ("replicas_min", least),
            ("replicas_max", most),
            ("replicas_manual", fleet.replicas_manual),
        ),
    )


def disruption(facts: Facts, before: Verdict) -> Verdict:
    """Take out at most one serving replica in a tick, so that a wrong verdict is seen before it is carried out."""
    floor = np.minimum(facts.last_serving, facts.seen.serving) - 1
    serving = np.maximum(before.serving, floor)
    return Verdict(
        serving,
        np.maximum(before.serving + before.warm - serving, 0),
        np.where(serving > before.serving, Reason.ONE_REMOVAL_AT_A_TIME, Reason.NONE),
        (("wanted", before.serving),),
    )


def conclude(
    names: tuple[str, ...],
    verdicts: tuple[Verdict, ...],
    facts: Facts,
    suspect: tuple[str, ...],
    victims: tuple[str, ...],
) -> Decisions:
    """Put the chain of verdicts into the columns that are told and acted upon; the last one counts."""
    return Decisions(
        services=facts.fleet.services,
        replicas_serving=verdicts[-1].serving,
        replicas_warm=verdicts[-1].warm,
        hold=holds(facts),
        replicas_after=np.stack([verdict.serving for verdict in verdicts]),
        reason=np.stack([verdict.reason for verdict in verdicts]),
        inputs=tuple(verdict.inputs for verdict in verdicts),
        suspect=suspect,
        victims=victims,
        stages=names,
    )


def holds(facts: Facts) -> Bool:
    """Say where nothing may be removed: something needed is unknown, or a person said that what is there stays."""
    automatic = (facts.fleet.mode == Mode.AUTO) & ~facts.seen.may_fall
    hold: Bool = automatic | (facts.fleet.mode == Mode.PAUSED) | facts.fleet.blocked
    return hold
