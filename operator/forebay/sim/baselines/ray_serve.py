"""Ray Serve's default policy: ongoing requests by a target for each replica, with wall-clock delays.

docs.ray.io/en/latest/serve/advanced-guides/advanced-autoscaling.html and
ray-project/ray:python/ray/serve/autoscaling_policy.py (error ratio, cold start, delays, 1 before 0),
python/ray/serve/config.py (defaults).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from forebay.sim.baselines.settings import WARM, BaseRule, Range, Settings
from forebay.sim.baselines.signals import Window, round_up

if TYPE_CHECKING:
    from forebay.sim.baselines.settings import Bounds
    from forebay.sim.sample import Sample

_MILLI: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RayServeSettings(Settings):
    """Defaults of `AutoscalingConfig`.

    The metric pipeline: replicas and handles push every 10 s (metrics_interval_s), which is 5 s in the mean. The
    control loop runs each 0.1 s; as its numbers move no faster than the pushes, once a second is the same.
    """

    delay_ms: int = 5000
    ongoing_target_milli: int = 2000  # target_ongoing_requests
    look_back_ms: int = 30_000
    up_delay_ms: int = 30_000
    down_delay_ms: int = 600_000
    tick_ms: int = 1000


SEARCH_SPACE: Final = {
    "ongoing_target_milli": Range(500, 500_000, "log"),
    "look_back_ms": Range(1000, 300_000, "log"),
    "up_delay_ms": Range(0, 120_000),
    "down_delay_ms": Range(10_000, 3_600_000, "log"),
    **WARM,
}


class RayServe(BaseRule[RayServeSettings]):
    """One deployment's autoscaling state."""

    def __init__(self, settings: RayServeSettings, bounds: Bounds) -> None:
        super().__init__(settings, bounds)
        self._ongoing = Window(settings.look_back_ms)
        self._target: int | None = None
        self._leaning = 0  # which way it has wanted to go, 1, -1 or 0, and since when
        self._since_ms = 0

    @property
    def interval_ms(self) -> int:
        """Return the tick."""
        return self.settings.tick_ms

    def decide(self, sample: Sample) -> int:
        """Tick once."""
        if self._target is None:
            self._target = self.bounds.clamp(sample.replicas)
        self._ongoing.add(sample.at_ms, sample.in_flight)
        if sample.replicas_ready == 0:  # the cold start waits for no delay
            self._target = max(self._target, 1) if sample.in_flight > 0 else self._target
        else:
            wanted = round_up(self._ongoing.mean() * _MILLI / self.settings.ongoing_target_milli)
            self._target = self._delayed(sample.at_ms, self._target, self.bounds.clamp(wanted))
        return self._target

    def _delayed(self, now_ms: int, target: int, wanted: int) -> int:
        leaning = (wanted > target) - (wanted < target)
        if leaning != self._leaning:
            self._leaning, self._since_ms = leaning, now_ms
        delay_ms = self.settings.up_delay_ms if leaning > 0 else self.settings.down_delay_ms
        if leaning == 0 or now_ms - self._since_ms < delay_ms:
            return target
        self._leaning = 0
        return wanted if leaning > 0 or target == 1 else max(wanted, 1)
