"""NVIDIA Dynamo's planner, load-based with static thresholds: its default (optimization_target throughput).

docs.nvidia.com/dynamo, "Planner Guide" and "Planner Design" (one replica up or down every 5 s, nothing new while the
last change is under way), and ai-dynamo/dynamo:components/src/dynamo/planner/core/load_scaling.py (aggregated: KV of
running, queued and queued prompts by the engine's KV; up where any engine is above 1.0, down where all are below 0.6;
the target "latency" has 0.4 and 0.1, which the search space contains).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from forebay.sim.baselines.settings import WARM, BaseRule, Range, Settings
from forebay.sim.baselines.signals import kv_share_of_one, queue_each

if TYPE_CHECKING:
    from forebay.sim.baselines.settings import Bounds
    from forebay.sim.sample import Sample

_MILLI: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamoLoadSettings(Settings):
    """Defaults of planner/config/defaults.py and core/load_scaling.py.

    The metric pipeline: engines publish every iteration on the event plane; 100 ms is generous.
    """

    delay_ms: int = 100
    kv_up_milli: int = 1000
    kv_down_milli: int = 600
    load_interval_ms: int = 5000


SEARCH_SPACE: Final = {
    "kv_up_milli": Range(200, 2000),
    "kv_down_milli": Range(50, 950),
    "load_interval_ms": Range(1000, 60_000, "log"),
    **WARM,
}


class Target:
    """What was asked for last, and whether the fleet has come to it: both load rules change nothing before."""

    def __init__(self, bounds: Bounds, delay_ms: int) -> None:
        self._bounds = bounds
        self._delay_ms = delay_ms
        self._changed_ms: int | None = None
        self.replicas: int | None = None

    def workers(self, sample: Sample) -> int | None:
        """Return the replicas that work, None while some start or while the sample is older than the last change."""
        if self.replicas is None:
            self.ask(sample, sample.replicas)
            self._changed_ms = None
        stale = self._changed_ms is not None and sample.at_ms <= self._changed_ms
        settled = not stale and 0 < sample.replicas_ready == sample.replicas
        return sample.replicas_ready if settled else None

    def ask(self, sample: Sample, replicas: int) -> int:
        """Ask for another number; min_endpoint is 1."""
        asked = self._bounds.clamp(max(replicas, 1))
        if asked != self.replicas:
            self._changed_ms = sample.at_ms + self._delay_ms
        self.replicas = asked
        return asked


class DynamoLoad(BaseRule[DynamoLoadSettings]):
    """The planner of one aggregated deployment."""

    def __init__(self, settings: DynamoLoadSettings, bounds: Bounds, batch_best: int) -> None:
        super().__init__(settings, bounds)
        self._batch_best = batch_best
        self._target = Target(bounds, settings.delay_ms)

    @property
    def interval_ms(self) -> int:
        """Return load_adjustment_interval."""
        return self.settings.load_interval_ms

    def decide(self, sample: Sample) -> int:
        """Adjust once."""
        workers = self._target.workers(sample)
        if workers is None:
            return self._target.ask(sample, self._target.replicas or 1)
        queued = queue_each(sample) * kv_share_of_one(sample, self._batch_best)
        usage_milli = sample.kv_usage_milli + queued * _MILLI
        if (usage_milli > self.settings.kv_up_milli).any():
            return self._target.ask(sample, workers + 1)
        shrink = bool((usage_milli < self.settings.kv_down_milli).all())
        return self._target.ask(sample, workers - shrink)
