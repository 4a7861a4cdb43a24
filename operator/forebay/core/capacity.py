"""What one replica can do within the SLO and its KV budget, judged by what was learned before this look.

Engines do not report step times, so the five constants cannot be told apart by their metrics: only their common scale
is learned, from the gaps between tokens, which hold decode and prefill in the mix in which the traffic has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from forebay.core import step_times
from forebay.core.units import MILLI, clamp, known

if TYPE_CHECKING:
    from forebay.core.fleet import FleetSpec
    from forebay.core.learning import Usual
    from forebay.core.sight import Sight
    from forebay.core.units import I64, Bool

# The mean gap of a request's tokens varies around the fleet's: by replicas that are slower than others, by prompts that
# come close together. It is taken to vary by 12 %, so that for a share of the requests to keep the ITL target, the mean
# has to lie as many standard deviations below it. Chosen by what it costs: on W1, three seeds, 11 % kept 99.2 % good
# with 19.8 replicas, 12 % 99.4 % with 20.1, 15 % 99.6 % with 20.9.
_ITL_SPREAD_MILLI: Final = 120
# Of the normal distribution: the thousandths that lie within so many thousandths of a standard deviation, one-sided.
_ATTAINMENTS: Final = np.array((500, 800, 900, 950, 980, 990, 995))
_DEVIATIONS_MILLI: Final = np.array((0, 842, 1282, 1645, 2054, 2326, 2576, 3090))
# Shrinking is judged against this share of what growing is judged against: the gap between them is what keeps a
# constant load from moving the fleet.
KEEP_MILLI: Final = 850
_US_PER_MS: Final = 1000
_NS_PER_US: Final = 1000
# An hour of decode for one answer, or a second of prefill for one token, is a wrong constant; capping both keeps every
# product with a rate in an int64.
_LONG: Final = 10**9


@dataclass(frozen=True, slots=True)
class Capacity:
    """One replica of each service. [S]."""

    modelled: Bool  # a step-time prior exists; without one only batch occupancy is judged
    feasible: Bool  # a request alone meets the targets; where not, no number of replicas does
    batch_best: I64  # sequences that a replica can hold at once: slots, KV budget and ITL all allow it
    step_us: I64  # a decode step at batch_best
    prefill_us: I64  # the uncached part of a mean prompt
    prefill_ns_per_token: I64  # prefill time per prompt token, cached ones counted too
    answer_us: I64  # a mean answer's share of the decode steps at batch_best
    answer_keep_us: I64  # likewise in the batch that keeps KEEP_MILLI of the step time
    residence_ms: I64  # a request's time in the batch at batch_best
    slack_ms: I64  # what the TTFT target leaves for waiting
    prefill_share_milli: I64  # most of its time that a replica may prefill before the queue misses the TTFT target
    prefill_keep_milli: I64  # likewise at KEEP_MILLI of the target
    kv_tokens: I64  # KV slots, UNKNOWN where neither the engine nor the tables say


def capacity_of_one(fleet: FleetSpec, usual: Usual, seen: Sight) -> Capacity:
    """Work out what one replica of each service can do.

    Parameters
    ----------
    fleet
        Priors and targets.
    usual
        Lengths and the scale as they were before this look, so that at fixed memory more demand can only ask for more.
    seen
        For the KV slots that engines report.
    """
    modelled, every = step_times.modelled(fleet), slice(None)
    context = usual.prompt_tokens + usual.answer_tokens // 2
    scale_milli = usual.time_scale_milli
    steps = step_times.decode_step(fleet, every, scale_milli, context)
    prefill_us = step_times.prefill_us(fleet, every, scale_milli, usual.prompt_tokens, usual.hit_milli)
    prefill_us = np.where(modelled, prefill_us, 0)
    kv_tokens = np.where(known(seen.kv_tokens_each), seen.kv_tokens_each, fleet.kv_tokens_prior)
    slots = _slots(fleet, usual, kv_tokens)
    itl_us = fleet.itl_mean_ms * _US_PER_MS
    ttft_us = (fleet.ttft_target_ms + fleet.ttft_per_1k_prompt_tokens_ms * usual.prompt_tokens // 1000) * _US_PER_MS
    alone_us = steps.at_us(np.ones_like(slots))
    feasible = ~modelled | ((alone_us <= itl_us) & (prefill_us + alone_us <= ttft_us))
    judged = modelled & feasible

    def batch_within(share_milli: I64) -> I64:
        largest = steps.largest_batch(itl_us * share_milli // MILLI, prefill_us, usual.answer_tokens)
        return np.where(judged, clamp(largest, 1, slots), slots)

    def answer_us(batch: I64) -> I64:
        time_us = usual.answer_tokens * (steps.at_us(batch) * _NS_PER_US // batch) // _NS_PER_US
        return np.where(modelled, np.minimum(time_us, _LONG), 0)

    grow_milli = mean_within_milli(fleet.attainment_permille)
    best = batch_within(grow_milli)
    step_us = steps.at_us(best)
    spare_us = ttft_us - prefill_us - step_us
    return Capacity(
        modelled=modelled,
        feasible=feasible,
        batch_best=best,
        step_us=step_us,
        prefill_us=prefill_us,
        prefill_ns_per_token=np.minimum(prefill_us * _NS_PER_US // usual.prompt_tokens, _LONG),
        answer_us=answer_us(best),
        answer_keep_us=answer_us(batch_within(grow_milli * KEEP_MILLI // MILLI)),
        residence_ms=np.maximum((prefill_us + usual.answer_tokens * step_us) // _US_PER_MS, 1),
        slack_ms=np.maximum(spare_us // _US_PER_MS - usual.lead_promote_ms, 0),
        prefill_share_milli=_prefill_share_milli(judged, spare_us, prefill_us),
        prefill_keep_milli=_prefill_share_milli(judged, spare_us - ttft_us * (MILLI - KEEP_MILLI) // MILLI, prefill_us),
        kv_tokens=kv_tokens,
    )


def mean_within_milli(attainment_permille: I64) -> I64:
    """Return the share of the ITL target that the mean gap may reach, for so many requests to keep it."""
    deviations_milli = _DEVIATIONS_MILLI[np.searchsorted(_ATTAINMENTS, attainment_permille)]
    return MILLI * MILLI // (MILLI + _ITL_SPREAD_MILLI * deviations_milli // MILLI)


def _slots(fleet: FleetSpec, usual: Usual, kv_tokens: I64) -> I64:
    """Return the sequences that slots and KV budget allow; each must be able to finish, its answer cached."""
    by_kv = np.where(known(kv_tokens), kv_tokens // (usual.prompt_tokens + usual.answer_tokens), fleet.batch_max)
    return np.maximum(np.minimum(fleet.batch_max, by_kv), 1)


def _prefill_share_milli(judged: Bool, spare_us: I64, prefill_us: I64) -> I64:
    """Return the largest prefill share r whose queue still leaves the TTFT target whole.

    Prompts queue for the prefill as in M/D/1: the mean wait is `prefill * r / (2 * (1 - r))`. With x = 2 * spare /
    prefill, that is at most `spare` while r <= x / (1 + x). Where no share would do, or nothing is known, the bound is
    lifted: an infeasible target is reported, never chased with replicas.
    """
    twice = 2 * np.maximum(spare_us, 0)
    bound = MILLI * twice // np.maximum(twice + prefill_us, 1)
    return np.where(judged & (bound > 0), bound, MILLI)
