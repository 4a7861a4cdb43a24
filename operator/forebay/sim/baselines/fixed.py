"""Rivals that look at nothing: a constant, and a plan made by somebody who knows the trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from forebay.sim.baselines.settings import WARM, BaseRule, Settings

if TYPE_CHECKING:
    from forebay.core.units import I64
    from forebay.sim.sample import Sample

SEARCH_SPACE: Final = WARM


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticSettings(Settings):
    """A constant: the peak or the mean of the clairvoyant plan, by whoever makes the rule."""

    replicas: int
    delay_ms: int = 0


class Static(BaseRule[StaticSettings]):
    """Always the same."""

    interval_ms: Final = 60_000

    def decide(self, sample: Sample) -> int:  # noqa: ARG002 - the protocol's; a constant needs no sample
        """Return the constant."""
        return self.bounds.clamp(self.settings.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClairvoyantSettings(Settings):
    """A plan, already early enough for every start: `plan[i]` holds from i * `plan_interval_ms` on, its last for ever.

    Raises
    ------
    ValueError
        When the plan is empty or holds a negative number.
    """

    plan: I64
    plan_interval_ms: int
    delay_ms: int = 0

    def __post_init__(self) -> None:
        if len(self.plan) == 0 or int(self.plan.min()) < 0:
            raise ValueError("the plan of clairvoyant must hold at least one number, and none below zero")


class Clairvoyant(BaseRule[ClairvoyantSettings]):
    """Follows the plan."""

    @property
    def interval_ms(self) -> int:
        """Return the interval of the plan."""
        return self.settings.plan_interval_ms

    def decide(self, sample: Sample) -> int:
        """Return what the plan holds now."""
        step = min(max(sample.at_ms, 0) // self.settings.plan_interval_ms, len(self.settings.plan) - 1)
        return self.bounds.clamp(int(self.settings.plan[step]))
