"""KEDA 2.21 on the sum of waiting requests, with the HPA that it makes.

Two loops share spec.replicas. The HPA syncs every 15 s on the external metric and knows 1..max. KEDA's own loop polls
every 30 s and knows only zero and not zero: kedacore/keda:pkg/scaling/executor/scale_scaledobjects.go, and
keda.sh/docs, "ScaledObject specification" (pollingInterval, cooldownPeriod, minReplicaCount) and "Prometheus"
(threshold as AverageValue, activationThreshold 0, ignoreNullValues true: a series that is gone reads as zero).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from forebay.sim.baselines import hpa
from forebay.sim.baselines.settings import WARM, BaseRule, Range, Settings
from forebay.sim.baselines.signals import Cadence

if TYPE_CHECKING:
    from forebay.sim.baselines.settings import Bounds
    from forebay.sim.sample import Sample

_MILLI: Final = 1000
# How long one round over all HPA objects takes by the number of objects, fitted to the measured times to 8 replicas
# (mean 84 s at 1,000 objects, 116-160 s at 2,000): the controller may send 20 requests a second, and each object
# costs about one a round. With 200 a second nothing slows down at 2,000: the first row.
SYNC_MS_BY_OBJECTS: Final = {1: hpa.SYNC_MS, 1000: 55_000, 2000: 90_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class KedaSettings(Settings):
    """Defaults of a ScaledObject and of its HPA; the threshold is the benchmark's choice, as KEDA has no default.

    The metric pipeline: Prometheus scrapes every 15 s and the HPA's sync queries it through KEDA without a cache.
    Both loops have one period and keep their phase, so the age is nearly the same at every sync; 1.5 s is what the
    measured mean of 24 s for 1 -> 4 -> 8 leaves after half a sync and one sync.
    """

    delay_ms: int = 1500
    waiting_target_milli: int = 5000
    poll_ms: int = 30_000
    cooldown_ms: int = 300_000
    tolerance_milli: int = hpa.TOLERANCE_MILLI
    down_stabilization_ms: int = hpa.DOWNSCALE_STABILIZATION_MS
    sync_ms: int = hpa.SYNC_MS  # another row of SYNC_MS_BY_OBJECTS for a crowded cluster


SEARCH_SPACE: Final = {
    "waiting_target_milli": Range(100, 50_000, "log"),
    "cooldown_ms": Range(30_000, 3_600_000, "log"),
    "tolerance_milli": Range(10, 200),
    "down_stabilization_ms": Range(15_000, 1_800_000, "log"),
    **WARM,
}


class Keda(BaseRule[KedaSettings]):
    """A ScaledObject with one Prometheus trigger."""

    def __init__(self, settings: KedaSettings, bounds: Bounds) -> None:
        super().__init__(settings, bounds)
        self._hpa = hpa.Hpa(
            bounds,
            tolerance_milli=settings.tolerance_milli,
            downscale_stabilization_ms=settings.down_stabilization_ms,
        )
        self._sync = Cadence(settings.sync_ms)
        self._poll = Cadence(settings.poll_ms)
        self._replicas: int | None = None
        self._active_ms: int | None = None

    @property
    def interval_ms(self) -> int:
        """Return the longest interval at which both loops are in time."""
        return math.gcd(self.settings.sync_ms, self.settings.poll_ms)

    def decide(self, sample: Sample) -> int:
        """Run the loops that are due; both see the replicas as they were before."""
        current = self.bounds.clamp(sample.replicas) if self._replicas is None else self._replicas
        wanted, now_ms = current, sample.at_ms
        if self._sync.due(now_ms):
            target_milli = self.settings.waiting_target_milli
            wanted = self._hpa.sync_on_average(now_ms, current, sample.queued * _MILLI, target_milli)
        if self._poll.due(now_ms):
            wanted = self._poll_once(now_ms, current, wanted, active=sample.queued > 0)
        self._replicas = wanted
        return wanted

    def _poll_once(self, now_ms: int, current: int, wanted: int, *, active: bool) -> int:
        if active:
            self._active_ms = now_ms
            return wanted if current else max(self.bounds.low, 1)
        cool = self._active_ms is None or now_ms - self._active_ms > self.settings.cooldown_ms
        return 0 if cool and self.bounds.low == 0 else wanted
