"""Demand at now: a stable mean, a trend that is no noise, and bursts that are detected, not averaged away.

Two estimates of the arrivals compete and the larger counts. The stable window is a minute, or as long as traffic has
been flowing. The burst window begins where a chart says that the rate changed: each arrival adds the log-likelihood
ratio of a rate three times as large, each passing second takes what that rate would have needed (CUSUM), divided by how
uneven the traffic is. At 1.4 requests/s and Poisson arrivals a fivefold step is found in about 2.5 s; under constant
load a false alarm is expected less than once a day, and costs a promotion.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from forebay.core.units import MILLI, SECOND_MS, UNKNOWN, clamp, isqrt, known, or_else
from forebay.core.windows import STABLE_SECONDS, sum_since, window_sum

if TYPE_CHECKING:
    from forebay.core.learning import Usual
    from forebay.core.memory import Ring, Timers
    from forebay.core.sight import Sight
    from forebay.core.units import I64, Bool

# Shorter windows divide by so little that a single request looks like a rate.
WINDOW_LEAST_MS: Final = 10_000
# A minute with more tokens is a misread one; rates stay below 10^12 thousandths a second, and products in an int64.
COUNT_MAX: Final = 10**9
BURST_LEAST_SECONDS: Final = 2
RUNNING_BURST_SECONDS: Final = 6
# The chart: ln 3 of evidence an arrival, (3 - 1) times the expected arrivals against it. An alarm at 11.5 nats makes
# false ones rarer than one in e^11.5 = 10^5 seconds; at 9 nats a fleet of ten services would see four an hour.
_EVIDENCE_MILLINATS: Final = 1099
_AGAINST: Final = 2
ALARM_MILLINATS: Final = 11_500
# Requests that no replica has room for are evidence of their own, and each second of doubt is theirs: half will do.
_ALARM_HELD_MILLINATS: Final = ALARM_MILLINATS // 2
# An idle service expects one request in 20 s, so that the first ones are evidence and not proof.
_EXPECTED_LEAST_MILLI: Final = 50
_THIRD_SECONDS: Final = 20
# The middle of a minute lies 30 s back; two rises of a third each bring it 10 s ahead, which is a promotion and a tick.
_TREND_STEPS: Final = 2
_TREND_SIGMAS: Final = 3
# A burst of which two seconds were seen is known to a quarter only; what lies 1.5 standard deviations below is sure.
_SURE_SIGMAS_SQUARED_MILLI: Final = 2250
# Of a quarter of a minute, what lies three standard deviations below its count is sure as well: a rise that no chart
# calls a burst, or prompts that became longer, then count after 15 s and not after half of the stable minute.
RECENT_SECONDS: Final = 15
_RECENT_SIGMAS_SQUARED: Final = 9
# Prompts in the traces of tests/data have a standard deviation of 0.96 (Azure, m-large), 1.3 (Mooncake) and 2.2
# (deepseek-r1) times their mean length; 1.2 is taken. The tokens of n prompts vary by that and by what n varies.
LENGTHS_VARY_MILLI: Final = 1440


@dataclass(frozen=True, slots=True)
class Rates:
    """What arrives, in thousandths a second, and how many requests are in the batches, in thousandths. [S]."""

    stable_milli: I64
    stable_prompt_milli: I64  # prompt tokens
    burst_milli: I64  # 0 where no burst was detected
    burst_prompt_milli: I64
    burst_sure_milli: I64  # the share of `burst_milli` that is beyond chance, in thousandths
    burst: Bool
    running_stable_milli: I64
    running_burst_milli: I64  # over the last seconds


def watch(ring: Ring, tick: Ring, timers: Timers, dispersion_milli: I64, seen: Sight) -> Timers:
    """Bring the chart and the clocks of traffic up to date.

    Parameters
    ----------
    ring, tick
        The windows, and what this tick added to the present second.
    timers
        As the last tick left them.
    dispersion_milli
        How uneven the arrivals are.
    seen
        For the time.
    """
    arrivals = np.where(seen.gateways_tell, tick.arrivals, np.maximum(tick.arrivals, tick.entered))
    for_it = arrivals * _EVIDENCE_MILLINATS
    expected = np.maximum(timers.expected_milli, _EXPECTED_LEAST_MILLI)
    against = _AGAINST * expected * min(seen.elapsed_ms, STABLE_SECONDS * SECOND_MS) // SECOND_MS
    evidence = (for_it - against) * MILLI // dispersion_milli
    settled = seen.now_ms - timers.since_ms >= WINDOW_LEAST_MS
    chart = np.where(settled, clamp(timers.chart + evidence, 0, ALARM_MILLINATS), 0)
    second = seen.now_ms // SECOND_MS
    began_s = np.where(timers.chart > 0, timers.chart_since_s, second)
    alarm = chart >= np.where(seen.held > 0, _ALARM_HELD_MILLINATS, ALARM_MILLINATS)
    burst_s = np.where(alarm, began_s, timers.burst_since_s)
    # After a stable window the burst is what the stable mean says.
    lasting = second - or_else(burst_s, 0) < STABLE_SECONDS
    burst_s = np.where(known(burst_s) & lasting, burst_s, UNKNOWN)
    traffic = (ring.arrivals, ring.entered, ring.arrival_prompt_tokens, ring.entered_prompt_tokens)
    moving = seen.occupied + sum(window_sum(column, seen.now_ms, STABLE_SECONDS) for column in traffic) > 0
    return replace(
        timers,
        chart=np.where(alarm, 0, chart),
        chart_since_s=np.where((chart > 0) & ~alarm, began_s, UNKNOWN),
        burst_since_s=burst_s,
        busy_ms=np.where((arrivals > 0) | (seen.occupied > 0), seen.now_ms, timers.busy_ms),
        traffic_since_ms=np.where(moving, or_else(timers.traffic_since_ms, seen.now_ms), UNKNOWN),
    )


def measure(ring: Ring, timers: Timers, usual: Usual, seen: Sight) -> tuple[Timers, Rates]:
    """Read the windows.

    Parameters
    ----------
    ring
        The windows.
    timers
        For when traffic and burst began.
    usual
        For the dispersion.
    seen
        For the time, and for who knows of arrivals: the gateways if all of them answer, else whoever saw more.

    Returns
    -------
    tuple
        The timers with what the next look is expected to bring, and the rates.
    """
    now_ms, stable_ms, gateways_tell = seen.now_ms, _stable_ms(timers, seen.now_ms), seen.gateways_tell
    burst = known(timers.burst_since_s)
    second = now_ms // SECOND_MS
    since_s = np.minimum(np.where(burst, timers.burst_since_s, second), second - BURST_LEAST_SECONDS)

    def either(of_gateways: I64, of_engines: I64) -> I64:
        return np.where(gateways_tell, of_gateways, np.maximum(of_gateways, of_engines))

    def stable(of_gateways: I64, of_engines: I64, added: I64) -> I64:
        counts = (window_sum(column, now_ms, STABLE_SECONDS) for column in (of_gateways, of_engines))
        return _rate_milli(either(*counts) + added, stable_ms)

    def in_burst(of_gateways: I64, of_engines: I64) -> I64:
        return either(*(sum_since(column, now_ms, since_s) for column in (of_gateways, of_engines)))

    def burst_rate(count: I64) -> I64:
        return np.where(burst, _rate_milli(count, now_ms - since_s * SECOND_MS), 0)

    full = stable_ms >= (STABLE_SECONDS - 1) * SECOND_MS
    arrivals = either(ring.arrivals, ring.entered)
    rising = np.where(full & ~burst, _trend(arrivals, usual, now_ms), 0)
    stable_milli = stable(ring.arrivals, ring.entered, rising)
    stable_prompt_milli = stable(ring.arrival_prompt_tokens, ring.entered_prompt_tokens, rising * usual.prompt_tokens)
    tokens = either(ring.arrival_prompt_tokens, ring.entered_prompt_tokens)
    recent_milli, recent_prompt_milli = _recent_sure(arrivals, tokens, usual, now_ms, stable_ms)
    stable_milli = np.maximum(stable_milli, recent_milli)
    count = in_burst(ring.arrivals, ring.entered)
    # Of n requests, chance may have brought s * sqrt(dispersion * n): the share is s * sqrt(dispersion / n).
    chance_milli = isqrt(_SURE_SIGMAS_SQUARED_MILLI * usual.dispersion_milli // np.maximum(count, 1))
    burst_milli = burst_rate(count)
    rates = Rates(
        stable_milli=stable_milli,
        stable_prompt_milli=np.maximum(stable_prompt_milli, recent_prompt_milli),
        burst_milli=burst_milli,
        burst_prompt_milli=burst_rate(in_burst(ring.arrival_prompt_tokens, ring.entered_prompt_tokens)),
        burst_sure_milli=np.where(burst, np.maximum(MILLI - chance_milli, 0), 0),
        burst=burst_milli > stable_milli,
        running_stable_milli=_running_milli(ring, now_ms, STABLE_SECONDS),
        running_burst_milli=_running_milli(ring, now_ms, RUNNING_BURST_SECONDS),
    )
    # What is expected follows a rise before it is proven, so a doubling is found by the stable mean and not by the
    # chart; were it frozen, a mean that is low by chance would make one false alarm in two hours.
    return replace(timers, expected_milli=np.maximum(stable_milli, burst_milli)), rates


def _stable_ms(timers: Timers, now_ms: int) -> I64:
    """Return the time that the stable window speaks of: what traffic has lasted, within ten seconds and a minute."""
    lasted_ms = now_ms - or_else(timers.traffic_since_ms, now_ms)
    full_ms = (STABLE_SECONDS - 1) * SECOND_MS + now_ms % SECOND_MS
    return clamp(lasted_ms, WINDOW_LEAST_MS, full_ms)


def _rate_milli(count: I64, time_ms: I64) -> I64:
    rate: I64 = np.minimum(count, COUNT_MAX) * (MILLI * SECOND_MS) // time_ms
    return rate


def _recent_sure(arrivals: I64, tokens: I64, usual: Usual, now_ms: int, stable_ms: I64) -> tuple[I64, I64]:
    """Return the rates of the last quarter of a minute, of requests and of tokens, less what chance may have added."""
    lasted_ms = np.minimum((RECENT_SECONDS - 1) * SECOND_MS + now_ms % SECOND_MS, stable_ms)
    came = window_sum(arrivals, now_ms, RECENT_SECONDS)
    read = window_sum(tokens, now_ms, RECENT_SECONDS)
    dispersion_milli = usual.dispersion_milli

    def sure(count: I64, vary_milli: I64) -> I64:
        return _rate_milli(count, lasted_ms) * sure_milli(came, vary_milli) // MILLI

    return sure(came, dispersion_milli), sure(read, dispersion_milli + LENGTHS_VARY_MILLI)


def sure_milli(count: I64, vary_milli: I64 | int) -> I64:
    """Return the share of a sum over so many requests that lies three standard deviations below it."""
    return np.maximum(MILLI - isqrt(_RECENT_SIGMAS_SQUARED * MILLI * vary_milli // np.maximum(count, 1)), 0)


def _trend(arrivals: I64, usual: Usual, now_ms: int) -> I64:
    """Return how many more arrivals a minute begun 40 s later would hold; at most a quarter of what this one holds.

    The minute is cut into thirds. A ramp rises from each to the next; a step rises once, so the smaller of the two
    rises is believed, less three standard deviations of what the first two thirds would vary by chance.
    """
    first, second, third = (window_sum(arrivals, now_ms, _THIRD_SECONDS, back) for back in (40, 20, 0))
    noise = _TREND_SIGMAS * isqrt(np.minimum(first + second, COUNT_MAX) * usual.dispersion_milli // MILLI)
    rise = np.maximum(np.minimum(second - first, third - second) - noise, 0)
    added: I64 = np.minimum(_TREND_STEPS * 3 * rise, (first + second + third) // 4)
    return added


def _running_milli(ring: Ring, now_ms: int, seconds: int) -> I64:
    area, time = window_sum(ring.running, now_ms, seconds), window_sum(ring.running_ms, now_ms, seconds)
    return area * MILLI // np.maximum(time, 1)
