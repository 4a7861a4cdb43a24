"""llm-d's Workload Variant Autoscaler, both analyzers, through the HPA that its chart makes.

llm-d.ai/docs, "Workload Variant Autoscaling", and of llm-d/llm-d-workload-variant-autoscaler:
docs/integrations/hpa-integration.md and deploy/configmap-saturation-scaling.yaml (defaults), internal/capacity
(v1: percentages, one replica a step), internal/engines/analyzers/saturation_v2/analyzer.go and
internal/engines/pipeline/cost_aware_optimizer.go (v2: tokens). With one variant there is nothing to choose by cost.

WVA only emits a number; an HPA with AverageValue 1 follows it. Its tolerance of 10 % ignores one replica more where
there are ten, which is what these defaults do.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from forebay.sim.baselines import hpa
from forebay.sim.baselines.settings import WARM, BaseRule, Range, Settings
from forebay.sim.baselines.signals import F64, kv_share_of_one, queue_each, round_down, round_up

if TYPE_CHECKING:
    from forebay.sim.baselines.settings import Bounds
    from forebay.sim.sample import Sample

_MILLI: Final = 1000
_PODS: Final = 10  # the chart's policies, both ways: 10 pods in 150 s
_PERIOD_MS: Final = 150_000
_SAFE_LEAST: Final = 2  # v1 never shrinks with fewer replicas that are not saturated
_OBSERVED: Final = 10  # v2 averages so many observations of a saturated replica's tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class WvaSettings(Settings):
    """Defaults of the chart and of deploy/configmap-saturation-scaling.yaml.

    The metric pipeline, each step half its period in the mean: Prometheus scrapes the engines (15 s), WVA looks
    (15 s), Prometheus scrapes WVA (15 s).
    """

    delay_ms: int = 22_500
    kv_threshold_milli: int = 800
    queue_threshold_milli: int = 5000
    kv_spare_milli: int = 100  # v1
    queue_spare_milli: int = 3000  # v1
    up_threshold_milli: int = 850  # v2
    down_threshold_milli: int = 700  # v2: scaleDownBoundary
    peak_ms: int = 60_000  # max_over_time of its queries
    tolerance_milli: int = hpa.TOLERANCE_MILLI
    up_stabilization_ms: int = 240_000
    down_stabilization_ms: int = 240_000
    tick_ms: int = 15_000


_HPA_SPACE: Final = {
    "tolerance_milli": Range(1, 200),  # a field of the HPA since Kubernetes 1.33
    "up_stabilization_ms": Range(0, 300_000),
    "down_stabilization_ms": Range(0, 1_800_000),
    **WARM,
}
SEARCH_SPACE_V1: Final = {
    "kv_threshold_milli": Range(300, 980),
    "queue_threshold_milli": Range(500, 50_000, "log"),
    "kv_spare_milli": Range(10, 290),
    "queue_spare_milli": Range(100, 5000, "log"),
    **_HPA_SPACE,
}
SEARCH_SPACE_V2: Final = {
    "kv_threshold_milli": Range(300, 980),
    "up_threshold_milli": Range(300, 1000),
    "down_threshold_milli": Range(100, 950),
    **_HPA_SPACE,
}


class _Peaks:
    """The greatest reading of each replica in the last minute; rows keep their places while their number does."""

    def __init__(self, window_ms: int) -> None:
        self._window_ms = window_ms
        self._readings: deque[tuple[int, F64, F64]] = deque()

    def add(self, sample: Sample) -> tuple[F64, F64]:
        """Return the peaks of the KV share and of the queue of each ready replica."""
        if self._readings and len(self._readings[0][1]) != sample.replicas_ready:
            self._readings.clear()
        self._readings.append((sample.at_ms, sample.kv_usage_milli / _MILLI, queue_each(sample)))
        while self._readings[0][0] <= sample.at_ms - self._window_ms and len(self._readings) > 1:
            self._readings.popleft()
        usage = np.max([usage for _, usage, _ in self._readings], axis=0)
        return usage, np.max([queue for _, _, queue in self._readings], axis=0)


class Analyzer(Protocol):
    """How many replicas WVA emits."""

    def emit(self, sample: Sample, current: int, usage: F64, queue: F64) -> int:
        """Return the number.

        Parameters
        ----------
        sample
            For what is not in the other arguments.
        current
            spec.replicas, at least 1.
        usage, queue
            [ready >= 1] peaks of the share of KV in use and of the requests that wait.
        """


class Wva(BaseRule[WvaSettings]):
    """A VariantAutoscaling and its HPA."""

    def __init__(self, settings: WvaSettings, bounds: Bounds, analyzer: Analyzer) -> None:
        super().__init__(settings, bounds)
        pods = (hpa.Policy("pods", _PODS, _PERIOD_MS),)
        self._hpa = hpa.Hpa(
            bounds,
            tolerance_milli=settings.tolerance_milli,
            behavior=hpa.Behavior(
                up=hpa.ScalingRules(settings.up_stabilization_ms, pods),
                down=hpa.ScalingRules(settings.down_stabilization_ms, pods),
            ),
        )
        self._analyzer = analyzer
        self._peaks = _Peaks(settings.peak_ms)
        self._replicas: int | None = None

    @property
    def interval_ms(self) -> int:
        """Return the tick of WVA, which is also the HPA's."""
        return self.settings.tick_ms

    def decide(self, sample: Sample) -> int:
        """Emit a number and let the HPA follow it.

        From zero WVA starts one replica itself, as soon as requests wait; to zero it does not go by default. Without
        a ready replica there is no metric, and its safety net emits the number that is.
        """
        if self._replicas is None:
            self._replicas = self.bounds.clamp(sample.replicas)
        if self._replicas == 0:
            self._replicas = 1 if sample.queued > 0 else 0
        elif sample.replicas_ready > 0:
            usage, queue = self._peaks.add(sample)
            emitted = max(self._analyzer.emit(sample, self._replicas, usage, queue), 1)
            self._replicas = self._hpa.sync_on_average(sample.at_ms, self._replicas, emitted * _MILLI, _MILLI)
        return self._replicas


