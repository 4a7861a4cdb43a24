"""AIBrix's Application-specific Pod Autoscaler (APA): KV use or waiting requests, with fluctuation tolerance.

aibrix.readthedocs.io, "Metric-based autoscaling" (annotations and their defaults), and of vllm-project/aibrix:
pkg/controller/podautoscaler/algorithm/apa.go (rates and tolerances), context/context.go (defaults),
metrics/client.go (windows of 180 s and, for the KPA strategy only, 60 s), autoscaler.go (the greatest wish of all
metrics wins; replicas without metrics damp it) and podautoscaler_controller.go (10 s).

The documentation calls scale-down-cooldown-window a stabilization window, and so it is here: the greatest wish within
it counts. The controller's `stabilizeRecommendation` takes the least instead, which delays nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from forebay.sim.baselines.settings import WARM, BaseRule, Range, Settings
from forebay.sim.baselines.signals import Window, queue_each, round_up

if TYPE_CHECKING:
    from forebay.sim.baselines.settings import Bounds
    from forebay.sim.sample import Sample

_MILLI: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class AibrixSettings(Settings):
    """Defaults of `NewBaseScalingContext`; the KV target is that of its examples, for waiting requests they give none.

    The metric pipeline: the controller itself reads each pod's /metrics at each tick.
    """

    delay_ms: int = 100
    kv_target_milli: int = 500
    waiting_target_milli: int = 1000  # a replica
    window_ms: int = 180_000
    tolerance_milli: int = 100  # up and down
    up_rate_milli: int = 2000
    down_rate_milli: int = 2000
    down_cooldown_ms: int = 300_000
    tick_ms: int = 10_000


SEARCH_SPACE: Final = {
    "kv_target_milli": Range(100, 950),
    "waiting_target_milli": Range(100, 50_000, "log"),
    "window_ms": Range(10_000, 600_000, "log"),
    "tolerance_milli": Range(10, 500),
    "up_rate_milli": Range(1100, 10_000),
    "down_rate_milli": Range(1100, 10_000),
    "down_cooldown_ms": Range(10_000, 1_800_000, "log"),
    **WARM,
}


class Aibrix(BaseRule[AibrixSettings]):
    """A PodAutoscaler with two metric sources."""

    def __init__(self, settings: AibrixSettings, bounds: Bounds) -> None:
        super().__init__(settings, bounds)
        self._kv = Window(settings.window_ms)
        self._waiting = Window(settings.window_ms)
        self._asked: deque[tuple[int, int]] = deque()
        self._replicas: int | None = None

    @property
    def interval_ms(self) -> int:
        """Return the tick."""
        return self.settings.tick_ms

    def decide(self, sample: Sample) -> int:
        """Tick once. Its scale-to-zero is off by default, and without a ready replica there is no metric."""
        current = self.bounds.clamp(max(sample.replicas, 1)) if self._replicas is None else self._replicas
        if sample.replicas_ready > 0:
            self._kv.add(sample.at_ms, float(sample.kv_usage_milli.mean()))
            self._waiting.add(sample.at_ms, float(queue_each(sample).mean()) * _MILLI)
            ready = min(sample.replicas_ready, current)
            ratios = (
                self._kv.mean() / self.settings.kv_target_milli,
                self._waiting.mean() / self.settings.waiting_target_milli,
            )
            wanted = max(damped(self.settings, current, ready, ratio) for ratio in ratios)
            current = self.bounds.clamp(max(self._stabilized(sample.at_ms, current, wanted), 1))
        self._replicas = current
        return current

    def _stabilized(self, now_ms: int, current: int, wanted: int) -> int:
        self._asked.append((now_ms, wanted))
        while now_ms - self._asked[0][0] >= self.settings.down_cooldown_ms and len(self._asked) > 1:
            self._asked.popleft()
        if wanted >= current:
            return wanted
        return min(max(asked for _, asked in self._asked), current)


def wish(settings: AibrixSettings, current: int, ratio: float) -> int:
    """Return the replicas that one metric asks for, `ratio` being its mean over the replicas by its target."""
    if ratio * _MILLI > _MILLI + settings.tolerance_milli:
        return min(round_up(current * ratio), round_up(current * settings.up_rate_milli / _MILLI))
    if ratio * _MILLI < _MILLI - settings.tolerance_milli:
        return max(round_up(current * ratio), current * _MILLI // settings.down_rate_milli)
    return current


def damped(settings: AibrixSettings, current: int, ready: int, ratio: float) -> int:
    """Return the wish with replicas that are not ready counted as idle on the way up, as on target on the way down."""
    wanted = wish(settings, current, ratio)
    if wanted > current:
        return min(max(round_up(ratio * ready), current), wanted)
    if wanted < current:
        return max(min(round_up(ratio * ready + current - ready), current), wanted)
    return wanted
