"""What is measured of engines and traffic, tick by tick, and what is usual by it.

Judgement reads what was learned before the look that it judges; `learn` comes last in a tick. A sample counts only
where it can be told from noise: decode where tokens were made, prefill where nothing queued and the prompt dominates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from forebay.core import forecast, histogram, step_times, windows
from forebay.core.memory import LEAD_BINS, RING_SECONDS, RISE_BINS, SCALE_BINS
from forebay.core.units import MILLI, SECOND_MS, UNKNOWN, clamp, known, or_else, segment_sum

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forebay.core.fleet import FleetSpec
    from forebay.core.memory import Learned, Recent, Timers
    from forebay.core.sight import Sight
    from forebay.core.snapshot import Snapshot
    from forebay.core.units import I64, Bool
    from forebay.core.windows import ReplicaChange

_SCALE_FIRST_MILLI: Final = 500
_SCALE_WIDTH_MILLI: Final = 100
# The prior may be wrong by a lognormal factor of sigma 0.25: sixteen seconds' worth of observations
# spread like that from 0.7 to 1.3.
_SCALE_PRIOR: Final = np.array([0, 0, 1, 2, 3, 4, 3, 2, 1] + [0] * (SCALE_BINS - 9))
_QUARTILE_PERMILLE: Final = 750
_MEDIAN_PERMILLE: Final = 500
# Fewer gaps in a second are those of one request, whose own prompt may be what it waited for.
_TOKENS_LEAST: Final = 20
_SCALE_LIMIT: Final = 512  # about ten minutes of seconds
_LEAD_LIMIT: Final = 64  # starts
# What became warm only after it was wanted had a cold start; one label is never that slow.
_PROMOTE_LONGEST_MS: Final = 10_000
_LEAD_PRIOR_COUNT: Final = 3  # starts that the prior weighs as much as
_RISE_LIMIT: Final = 4096  # periods: with 90 s each, four days
# Means of lengths remember the last 128 to 256 requests, or what came in half as much to all of so many seconds where
# that is more: lengths vary by as much as their mean and more, and 128 requests tell it to a tenth. The prefix share
# remembers a quarter of a million tokens.
_REQUESTS_LIMIT: Final = 256
_LENGTHS_SECONDS: Final = 30
_TOKENS_LIMIT: Final = 2**18
_DISPERSION_LIMIT: Final = 2**20
_DISPERSION_MAX_MILLI: Final = 16_000
LENGTH_MAX: Final = 2**20  # no known model reads or writes more at once


def _widening(first: Iterable[int], bins: int, times: int, by: int) -> I64:
    """Return the bounds of so many bins: the first ones as given, then each `times / by` of the one before."""
    bounds = list(first)
    while len(bounds) < bins:
        bounds.append(bounds[-1] * times // by)
    return np.array(bounds)


LEAD_BOUNDS_MS: Final = _widening([50], LEAD_BINS, 7, 5)  # 50 ms to 28 min
RISE_BOUNDS: Final = _widening(range(17), RISE_BINS, 9, 8)  # replicas: each up to 16, then in steps of an eighth to 518


@dataclass(frozen=True, slots=True)
class Usual:
    """What is usual for each service. [S]."""

    prompt_tokens: I64
    answer_tokens: I64
    hit_milli: I64  # share of the prompt tokens that the prefix cache had
    dispersion_milli: I64  # variance of arrivals over their mean; 1000 for Poisson traffic, never below
    lead_cold_ms: I64
    lead_promote_ms: I64
    time_scale_milli: I64  # how much longer than the prior steps take


def what_is_usual(fleet: FleetSpec, learned: Learned) -> Usual:
    """Read the means and quantiles that the stages need."""
    return Usual(
        prompt_tokens=clamp(learned.prompt_tokens // np.maximum(learned.prompts, 1), 1, LENGTH_MAX),
        answer_tokens=clamp(2 * learned.answer_tokens // np.maximum(learned.answers_twice, 1), 1, LENGTH_MAX),
        hit_milli=clamp(MILLI * learned.prefix_hit_tokens // np.maximum(learned.prefix_query_tokens, 1), 0, MILLI - 1),
        dispersion_milli=clamp(
            MILLI * learned.arrivals_square_error // np.maximum(learned.arrivals_expected, 1),
            MILLI,
            _DISPERSION_MAX_MILLI,
        ),
        lead_cold_ms=_lead_ms(learned.lead_cold, fleet.lead_cold_ms),
        lead_promote_ms=_lead_ms(learned.lead_promote, fleet.lead_promote_ms),
        time_scale_milli=time_scale_milli(learned),
    )


def lengthen(usual: Usual, recent: Recent) -> Usual:
    """Let prompts count as long as those that arrive, where these are longer beyond chance than what was answered.

    When prompts became twice as long, engines that could not keep up told of it only after two minutes.

    Parameters
    ----------
    usual
        By what engines have answered.
    recent
        Of the last tick: what this look brings changes no capacity that it is judged by.
    """
    ring, longest = recent.ring, usual.prompt_tokens
    for seconds in (forecast.RECENT_SECONDS, windows.STABLE_SECONDS):
        came = windows.window_sum(ring.arrivals, recent.now_ms, seconds)
        read = windows.window_sum(ring.arrival_prompt_tokens, recent.now_ms, seconds)
        mean = np.minimum(read, forecast.COUNT_MAX) // np.maximum(came, 1)
        longest = np.maximum(longest, mean * forecast.sure_milli(came, forecast.LENGTHS_VARY_MILLI) // MILLI)
    return replace(usual, prompt_tokens=np.minimum(longest, LENGTH_MAX))


def time_scale_milli(learned: Learned) -> I64:
    """Return how much longer than the prior steps take: the median second, the prior counting as sixteen."""
    middle = histogram.quantile(learned.time_scale + _SCALE_PRIOR, _MEDIAN_PERMILLE)
    return _SCALE_FIRST_MILLI + _SCALE_WIDTH_MILLI * middle


def learn(
    fleet: FleetSpec, learned: Learned, usual: Usual, snapshot: Snapshot, change: ReplicaChange, *, timers: Timers
) -> Learned:
    """Add what this look says of engines and lengths.

    Parameters
    ----------
    fleet
        The prior's constants.
    learned
        As it was.
    usual
        What was usual by it.
    snapshot
        The look.
    change
        What each replica did since the last one.
    timers
        For when a promotion was decided.
    """
    scale_milli, scale_seen = _scale_sample(fleet, usual, snapshot, change)
    service, services = snapshot.replicas.service, len(fleet.services)
    cold_ms, cold_seen = _slowest(change.started, snapshot.replicas.since_created_ms, service, services)
    raised_ms = timers.raised_ms[service]
    waited_ms = snapshot.now_ms - or_else(raised_ms, snapshot.now_ms)
    promoted = change.promoted & known(raised_ms) & (waited_ms <= _PROMOTE_LONGEST_MS)
    promote_ms, promote_seen = _slowest(promoted, waited_ms, service, services)
    scaled = replace(
        learned,
        time_scale=histogram.add(learned.time_scale, scale_seen, _scale_bin(scale_milli), _SCALE_LIMIT),
        lead_cold=histogram.add(learned.lead_cold, cold_seen, _lead_bin(cold_ms), _LEAD_LIMIT),
        lead_promote=histogram.add(learned.lead_promote, promote_seen, _lead_bin(promote_ms), _LEAD_LIMIT),
    )
    return _learn_lengths(scaled, snapshot, change, timers)


def learn_dispersion(learned: Learned, recent: Recent, seen: Sight) -> Learned:
    """Add how far the arrivals of the second that has just ended were from their mean, where no burst is going on."""
    ended = seen.now_ms // SECOND_MS > recent.now_ms // SECOND_MS
    calm = ended & ~known(recent.timers.burst_since_s) & (2 * recent.timers.chart < forecast.ALARM_MILLINATS)
    row = recent.now_ms // SECOND_MS % RING_SECONDS
    of_gateways, of_engines = recent.ring.arrivals[row], recent.ring.entered[row]
    arrivals = np.where(seen.gateways_tell, of_gateways, np.maximum(of_gateways, of_engines))
    expected = np.where(calm, np.minimum(recent.timers.expected_milli, 10**9), 0)
    error = np.where(calm, np.minimum(arrivals, 10**6) * MILLI - expected, 0)
    square, mean = error * error // MILLI + learned.arrivals_square_error, expected + learned.arrivals_expected
    old = mean > _DISPERSION_LIMIT
    return replace(learned, arrivals_square_error=_fade(square, old), arrivals_expected=_fade(mean, old))


def learn_rise(learned: Learned, ended: Bool, rise: I64) -> Learned:
    """Count by how many replicas the need rose above the base in a period that ended."""
    bins = np.searchsorted(RISE_BOUNDS, rise)
    return replace(learned, rise=histogram.add(learned.rise, ended, bins, _RISE_LIMIT))


def _scale_sample(fleet: FleetSpec, usual: Usual, snapshot: Snapshot, change: ReplicaChange) -> tuple[I64, Bool]:
    """Compare the gaps between tokens with what the prior says of the batches that made them, prefills included.

    The mean gap holds both kinds of work, in the mix in which this traffic has them: so one scale serves both. The time
    to first token cannot tell them apart: a prompt also waits for the step under way and for its neighbours' prompts.
    """
    rows = snapshot.replicas
    service, services = rows.service, len(fleet.services)
    usable = known(change.running_before) & known(rows.requests_running) & (change.elapsed_ms > 0)
    running = np.where(usable, rows.requests_running, 0)
    batch = clamp((running + np.where(usable, change.running_before, 0) + 1) // 2, 1, 10**5)
    context = (usual.prompt_tokens + usual.answer_tokens // 2)[service]
    measured = usable & known(rows.kv_tokens_used) & (running > 0)
    context = np.where(measured, rows.kv_tokens_used // np.maximum(running, 1), context)
    step_us = step_times.decode_step(fleet, service, MILLI, clamp(context, 1, LENGTH_MAX)).at_us(batch)
    # Each prompt's prefill holds up everybody in the batch, once.
    busy_us = _prefill_of(fleet, service, change)
    expected_us = step_us * np.minimum(change.itl_count, 10**6) + busy_us * batch
    enough = usable & (change.itl_count >= _TOKENS_LEAST)
    return _ratio(np.where(enough, change.itl_sum_ms * 1000, 0), np.where(enough, expected_us, 0), service, services)


def _prefill_of(fleet: FleetSpec, row: I64, change: ReplicaChange) -> I64:
    """Return the time that the prompts of each replica take to prefill, as the prior has it."""
    hit = MILLI * change.prefix_hit_tokens // np.maximum(change.prefix_query_tokens, 1)
    prompts = clamp(change.ttft_count, 1, 10**6)
    each = clamp(change.prompt_tokens // prompts, 0, LENGTH_MAX)
    return step_times.prefill_us(fleet, row, MILLI, each, clamp(hit, 0, MILLI)) * prompts


def _ratio(observed_us: I64, expected_us: I64, service: I64, services: int) -> tuple[I64, Bool]:
    """Divide the sums of each service, in thousandths; the second value says where there was anything to divide."""
    observed = segment_sum(clamp(observed_us, 0, 10**14), service, services)
    expected = segment_sum(clamp(expected_us, 0, 10**14), service, services)
    seen = (observed > 0) & (expected > 0)
    return observed * MILLI // np.maximum(expected, 1), seen


def _slowest(where: Bool, column: I64, service: I64, services: int) -> tuple[I64, Bool]:
    """Return the largest value of each service among the rows named, and whether there was one."""
    slowest = np.full(services, UNKNOWN)
    np.maximum.at(slowest, service[where], column[where])
    return slowest, known(slowest)


def _learn_lengths(learned: Learned, snapshot: Snapshot, change: ReplicaChange, timers: Timers) -> Learned:
    """Add this tick's answers, prompts and cache hits to the sums behind the means."""
    rows, services = snapshot.replicas, len(learned.prompts)
    remembered = np.maximum(_REQUESTS_LIMIT, np.minimum(timers.expected_milli, 10**9) * _LENGTHS_SECONDS // MILLI)
    ended = known(change.running_before) & known(rows.requests_running) & known(rows.requests_finished_total)
    grown = np.where(ended, rows.requests_running, 0) - np.where(ended, change.running_before, 0)

    def total(where: Bool, column: I64) -> I64:
        return segment_sum(np.where(where, column, 0), rows.service, services)

    answers_twice = np.maximum(learned.answers_twice + total(ended, 2 * change.requests_finished + grown), 1)
    answer_tokens = learned.answer_tokens + total(ended, change.generation_tokens)
    counted = change.ttft_count > 0
    prompts = learned.prompts + total(counted, change.ttft_count)
    prompt_tokens = learned.prompt_tokens + total(counted, change.prompt_tokens)
    queries = learned.prefix_query_tokens + total(counted, change.prefix_query_tokens)
    hits = learned.prefix_hit_tokens + total(counted, change.prefix_hit_tokens)
    old_answers, old_prompts = answers_twice > 2 * remembered, prompts > remembered
    old_queries = queries > _TOKENS_LIMIT
    return replace(
        learned,
        answers_twice=_fade(answers_twice, old_answers),
        answer_tokens=_fade(answer_tokens, old_answers),
        prompts=_fade(prompts, old_prompts),
        prompt_tokens=_fade(prompt_tokens, old_prompts),
        prefix_query_tokens=_fade(queries, old_queries),
        prefix_hit_tokens=_fade(hits, old_queries),
    )


def _fade(column: I64, where: Bool) -> I64:
    return np.where(where, column // 2, column)


def _scale_bin(sample_milli: I64) -> I64:
    return (sample_milli - _SCALE_FIRST_MILLI + _SCALE_WIDTH_MILLI // 2) // _SCALE_WIDTH_MILLI


def _lead_ms(counts: I64, prior_ms: I64) -> I64:
    """Return the pessimistic quartile of the lead times seen and the prior; the prior alone while none was seen."""
    bins = _lead_bin(prior_ms)
    believed = counts.copy()
    believed[np.arange(len(bins)), bins] += _LEAD_PRIOR_COUNT
    measured = LEAD_BOUNDS_MS[histogram.quantile(believed, _QUARTILE_PERMILLE)]
    return np.where(counts.sum(axis=1) > 0, measured, prior_ms)


def _lead_bin(lead_ms: I64) -> I64:
    return np.minimum(np.searchsorted(LEAD_BOUNDS_MS, lead_ms), LEAD_BINS - 1)
