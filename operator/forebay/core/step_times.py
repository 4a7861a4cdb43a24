"""The step-time model as columns: `t = c0 + c1*B + c2*context + p1*n + p2*(n_total^2 - n_cached^2)`.

The same line as `engine_model.step_time`, which prices one step of one engine; here every service is a row. Where a
service has no prior its constants count as zero, and its times are of no meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from forebay.core.units import MILLI, or_else

if TYPE_CHECKING:
    from forebay.core.fleet import FleetSpec
    from forebay.core.units import I64, Bool

PS_PER_US: Final = 10**6
_FS_PER_PS: Final = 1000
# A step or a prefill longer than an hour is a wrong constant; capping it keeps every product below in an int64.
_LONG_US: Final = 3600 * 10**6


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """The decode step as a straight line in the batch: base + each*B, at one context length a row."""

    base_ps: I64
    each_ps: I64

    def at_us(self, batch: I64) -> I64:
        """Return the step time of a batch."""
        step_us: I64 = np.minimum((self.base_ps + self.each_ps * batch) // PS_PER_US, _LONG_US)
        return step_us

    def largest_batch(self, itl_us: I64, prefill_us: I64, answer_tokens: I64) -> I64:
        """Return the largest batch whose tokens come no later than `itl_us` apart; 0 where even an empty one's do.

        Whoever leaves after `answer_tokens` steps is followed by a prompt that takes `prefill_us` of everybody's time:
        each member costs a step its own decode and one answer's share of a prefill, `base + B * (each + prefill /
        answer)`. In terms of utilization u that is Little's law and `itl = base / (1 - u)`.
        """
        each_ps = self.each_ps + prefill_us * PS_PER_US // answer_tokens
        batch: I64 = np.maximum(itl_us * PS_PER_US - self.base_ps, 0) // np.maximum(each_ps, 1)
        return batch


def modelled(fleet: FleetSpec) -> Bool:
    """Say which services have a prior."""
    has_prior: Bool = or_else(fleet.step_c0_ps, 0) > 0
    return has_prior


def decode_step(fleet: FleetSpec, row: I64 | slice, scale_milli: I64 | int, context_tokens: I64) -> DecodeStep:
    """Scale the prior's decode step and fix its context.

    Parameters
    ----------
    fleet
        The constants.
    row
        Which service each row of the result speaks of.
    scale_milli, context_tokens
        One a row of the result.
    """
    c0, c1, c2 = (or_else(column, 0)[row] for column in (fleet.step_c0_ps, fleet.step_c1_ps, fleet.step_c2_ps))
    each_ps = c1 * scale_milli // MILLI + c2 * scale_milli // MILLI * context_tokens
    return DecodeStep(c0 * scale_milli // MILLI, each_ps)


def prefill_us(fleet: FleetSpec, row: I64 | slice, scale_milli: I64 | int, prompt_tokens: I64, hit_milli: I64) -> I64:
    """Return the time to compute what the prefix cache does not have of one prompt; rows as in `decode_step`."""
    p1_ps, p2_fs = or_else(fleet.step_p1_ps, 0)[row], or_else(fleet.step_p2_fs, 0)[row]
    cached = prompt_tokens * hit_milli // MILLI
    pairs = prompt_tokens * prompt_tokens - cached * cached
    linear_us = p1_ps * (prompt_tokens - cached) // PS_PER_US
    square_us = p2_fs * (pairs // _FS_PER_PS) // PS_PER_US
    time_us: I64 = np.minimum((linear_us + square_us) * scale_milli // MILLI, _LONG_US)
    return time_us
