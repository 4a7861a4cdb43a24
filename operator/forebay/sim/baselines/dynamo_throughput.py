"""NVIDIA Dynamo's planner, throughput-based: forecast the traffic, divide by what one engine can do within the SLA.

docs.nvidia.com/dynamo, "SLA-based Planner" (v0.8-0.9: correction factors, ARIMA on requests, ISL and OSL, 180 s) and
"Planner Design" (v1.x: aggregated engines), ai-dynamo/dynamo:docs/planner/sla_planner.md and
components/src/dynamo/planner/core/throughput_scaling.py (`_throughput_agg`).

What one engine can do comes from profiling before deployment. Here the profile is the step-time prior of the service
(the same numbers that ours begins with, never the simulated world's constants), and what it gets wrong is learned as
in v0.9: observed by expected ITL divides the ITL target, observed by expected TTFT, where below 1, shrinks prompts
(prefix hits). v1.x learns it by regression on the times of single iterations instead, which no /metrics page shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from forebay.engine_model.step_time import PS_PER_MS
from forebay.sim.baselines.predictors import Autoregression, Constant
from forebay.sim.baselines.settings import WARM, BaseRule, Range, Settings
from forebay.sim.baselines.signals import round_up

if TYPE_CHECKING:
    from forebay.engine_model.step_time import StepTimes
    from forebay.sim.baselines.predictors import Predictor
    from forebay.sim.baselines.settings import Bounds
    from forebay.sim.sample import Sample

_FS_PER_MS: Final = 1000 * PS_PER_MS
_MS_PER_S: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaSettings(Settings):
    """Defaults of planner/config/defaults.py; the profile has none.

    The metric pipeline: Prometheus scrapes the frontend every 5 s, 2.5 s in the mean.
    """

    times: StepTimes
    kv_tokens: int  # of one replica
    delay_ms: int = 2500
    ttft_ms: int = 500
    itl_ms: int = 50
    predictor: Literal["arima", "constant"] = "arima"
    throughput_interval_ms: int = 180_000


SEARCH_SPACE: Final = {
    "ttft_ms": Range(100, 5000, "log"),
    "itl_ms": Range(10, 200, "log"),
    "throughput_interval_ms": Range(30_000, 600_000, "log"),
    **WARM,
}


@dataclass(frozen=True, slots=True)
class Engine:
    """The profile: what one aggregated engine does with a mix of prompts of `isl` and answers of `osl` tokens."""

    times: StepTimes
    kv_tokens: int
    batch_best: int

    def prefill_ms(self, tokens: float) -> float:
        """Return the time to compute a prompt that runs alone."""
        return self.times.p1_ps * tokens / PS_PER_MS + self.times.p2_fs * tokens * tokens / _FS_PER_MS

    def step_ms(self, batch: float, isl: float, osl: float, prompt: float) -> float:
        """Return a step's time: each sequence decodes, and in its `osl` steps the prompt after it is computed.

        `prompt` is what must be computed of `isl`, which the context has in full.
        """
        each_ps = self.times.c1_ps + self.times.c2_ps * (isl + osl / 2)
        return (self.times.c0_ps + batch * each_ps) / PS_PER_MS + batch * self.prefill_ms(prompt) / osl

    def most_batch(self, isl: float, osl: float, prompt: float, itl_ms: float) -> float:
        """Return the largest batch whose step holds `itl_ms`, KV and slots; at least 1, even where it does not."""
        base_ms = self.step_ms(0, isl, osl, prompt)
        each_ms = self.step_ms(1, isl, osl, prompt) - base_ms
        by_itl = (itl_ms - base_ms) / each_ms if each_ms else self.batch_best
        return max(min(by_itl, self.batch_best, self.kv_tokens / (isl + osl)), 1.0)

    def requests_per_s(self, isl: float, osl: float, prompt: float, ttft_ms: float, itl_ms: float) -> float:
        """Return the most requests a second within the SLA; where none is, those of one request at a time.

        TTFT is the prompt alone and one step of the batch, so it bounds the step as ITL does.
        """
        step_ms = min(itl_ms, ttft_ms - self.prefill_ms(prompt))
        batch = self.most_batch(isl, osl, prompt, step_ms)
        return batch * _MS_PER_S / (osl * self.step_ms(batch, isl, osl, prompt))


class Traffic(NamedTuple):
    """Means over one interval; 0 where nothing came, ended or was timed, which has no mean."""

    requests_per_s: float
    isl: float
    osl: float
    ttft_ms: float
    itl_ms: float


class Throughput:
    """Forecasts and corrections; `Planner` in the words of its documentation."""

    def __init__(self, settings: SlaSettings, batch_best: int) -> None:
        self.engine = Engine(settings.times, settings.kv_tokens, batch_best)
        self._settings = settings
        make = Autoregression if settings.predictor == "arima" else Constant
        self._requests: Predictor = make()
        self._isl: Predictor = make()
        self._osl: Predictor = make()
        self._before: Sample | None = None
        self.isl = 0.0  # of the last interval with traffic
        self.decode_correction = 1.0
        self.prefill_correction = 1.0

    def plan(self, sample: Sample) -> int | None:
        """Return the replicas for the next interval, None while no whole one or no request's length has been seen."""
        before, self._before = self._before, sample
        if before is None or sample.at_ms <= before.at_ms:
            return None
        traffic = _traffic(before, sample)
        self._learn(traffic, max(sample.replicas_ready, 1))
        if not self.isl:
            return None
        demand, isl, osl = self._requests.next(), max(self._isl.next(), 1.0), max(self._osl.next(), 1.0)
        itl_ms = self._settings.itl_ms / self.decode_correction
        each = self.engine.requests_per_s(isl, osl, isl * self.prefill_correction, self._settings.ttft_ms, itl_ms)
        return max(round_up(demand / each), 1)

    def _learn(self, traffic: Traffic, replicas: int) -> None:
        self._requests.add(traffic.requests_per_s)
        if traffic.isl and traffic.osl:
            self.isl = traffic.isl
            self._isl.add(traffic.isl)
            self._osl.add(traffic.osl)
            self._correct(traffic, replicas)

    def _correct(self, traffic: Traffic, replicas: int) -> None:
        """Compare with the profile at the concurrency that Little's law gives."""
        engine, isl, osl = self.engine, traffic.isl, traffic.osl
        stay_ms = traffic.ttft_ms + osl * traffic.itl_ms
        batch = min(max(traffic.requests_per_s * stay_ms / _MS_PER_S / replicas, 1.0), engine.batch_best)
        step_ms = engine.step_ms(batch, isl, osl, isl * self.prefill_correction)
        if traffic.itl_ms:
            self.decode_correction = traffic.itl_ms / step_ms
        if traffic.ttft_ms:
            self.prefill_correction = min(traffic.ttft_ms / (engine.prefill_ms(isl) + step_ms), 1.0)


