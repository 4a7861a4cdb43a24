"""The emulated engine's /metrics page: vLLM's names, types, labels and buckets, and nothing that vLLM would not say.

Transcribed from the page of vLLM 0.32.0 in tests/data; a contract test compares the two. Metrics of things that are not
emulated (multi-modal inputs, external caches, floating point operations) are left out rather than shown as zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from forebay.engine_model.bank import BLOCK_TOKENS
from forebay.engine_model.step_time import PS_PER_S
from forebay.wire.signals import ITL_BOUNDS_MS, TTFT_BOUNDS_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.engine_model.engine import Engine, Running, StepOutcome
    from forebay.wire.replica_config import ReplicaConfig

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
_TTFT_S = tuple(bound / 1000 for bound in TTFT_BOUNDS_MS)
_ITL_S = tuple(bound / 1000 for bound in ITL_BOUNDS_MS)
_REQUEST_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
_ANSWERS = (1, 2, 5, 10, 20)


def one_two_five(greatest: int) -> tuple[int, ...]:
    """Return 1, 2, 5, 10, 20, ... up to `greatest`: vLLM's buckets for counts of tokens."""
    bounds = [mantissa * 10**exponent for exponent in range(len(str(greatest))) for mantissa in (1, 2, 5)]
    return tuple(bound for bound in bounds if bound <= greatest)


