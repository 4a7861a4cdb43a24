"""Knative's autoscaler (KPA): concurrency over a stable and a panic window.

knative.dev/docs/serving/autoscaling ("Concurrency", "Scale to zero", "KPA-specific": targets and windows),
knative/serving:pkg/autoscaler/scaling/autoscaler.go (rates, panic) and pkg/reconciler/autoscaling/kpa/scaler.go
(zero only after a grace period). Concurrency is what its proxies count: all requests in flight, those that wait for a
first replica included. Its proxies report time averages; here a window holds one reading a tick.
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
class KnativeSettings(Settings):
    """Defaults of the ConfigMap config-autoscaler (knative/serving:config/core/configmaps/autoscaler.yaml).

    The metric pipeline: the autoscaler asks the proxies every second, which is half a second in the mean.
    """

    delay_ms: int = 500
    concurrency_target_milli: int = 700  # container-concurrency-target-percentage, of the hard limit B*
    stable_window_ms: int = 60_000
    panic_window_milli: int = 100  # panic-window-percentage, of the stable window
    panic_threshold_milli: int = 2000
    up_rate_milli: int = 1_000_000  # max-scale-up-rate
    down_rate_milli: int = 2000  # max-scale-down-rate
    zero_grace_ms: int = 30_000  # scale-to-zero-grace-period
    tick_ms: int = 2000


SEARCH_SPACE: Final = {
    "concurrency_target_milli": Range(100, 1500),
    "stable_window_ms": Range(6000, 600_000, "log"),
    "panic_window_milli": Range(10, 1000),
    "panic_threshold_milli": Range(1100, 10_000),
    "down_rate_milli": Range(1100, 10_000),
    **WARM,
}


class Knative(BaseRule[KnativeSettings]):
    """One revision's decider.

    Parameters
    ----------
    batch_best
        B*, the hard limit of concurrency.
    """

    def __init__(self, settings: KnativeSettings, bounds: Bounds, batch_best: int) -> None:
        super().__init__(settings, bounds)
        self._target = settings.concurrency_target_milli * batch_best / _MILLI
        self._window = Window(settings.stable_window_ms)
        self._panic_ms = settings.stable_window_ms * settings.panic_window_milli // _MILLI
        self._panic_since_ms: int | None = None
        self._panic_most = 0
        self._idle_since_ms: int | None = None
        self._begun = False

    @property
    def interval_ms(self) -> int:
        """Return the tick."""
        return self.settings.tick_ms

    def decide(self, sample: Sample) -> int:
        """Tick once."""
        now_ms, ready = sample.at_ms, sample.replicas_ready
        if not self._begun and ready > 1:  # it begins in panic, as it cannot know what it has forgotten
            self._panic_since_ms, self._panic_most = now_ms, ready
        self._begun = True
        self._window.add(now_ms, sample.in_flight)
        stable = round_up(self._window.mean() / self._target)
        panic = round_up(self._window.mean(self._panic_ms) / self._target)
        self._watch(now_ms, panic, max(ready, 1))
        wanted = self._limit(stable, max(ready, 1))
        if self._panic_since_ms is not None:
            self._panic_most = max(self._panic_most, wanted, self._limit(panic, max(ready, 1)))
            wanted = self._panic_most
        return self.bounds.clamp(self._after_grace(now_ms, wanted))

    def _watch(self, now_ms: int, panic: int, ready: int) -> None:
        """Begin, extend or end the panic."""
        if panic * _MILLI >= self.settings.panic_threshold_milli * ready:
            self._panic_since_ms = now_ms
        elif self._panic_since_ms is not None and now_ms - self._panic_since_ms > self.settings.stable_window_ms:
            self._panic_since_ms, self._panic_most = None, 0

    def _limit(self, wanted: int, ready: int) -> int:
        most = -(-self.settings.up_rate_milli * ready // _MILLI)
        return min(max(wanted, ready * _MILLI // self.settings.down_rate_milli), most)

    def _after_grace(self, now_ms: int, wanted: int) -> int:
        if wanted > 0:
            self._idle_since_ms = None
            return wanted
        if self._idle_since_ms is None:
            self._idle_since_ms = now_ms
        return 0 if now_ms - self._idle_since_ms >= self.settings.zero_grace_ms else 1