def _traffic(before: Sample, after: Sample) -> Traffic:
    """Return what happened between two samples."""
    requests = after.arrivals_total - before.arrivals_total
    return Traffic(
        requests_per_s=requests * _MS_PER_S / (after.at_ms - before.at_ms),
        isl=_mean(after.prompt_tokens_total - before.prompt_tokens_total, requests),
        osl=_mean(
            after.generation_tokens_total - before.generation_tokens_total,
            after.finished_total - before.finished_total,
        ),
        ttft_ms=_mean(after.ttft_sum_ms - before.ttft_sum_ms, after.ttft_count - before.ttft_count),
        itl_ms=_mean(after.itl_sum_ms - before.itl_sum_ms, after.itl_count - before.itl_count),
    )


def _mean(total: int, count: int) -> float:
    return total / count if count > 0 else 0.0


class DynamoThroughput(BaseRule[SlaSettings]):
    """The planner with throughput scaling alone."""

    def __init__(self, settings: SlaSettings, bounds: Bounds, batch_best: int) -> None:
        super().__init__(settings, bounds)
        self._throughput = Throughput(settings, batch_best)
        self._replicas: int | None = None

    @property
    def interval_ms(self) -> int:
        """Return throughput_adjustment_interval."""
        return self.settings.throughput_interval_ms

    def decide(self, sample: Sample) -> int:
        """Adjust once; the first time there is nothing to go by."""
        if self._replicas is None:
            self._replicas = self.bounds.clamp(max(sample.replicas, 1))
        planned = self._throughput.plan(sample)
        if planned is not None:
            self._replicas = self.bounds.clamp(planned)
        return self._replicas