class EngineMetrics:
    """Counts what happens, under vLLM's names.

    Parameters
    ----------
    config
        The replica's configuration; the first served name is the label that every metric bears.
    kv_blocks_total
        As the engine reports it.
    running, waiting, kv_usage, awake
        Read at each scrape.
    """

    def __init__(
        self,
        config: ReplicaConfig,
        kv_blocks_total: int,
        *,
        running: Callable[[], float],
        waiting: Callable[[], float],
        kv_usage: Callable[[], float],
        awake: Callable[[], bool],
    ) -> None:
        self._registry = CollectorRegistry()
        self._labels = {"model_name": config.served_names[0], "engine": "0"}
        self._seen = (0, 0, 0)
        self._gauges(running, waiting, kv_usage, awake)
        self._cache_config(config, kv_blocks_total)
        self._counters()
        self._histograms(config.max_model_len)

    def page(self) -> bytes:
        """Render the page."""
        return generate_latest(self._registry)

    def scheduled(self, engine: Engine) -> None:
        """Bring the counters that the engine itself keeps up to its totals."""
        totals = (engine.prefix_query_tokens_total, engine.prefix_hit_tokens_total, engine.preemptions_total)
        queried, hit, preempted = (total - seen for total, seen in zip(totals, self._seen, strict=True))
        self._seen = totals
        self._prefix_queries.inc(queried)
        self._prefix_hits.inc(hit)
        self._cached_by_source["device"].inc(hit)
        self._preemptions.inc(preempted)

    def stepped(self, outcome: StepOutcome) -> None:
        """Count one step."""
        self._iteration_tokens.observe(outcome.tokens)
        self._generation_tokens.inc(len(outcome.emitted))
        for request in outcome.prefilled:
            self._prefilled(request)
        for request in outcome.emitted:
            if request.token_before_ps is not None and request.last_token_ps is not None:
                self._itl.observe((request.last_token_ps - request.token_before_ps) / PS_PER_S)

    def finished(self, request: Running, finish_reason: str, max_tokens: int) -> None:
        """Count a request that has had its last token, or was given up."""
        self._success[finish_reason].inc()
        self._prompt_lengths.observe(request.prompt_tokens)
        self._output_lengths.observe(request.output_tokens)
        self._output_limits.observe(request.output_limit)
        self._params_n.observe(1)
        self._params_max_tokens.observe(max_tokens)
        self._request_preemptions.observe(request.preemptions)
        self._computed_lengths.observe(request.prompt_tokens - (request.cached_tokens or 0))
        self._times(request)

    def _prefilled(self, request: Running) -> None:
        cached = request.cached_tokens or 0
        self._prompt_tokens.inc(request.prompt_tokens)
        self._prompt_tokens_cached.inc(cached)
        self._prompt_by_source["local_compute"].inc(request.prompt_tokens - cached)
        self._prompt_by_source["local_cache_hit"].inc(cached)
        self._ttft.observe(((request.first_token_ps or 0) - request.arrived_ps) / PS_PER_S)

    def _times(self, request: Running) -> None:
        scheduled, first, last = request.scheduled_ps, request.first_token_ps, request.last_token_ps
        if scheduled is None or first is None or last is None:
            return  # aborted before its first token: it has no such times
        self._e2e.observe((last - request.arrived_ps) / PS_PER_S)
        self._queue_time.observe((scheduled - request.arrived_ps) / PS_PER_S)
        self._inference_time.observe((last - scheduled) / PS_PER_S)
        self._prefill_time.observe((first - scheduled) / PS_PER_S)
        self._decode_time.observe((last - first) / PS_PER_S)
        if request.output_tokens > 1:
            self._tpot.observe((last - first) / (request.output_tokens - 1) / PS_PER_S)

    def _gauge(self, name: str, help_text: str, **more: str) -> Gauge:
        """Make one gauge, or one more child of the gauge of that name."""
        labels = {**self._labels, **more}
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = Gauge(name, help_text, list(labels), registry=self._registry)
        return family.labels(**labels)

    def _gauges(
        self,
        running: Callable[[], float],
        waiting: Callable[[], float],
        kv_usage: Callable[[], float],
        awake: Callable[[], bool],
    ) -> None:
        self._families: dict[str, Gauge] = {}
        self._gauge("vllm:num_requests_running", "Requests in the batch.").set_function(running)
        self._gauge("vllm:num_requests_waiting", "Requests waiting.").set_function(waiting)
        by_reason = "vllm:num_requests_waiting_by_reason"
        self._gauge(by_reason, "Requests waiting, by reason.", reason="capacity").set_function(waiting)
        self._gauge(by_reason, "", reason="deferred").set(0)
        self._gauge("vllm:kv_cache_usage_perc", "Share of the KV blocks held, 1 is all.").set_function(kv_usage)
        sleep = "vllm:engine_sleep_state"
        self._gauge(sleep, "Whether the engine sleeps.", sleep_state="awake").set_function(lambda: float(awake()))
        self._gauge(sleep, "", sleep_state="weights_offloaded").set_function(lambda: float(not awake()))
        self._gauge(sleep, "", sleep_state="discard_all").set(0)

    def _cache_config(self, config: ReplicaConfig, kv_blocks_total: int) -> None:
        labels = {
            "block_size": str(BLOCK_TOKENS),
            "cache_dtype": config.kv_cache_dtype,
            "enable_prefix_caching": str(config.prefix_caching),
            "engine": "0",
            "gpu_memory_utilization": str(config.gpu_memory_utilization_permille / 1000),
            "kv_cache_size_tokens": str(kv_blocks_total * BLOCK_TOKENS),
            "num_gpu_blocks": str(kv_blocks_total),
        }
        Gauge("vllm:cache_config_info", "The KV cache.", list(labels), registry=self._registry).labels(**labels).set(1)

    def _counter(self, name: str, help_text: str) -> Counter:
        return Counter(name, help_text, list(self._labels), registry=self._registry).labels(**self._labels)

    def _counter_by(self, name: str, help_text: str, label: str, values: tuple[str, ...]) -> dict[str, Counter]:
        family = Counter(name, help_text, [*self._labels, label], registry=self._registry)
        return {value: family.labels(**self._labels, **{label: value}) for value in values}

    def _counters(self) -> None:
        self._prefix_queries = self._counter(
            "vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache."
        )
        self._prefix_hits = self._counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self._preemptions = self._counter("vllm:num_preemptions", "Preemptions.")
        self._prompt_tokens = self._counter("vllm:prompt_tokens", "Prompt tokens processed.")
        self._prompt_tokens_cached = self._counter("vllm:prompt_tokens_cached", "Prompt tokens found cached.")
        self._generation_tokens = self._counter("vllm:generation_tokens", "Output tokens.")
        self._prompt_by_source = self._counter_by(
            "vllm:prompt_tokens_by_source", "Prompt tokens by source.", "source", ("local_compute", "local_cache_hit")
        )
        self._cached_by_source = self._counter_by(
            "vllm:prompt_tokens_cached_by_source", "Cached prompt tokens by tier.", "source", ("device",)
        )
        self._success = self._counter_by(
            "vllm:request_success", "Requests ended, by reason.", "finished_reason", FINISH_REASONS
        )

    def _histogram(self, name: str, help_text: str, bounds: tuple[float, ...]) -> Histogram:
        family = Histogram(name, help_text, list(self._labels), buckets=bounds, registry=self._registry)
        return family.labels(**self._labels)

    def _histograms(self, max_model_len: int) -> None:
        lengths = one_two_five(max_model_len)
        made = self._histogram
        self._prompt_lengths = made("vllm:request_prompt_tokens", "Prompt tokens of a request.", lengths)
        self._output_lengths = made("vllm:request_generation_tokens", "Output tokens of a request.", lengths)
        self._output_limits = made(
            "vllm:request_max_num_generation_tokens", "Most output tokens it could have.", lengths
        )
        self._params_max_tokens = made("vllm:request_params_max_tokens", "max_tokens of a request.", lengths)
        self._computed_lengths = made(
            "vllm:request_prefill_kv_computed_tokens", "Prompt tokens of a request that were not cached.", lengths
        )
        self._params_n = made("vllm:request_params_n", "n of a request.", _ANSWERS)
        self._request_preemptions = made("vllm:request_num_preemptions", "Preemptions of a request.", _PREEMPTIONS)
        self._iteration_tokens = made("vllm:iteration_tokens_total", "Tokens of a step.", _STEP_TOKENS)
        self._ttft = made("vllm:time_to_first_token_seconds", "Time to first token.", _TTFT_S)
        self._itl = made("vllm:inter_token_latency_seconds", "Gap between two output tokens.", _ITL_S)
        self._tpot = made("vllm:request_time_per_output_token_seconds", "Mean gap of a request's tokens.", _ITL_S)
        self._e2e = made("vllm:e2e_request_latency_seconds", "Arrival to last token.", _REQUEST_S)
        self._queue_time = made("vllm:request_queue_time_seconds", "Arrival to first step.", _REQUEST_S)
        self._inference_time = made("vllm:request_inference_time_seconds", "First step to last token.", _REQUEST_S)
        self._prefill_time = made("vllm:request_prefill_time_seconds", "First step to first token.", _REQUEST_S)
        self._decode_time = made("vllm:request_decode_time_seconds", "First to last token.", _REQUEST_S)
