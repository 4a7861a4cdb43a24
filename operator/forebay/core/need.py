"""Demand in replicas: prefill, decode and batch slots are three currencies, and the dearest one decides.

Prefill and decode share a unified replica's time, so their shares add up; each is reported apart, so that `explain` can
say which of them asks. Full batches at `batch_best` are what decode's share assumes: a replica whose time is all spent
is also one whose slots are all taken. What is measured in the batches counts as well, because it knows of traffic that
no gateway saw and of engines that are slower than any model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from forebay.core.reasons import Reason
from forebay.core.units import MILLI, ceil_div, clamp, isqrt, last_that_applies

if TYPE_CHECKING:
    from forebay.core.capacity import Capacity
    from forebay.core.fleet import FleetSpec
    from forebay.core.forecast import Rates
    from forebay.core.learning import Usual
    from forebay.core.units import I64

# Nobody has a million replicas; capping a need there keeps what follows in an int64.
NEED_MAX_MILLI: Final = 10**9
# Traffic that is unevener than this is judged by bursts, not by a margin for chance.
_MARGIN_DISPERSION_MAX_MILLI: Final = 4000


@dataclass(frozen=True, slots=True)
class Need:
    """Replicas that traffic keeps busy, in thousandths, before any margin. [S]."""

    milli: I64  # now: the larger of the two below
    sure_milli: I64  # likewise, of a burst only what is beyond chance: what is worth a cold start
    stable_milli: I64  # without bursts
    prefill_milli: I64  # of `milli`, or 0 where batch occupancy decides
    decode_milli: I64
    sequences_milli: I64  # requests in the batches at once, in thousandths
    arrivals_milli: I64  # requests a second behind `milli`, in thousandths
    margin_milli: I64  # what chance may add to `milli`
    crowded_milli: I64  # batches of the last seconds; they vary by chance, so they are compared with need and margin
    keep_milli: I64  # what shrinking is judged by: the same at KEEP_MILLI of the targets
    reason: I64  # which currency decides


def need_of(rates: Rates, capacity: Capacity, usual: Usual) -> Need:
    """Turn rates into replicas.

    Parameters
    ----------
    rates
        What arrives, and what is in the batches.
    capacity
        What one replica can do.
    usual
        Lengths.
    """
    prefill, decode = _shares(rates.stable_milli, rates.stable_prompt_milli, capacity)
    burst_prefill, burst_decode = _shares(rates.burst_milli, rates.burst_prompt_milli, capacity)
    batch = capacity.batch_best
    occupied = rates.running_stable_milli // batch
    # Without a model a burst fills the batches as much faster as it arrives.
    ratio_milli = clamp(rates.burst_milli * MILLI // np.maximum(rates.stable_milli, 1), 0, 10 * MILLI)
    by_batch = np.where(capacity.modelled, 0, occupied * ratio_milli // MILLI)
    stable = np.maximum(_by_time(prefill, decode, capacity.prefill_share_milli), occupied)
    burst = np.maximum(_by_time(burst_prefill, burst_decode, capacity.prefill_share_milli), by_batch)
    milli = np.minimum(np.maximum(stable, burst), NEED_MAX_MILLI)
    sure = np.minimum(burst, NEED_MAX_MILLI) * rates.burst_sure_milli // MILLI
    prefill, decode = np.maximum(prefill, burst_prefill), np.maximum(decode, burst_decode)
    kept = np.maximum(rates.stable_milli, rates.burst_milli) * capacity.answer_keep_us // 10**6
    keep = np.maximum(_by_time(prefill, kept, capacity.prefill_keep_milli), milli)
    return Need(
        milli=milli,
        sure_milli=np.minimum(np.maximum(stable, sure), NEED_MAX_MILLI),
        stable_milli=np.minimum(stable, NEED_MAX_MILLI),
        prefill_milli=prefill,
        decode_milli=decode,
        sequences_milli=milli * batch,
        arrivals_milli=np.maximum(rates.stable_milli, rates.burst_milli),
        margin_milli=margin_milli(milli, batch, usual),
        crowded_milli=np.minimum(rates.running_burst_milli // batch, NEED_MAX_MILLI),
        keep_milli=np.minimum(keep, NEED_MAX_MILLI),
        reason=_reason(milli, prefill, decode, rates, capacity),
    )


def margin_milli(need_milli: I64, batch_best: I64, usual: Usual) -> I64:
    """Return what chance may add to a need: one standard deviation of the requests in the batches at once.

    Arrivals by chance put N requests into the system with a variance of N times their dispersion. A fleet of few slots
    needs more than a policy's per cents: 8 requests at once vary by 3, 800 by 28.
    """
    dispersion = np.minimum(usual.dispersion_milli, _MARGIN_DISPERSION_MAX_MILLI)
    return isqrt(need_milli * batch_best * dispersion) // batch_best


def replicas_for(need_milli: I64, fleet: FleetSpec, capacity: Capacity, usual: Usual) -> I64:
    """Return the whole replicas for a need, with the policy's headroom or the margin for chance, whichever is more."""
    headroom = need_milli * fleet.headroom_milli // MILLI
    margin = margin_milli(need_milli, capacity.batch_best, usual)
    return ceil_div(need_milli + np.maximum(headroom, margin), MILLI)


def _shares(rate_milli: I64, prompt_milli: I64, capacity: Capacity) -> tuple[I64, I64]:
    """Return the replicas, in thousandths, that prefill and decode keep busy."""
    prefill = prompt_milli // MILLI * capacity.prefill_ns_per_token // 10**6
    decode = rate_milli * capacity.answer_us // 10**6
    return np.minimum(prefill, NEED_MAX_MILLI), np.minimum(decode, NEED_MAX_MILLI)


def _by_time(prefill_milli: I64, decode_milli: I64, prefill_share_milli: I64) -> I64:
    """Return the replicas whose time suffices, and whose prefill queue stays short enough for the TTFT target."""
    by_time: I64 = np.maximum(prefill_milli + decode_milli, ceil_div(prefill_milli * MILLI, prefill_share_milli))
    return by_time


def _reason(milli: I64, prefill: I64, decode: I64, rates: Rates, capacity: Capacity) -> I64:
    """Say which currency decides; the last that applies is told."""
    return last_that_applies(
        np.full_like(milli, int(Reason.DECODE_DEMAND)),
        (prefill > decode, Reason.PREFILL_DEMAND),
        (ceil_div(prefill * MILLI, capacity.prefill_share_milli) > prefill + decode, Reason.TTFT_QUEUEING),
        (milli > _by_time(prefill, decode, capacity.prefill_share_milli), Reason.BATCH_OCCUPANCY),
        (rates.burst, Reason.BURST_DETECTED),
        (milli == 0, Reason.NO_DEMAND),
        (~capacity.feasible & (milli > 0), Reason.SLO_INFEASIBLE),
    )
