"""HPA on CPU: what `kubectl autoscale --cpu-percent=70` does to an inference service.

An engine's process spins while it has a batch and sleeps while it has none, so its CPU is nearly binary: a replica
that runs anything counts as using all of its request, and one that runs nothing as using none. metrics-server would
show the mean over its window instead of one instant; over a fleet both have the same mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from forebay.sim.baselines import hpa
from forebay.sim.baselines.settings import WARM, BaseRule, Range, Settings

if TYPE_CHECKING:
    from forebay.sim.baselines.settings import Bounds
    from forebay.sim.sample import Sample

_BUSY_MILLI: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class HpaCpuSettings(Settings):
    """Defaults of kube-controller-manager's flags; 70 % is the benchmark's choice, as Kubernetes has no default.

    The metric pipeline: metrics-server asks each kubelet every 15 s (--metric-resolution in its manifest: 7.5 s in the
    mean), cAdvisor reads cgroups every 10 s (5 s), and the rate is that of the middle of 15 s (7.5 s).
    """

    delay_ms: int = 20_000
    target_milli: int = 700
    tolerance_milli: int = hpa.TOLERANCE_MILLI
    down_stabilization_ms: int = hpa.DOWNSCALE_STABILIZATION_MS
    sync_ms: int = hpa.SYNC_MS


SEARCH_SPACE: Final = {
    "target_milli": Range(200, 950),
    "tolerance_milli": Range(10, 200),
    "down_stabilization_ms": Range(15_000, 1_800_000, "log"),
    **WARM,
}


class HpaCpu(BaseRule[HpaCpuSettings]):
    """An HPA with a resource metric."""

    def __init__(self, settings: HpaCpuSettings, bounds: Bounds) -> None:
        super().__init__(settings, bounds)
        self._hpa = hpa.Hpa(
            bounds,
            tolerance_milli=settings.tolerance_milli,
            downscale_stabilization_ms=settings.down_stabilization_ms,
        )
        self._replicas: int | None = None

    @property
    def interval_ms(self) -> int:
        """Return the sync period."""
        return self.settings.sync_ms

    def decide(self, sample: Sample) -> int:
        """Sync once."""
        current = self._hpa.bounds.clamp(sample.replicas) if self._replicas is None else self._replicas
        busy_milli = np.where(sample.running > 0, _BUSY_MILLI, 0)
        starting = max(current - sample.replicas_ready, 0)
        settings = self.settings
        self._replicas = self._hpa.sync_on_utilization(
            sample.at_ms, current, busy_milli, starting, settings.target_milli
        )
        return self._replicas
