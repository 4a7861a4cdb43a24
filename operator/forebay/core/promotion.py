"""Who of the replicas that are held serves: an awake one holds its GPU anyway, so it waits only where it is no help."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from forebay.core.fleet import Mode
from forebay.core.reasons import Reason
from forebay.core.stages import Verdict, holds
from forebay.core.units import MILLI, UNKNOWN, ceil_div, clamp

if TYPE_CHECKING:
    from forebay.core.memory import Timers
    from forebay.core.stages import Facts
    from forebay.core.units import I64

# Of the need, in replicas: as many serve where they are held anyway, and beyond as many they are parked again.
_PROMOTE_TIMES: Final = 2
_DEMOTE_TIMES: Final = 4


def promotion(facts: Facts, before: Verdict) -> Verdict:
    """Let warm replicas serve while traffic keeps half of the fleet busy: their GPUs are held anyway.

    Twice the need is promoted to; only what is beyond four times goes back, so that chance does not swap labels.
    What is held is not changed, nor what a person has settled; where nothing is known, who serves goes on serving.
    """
    held = before.serving + before.warm
    need = facts.need.milli
    spread = clamp(facts.last_serving, ceil_div(_PROMOTE_TIMES * need, MILLI), ceil_div(_DEMOTE_TIMES * need, MILLI))
    spread = np.where(holds(facts), np.maximum(spread, facts.last_serving), spread)
    spread = np.where(facts.seen.may_rise, spread, facts.last_serving)
    judged = (facts.fleet.mode == Mode.AUTO) & ~facts.fleet.blocked & (before.serving > 0)
    serving = np.where(judged, np.maximum(before.serving, np.minimum(spread, held)), before.serving)
    return Verdict(
        serving,
        held - serving,
        np.where(serving > before.serving, Reason.WARM_SERVES, Reason.NONE),
        (("need_milli", need), ("needed", before.serving), ("held", held)),
    )


def remember_raising(facts: Facts, timers: Timers, serving: I64) -> Timers:
    """Note since when more serving replicas are asked for than there are."""
    now_ms, last, found = facts.seen.now_ms, facts.last_serving, facts.seen.serving
    raised_ms = np.where(serving > last, now_ms, np.where(found >= serving, UNKNOWN, timers.raised_ms))
    return replace(timers, raised_ms=raised_ms)