class Percentages:
    """v1: one replica more where the mean spare of KV or queue is small, one fewer where both would stay large."""

    def __init__(self, settings: WvaSettings) -> None:
        self._kv_most, self._queue_most = settings.kv_threshold_milli / _MILLI, settings.queue_threshold_milli / _MILLI
        self._kv_spare, self._queue_spare = settings.kv_spare_milli / _MILLI, settings.queue_spare_milli / _MILLI

    def emit(self, sample: Sample, current: int, usage: F64, queue: F64) -> int:
        """Return one step; until what it asked for is ready, it asks for that."""
        if sample.replicas_ready != current:
            return current
        free = (usage < self._kv_most) & (queue < self._queue_most)
        if not free.any() or not self._spare(usage[free].mean(), queue[free].mean()):
            return current + 1
        left = int(free.sum()) - 1
        if left + 1 >= _SAFE_LEAST and self._spare(usage[free].sum() / left, queue[free].sum() / left):
            return current - 1
        return current

    def _spare(self, usage: float, queue: float) -> bool:
        """Say whether mean use and mean queue leave as much as wanted below their thresholds."""
        kv, waiting = round(self._kv_most - usage, 9), round(self._queue_most - queue, 9)
        return kv >= self._kv_spare and waiting >= self._queue_spare


class Tokens:
    """v2: tokens asked for against tokens that replicas hold, in units of one replica's KV cache."""

    def __init__(self, settings: WvaSettings, batch_best: int) -> None:
        self._settings = settings
        self._batch_best = batch_best
        self._observed: deque[float] = deque(maxlen=_OBSERVED)

    def emit(self, sample: Sample, current: int, usage: F64, queue: F64) -> int:
        """Return as many more as demand / 0.85 asks for beyond all that exist, or fewer by demand / 0.70."""
        share = kv_share_of_one(sample, self._batch_best)
        capacity = float(np.median([self._capacity(u, q, share) for u, q in zip(usage, queue, strict=True)]))
        demand = float(usage.sum() + queue.sum() * share)
        required = demand * _MILLI / self._settings.up_threshold_milli - current * capacity
        if required > 0:
            return current + round_up(required / capacity)
        spare = min(sample.replicas_ready, current) * capacity - demand * _MILLI / self._settings.down_threshold_milli
        return current - max(round_down(spare / capacity), 0)

    def _capacity(self, usage: float, queue: float, share: float) -> float:
        """Return the lesser of what memory and computing allow one replica, as a share of its KV cache.

        Computing: the tokens in use of a replica whose queue is long; else the mean of past such; else a full batch.
        """
        by_memory = self._settings.kv_threshold_milli / _MILLI
        if queue * _MILLI >= self._settings.queue_threshold_milli and usage > 0:
            self._observed.append(usage)
            return min(usage, by_memory)
        by_computing = sum(self._observed) / len(self._observed) if self._observed else self._batch_best * share
        return min(by_computing, by_memory)
