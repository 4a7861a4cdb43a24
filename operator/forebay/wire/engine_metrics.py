"""What each signal is called on an engine's /metrics page: one table, the newest spelling first.

A page bears a signal under the first spelling that it has. vLLM deprecates a metric in X.Y, hides it in X.Y+1 and
removes it in X.Y+2, so pages of several versions hold two spellings of one number; adding those up would count it
twice. Sources: vllm/v1/metrics/loggers.py of 0.9.1, 0.9.2, 0.11.0, 0.13.0 and 0.32.0; the page recorded from 0.32.0.
"""

from __future__ import annotations

from dataclasses import dataclass

# Labels by which pages tell one data-parallel rank and one model from another.
LABEL_ENGINE = "engine"
LABEL_MODEL = "model_name"
LABEL_BOUND = "le"
# Labels of the info metric of the KV cache.
LABEL_BLOCKS = "num_gpu_blocks"
LABEL_BLOCK_TOKENS = "block_size"


@dataclass(frozen=True, slots=True)
class Spelling:
    """One name of a signal: the samples of this name that bear this label."""

    name: str
    versions: str  # the vLLM versions that print it
    label: tuple[str, str] | None = None


# The keys of the tables are fields of ReplicaSignals, and what only a supervisor wants to know.
# Gauges and counters: a sum over ranks, and over labels that no spelling asks for.
NUMBERS: dict[str, tuple[Spelling, ...]] = {
    "requests_running": (Spelling("vllm:num_requests_running", "0.9-0.32"),),
    # Waiting for room in the batch or the cache. A deferred request waits for something that another replica would
    # not give it sooner (a grammar, a KV transfer), so it is no demand.
    "requests_waiting": (
        Spelling("vllm:num_requests_waiting_by_reason", "0.32", ("reason", "capacity")),
        Spelling("vllm:num_requests_waiting", "0.9-0.32"),
    ),
    # All that wait, for whatever reason: a drain may not leave these behind.
    "requests_queued": (Spelling("vllm:num_requests_waiting", "0.9-0.32"),),
    "prompt_tokens_total": (Spelling("vllm:prompt_tokens_total", "0.9-0.32"),),
    "generation_tokens_total": (Spelling("vllm:generation_tokens_total", "0.9-0.32"),),
    "prefix_query_tokens_total": (
        Spelling("vllm:prefix_cache_queries_total", "0.9.2-0.32"),
        Spelling("vllm:gpu_prefix_cache_queries_total", "0.9-0.10, hidden in 0.11"),
    ),
    "prefix_hit_tokens_total": (
        Spelling("vllm:prefix_cache_hits_total", "0.9.2-0.32"),
        Spelling("vllm:gpu_prefix_cache_hits_total", "0.9-0.10, hidden in 0.11"),
    ),
    "preemptions_total": (Spelling("vllm:num_preemptions_total", "0.9-0.32"),),
    "requests_finished_total": (Spelling("vllm:request_success_total", "0.9-0.32"),),
    # 1 awake, 0 asleep.
    "ranks_awake": (Spelling("vllm:engine_sleep_state", "0.13-0.32", ("sleep_state", "awake")),),
}

# Sums of seconds, of histograms. Inter-token latency counts output events: with speculation one event bears several
# tokens.
SECONDS: dict[str, tuple[Spelling, ...]] = {
    "ttft_sum_ms": (Spelling("vllm:time_to_first_token_seconds_sum", "0.9-0.32"),),
    "itl_sum_ms": (
        Spelling("vllm:inter_token_latency_seconds_sum", "0.11-0.32"),
        Spelling("vllm:time_per_output_token_seconds_sum", "0.9-0.11, hidden in 0.12"),
    ),
    "queue_time_sum_ms": (Spelling("vllm:request_queue_time_seconds_sum", "0.9-0.32"),),
}

# Cumulative counts of histograms; the label `le` bears the upper bound in seconds.
BUCKETS: dict[str, tuple[Spelling, ...]] = {
    "ttft_buckets": (Spelling("vllm:time_to_first_token_seconds_bucket", "0.9-0.32"),),
    "itl_buckets": (
        Spelling("vllm:inter_token_latency_seconds_bucket", "0.11-0.32"),
        Spelling("vllm:time_per_output_token_seconds_bucket", "0.9-0.11, hidden in 0.12"),
    ),
}

# Share of the KV blocks in use, 0 to 1, of one rank.
KV_USED: tuple[Spelling, ...] = (
    Spelling("vllm:kv_cache_usage_perc", "0.9.2-0.32"),
    Spelling("vllm:gpu_cache_usage_perc", "0.9-0.10, hidden in 0.11"),
)

# An info metric: its value is 1, what it says stands in LABEL_BLOCKS and LABEL_BLOCK_TOKENS. It bears no model.
KV_CAPACITY: tuple[Spelling, ...] = (Spelling("vllm:cache_config_info", "0.9-0.32"),)


def sample_names() -> frozenset[str]:
    """Return the name of every sample that any signal is read from."""
    tables = (*NUMBERS.values(), *SECONDS.values(), *BUCKETS.values(), KV_USED, KV_CAPACITY)
    return frozenset(spelling.name for spellings in tables for spelling in spellings)
