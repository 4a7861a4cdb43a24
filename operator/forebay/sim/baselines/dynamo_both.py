"""NVIDIA Dynamo's planner with both kinds of scaling (optimization_target sla): a floor, and a fast loop above it.

docs.nvidia.com/dynamo, "Planner Design", "Scaling Decisions" and "Co-existence with Throughput-Based Scaling" (v1.x),
and ai-dynamo/dynamo:components/src/dynamo/planner/core/load_scaling.py: one more replica where *all* engines' expected
TTFT, or all their expected ITL, miss the SLA; one fewer where N-1 would keep KV, ITL and the queue's part of TTFT
within 80 % of it. The expectations are the profile's with the corrections of `dynamo_throughput`, in place of
regressions on single iterations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from forebay.engine_model.step_time import PS_PER_MS
from forebay.sim.baselines import dynamo_throughput
from forebay.sim.baselines.dynamo_load import Target
from forebay.sim.baselines.dynamo_throughput import SlaSettings, Throughput
from forebay.sim.baselines.settings import BaseRule, Range
from forebay.sim.baselines.signals import F64, Cadence, kv_share_of_one, queue_each

if TYPE_CHECKING:
    from forebay.sim.baselines.settings import Bounds
    from forebay.sim.sample import Sample

_MILLI: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class BothSettings(SlaSettings):
    """Defaults of planner/config/defaults.py: the load loop runs every 5 s with a sensitivity of 80 %."""

    load_interval_ms: int = 5000
    sensitivity_milli: int = 800  # load_scaling_down_sensitivity


SEARCH_SPACE: Final = {
    **dynamo_throughput.SEARCH_SPACE,
    "load_interval_ms": Range(1000, 60_000, "log"),
    "sensitivity_milli": Range(100, 1000),
}


class DynamoBoth(BaseRule[BothSettings]):
    """The planner of one aggregated deployment."""

    def __init__(self, settings: BothSettings, bounds: Bounds, batch_best: int) -> None:
        super().__init__(settings, bounds)
        self._batch_best = batch_best
        self._throughput = Throughput(settings, batch_best)
        self._slow = Cadence(settings.throughput_interval_ms)
        self._target = Target(bounds, settings.delay_ms)
        self._floor = 1

    @property
    def interval_ms(self) -> int:
        """Return the greatest common divisor of both intervals, as the planner's own pipeline does."""
        return math.gcd(self.settings.load_interval_ms, self.settings.throughput_interval_ms)

    def decide(self, sample: Sample) -> int:
        """Adjust once; the floor is applied even while the last change is under way."""
        workers = self._target.workers(sample)
        if self._slow.due(sample.at_ms):
            self._floor = self._throughput.plan(sample) or self._floor
        wanted = self._target.replicas or 1 if workers is None else workers + self._step(sample, workers)
        return self._target.ask(sample, max(wanted, self._floor))

    def _step(self, sample: Sample, workers: int) -> int:
        prompt = self._prompt_tokens(sample)
        ttft_ms, queued_ms, itl_ms, _ = self._expected(sample, prompt, 1.0)
        if (ttft_ms > self.settings.ttft_ms).all() or (itl_ms > self.settings.itl_ms).all():
            return 1
        if workers == 1:
            return 0
        ttft_ms, queued_ms, itl_ms, usage = self._expected(sample, prompt, workers / (workers - 1))
        share = self.settings.sensitivity_milli / _MILLI
        slack_ms = (self.settings.ttft_ms - (ttft_ms - queued_ms)) * share
        safe = (usage < 1) & (itl_ms < self.settings.itl_ms * share) & (slack_ms > 0) & (queued_ms < slack_ms)
        return -1 if safe.all() else 0

    def _prompt_tokens(self, sample: Sample) -> float:
        mean = self._throughput.isl or sample.prompt_tokens_total / max(sample.arrivals_total, 1)
        return mean * self._throughput.prefill_correction

    def _expected(self, sample: Sample, prompt: float, crowding: float) -> tuple[F64, F64, F64, F64]:
        """Return TTFT, the queue's part of it, ITL and the KV in use of each replica, at `crowding` times its load.

        A queued request's KV is counted as if it ran already.
        """
        engine, times = self._throughput.engine, self._throughput.engine.times
        waiting = queue_each(sample) * crowding
        usage = sample.kv_usage_milli / _MILLI * crowding + waiting * kv_share_of_one(sample, self._batch_best)
        batch = sample.running * crowding + waiting
        step_ps = times.c0_ps + times.c1_ps * batch + times.c2_ps * np.minimum(usage, 1.0) * engine.kv_tokens
        itl_ms = step_ps / PS_PER_MS * self._throughput.decode_correction
        queued_ms = waiting * engine.prefill_ms(prompt)
        return queued_ms + engine.prefill_ms(prompt) + itl_ms, queued_ms, itl_ms, usage
