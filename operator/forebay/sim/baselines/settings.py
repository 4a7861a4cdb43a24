"""What every rival has: settings with documented defaults, a range for each that may be tuned, and bounds."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping


class Range(NamedTuple):
    """Where a tuner may look for one setting. Both ends belong to it; "log" asks for even steps of its logarithm."""

    low: int
    high: int
    kind: Literal["int", "log"] = "int"


# Fairness: a warm pool is offered to every rival at the price that ours pays for it.
WARM = {"warm_replicas": Range(0, 8)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What all rules share. Times in milliseconds, shares in thousandths, everything a whole number."""

    delay_ms: int  # age of the sample it decides on: its own metric pipeline
    warm_replicas: int = 0  # kept warm by the loop; no rule here knows of warm replicas, so none reads it


S = TypeVar("S", bound=Settings)


class BaseRule(Generic[S]):
    """The half of `forebay.sim.sample.Rule` that is the same for all."""

    def __init__(self, settings: S, bounds: Bounds) -> None:
        self.settings = settings
        self.bounds = bounds

    @property
    def delay_ms(self) -> int:
        """Return the age of the samples that it decides on."""
        return self.settings.delay_ms

    @property
    def warm_replicas(self) -> int:
        """Return how many warm replicas the loop keeps for it."""
        return self.settings.warm_replicas


@dataclass(frozen=True, slots=True)
class Bounds:
    """minReplicas and maxReplicas of the service."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high or self.high == 0:
            raise ValueError(f"bounds of replicas must be 0 <= min <= max, and max not zero: {self.low}, {self.high}")

    def clamp(self, replicas: int) -> int:
        """Return the nearest number of replicas inside."""
        return min(max(replicas, self.low), self.high)


def configure(name: str, kind: type[S], overrides: Mapping[str, Any]) -> S:
    """Make the settings of a rule from those that differ from its defaults.

    Raises
    ------
    ValueError
        When a setting is not one of this rule's, when one without a default is missing, when a number is negative,
        or when one by which the rule divides (a target, a period, a rate) is zero.
    """
    known = {field.name: field for field in fields(kind)}
    for setting in overrides:
        if setting not in known:
            raise ValueError(f"{name} has no setting {setting!r}; it has {', '.join(sorted(known))}")
    needed = {f.name for f in known.values() if f.default is MISSING and f.default_factory is MISSING}
    if missing := sorted(needed - set(overrides)):
        raise ValueError(f"{name} has no default for {', '.join(missing)}: give it in its overrides")
    made = kind(**overrides)
    for setting in known:
        value = getattr(made, setting)
        least = 1 if setting.endswith(_DIVISORS) else 0
        if isinstance(value, int) and value < least:
            raise ValueError(f"{setting} of {name} must be at least {least}, not {value}")
    return made


_DIVISORS = ("target_milli", "sync_ms", "poll_ms", "tick_ms", "interval_ms", "rate_milli", "tokens", "threshold_milli")
