"""What the pages of known engine versions must say, and what must never be made of a broken one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.wire.signals import ITL_BOUNDS_MS, TTFT_BOUNDS_MS
from forebay_replica.metrics_page import EnginePage, MetricsPageError, read_page

DATA = Path(__file__).resolve().parents[1] / "data"
RECORDED = (DATA / "vllm-0.32-metrics.txt").read_bytes()

# The three transcribed pages bear the same invented numbers under the names of their version.
TTFT_COUNTS = (0, 0, 0, 2, 9, 20, 28, 30, 36, 38, 39, *[40] * 12)
ITL_COUNTS = (300, 890, 980, 995, 998, 999, *[1000] * 14)
TRANSCRIBED = {
    "model": "llama",
    "requests_running": 3,
    "requests_waiting": 2,
    "requests_queued": 2,
    "kv_blocks_total": 27_000,
    "kv_block_tokens": 16,
    "kv_used_permille": 250,
    "prompt_tokens_total": 20_480,
    "generation_tokens_total": 1040,
    "prefix_query_tokens_total": 20_480,
    "prefix_hit_tokens_total": 8192,
    "preemptions_total": 4,
    "requests_finished_total": 38,
    "ttft_sum_ms": 5250,
    "itl_sum_ms": 17_500,
    "queue_time_sum_ms": 750,
    "ttft_buckets": TTFT_COUNTS,
    "itl_buckets": ITL_COUNTS,
}
PAGES = {
    "0.9 has the old names and says nothing of sleep": ("vllm-0.9", None),
    "0.11 has inter-token latency twice and it is counted once": ("vllm-0.11", None),
    "0.13 says that it sleeps": ("vllm-0.13", False),
}


@pytest.mark.parametrize(("version", "awake"), PAGES.values(), ids=PAGES)
def test_a_transcribed_page_bears_every_signal(version: str, awake: bool | None) -> None:
    page = (DATA / f"{version}-metrics.transcribed-from-source.txt").read_bytes()
    assert read_page(page) == EnginePage(**TRANSCRIBED, awake=awake)


def test_the_recorded_page_of_0_32_bears_every_signal() -> None:
    assert read_page(RECORDED) == EnginePage(
        model="m",
        requests_running=7,
        requests_waiting=17,
        requests_queued=17,
        kv_blocks_total=128,
        kv_block_tokens=32,
        kv_used_permille=961,
        prompt_tokens_total=8840,
        generation_tokens_total=3450,
        prefix_query_tokens_total=8840,
        prefix_hit_tokens_total=5120,
        preemptions_total=0,
        requests_finished_total=1,
        ttft_sum_ms=1450,
        itl_sum_ms=10_724,
        queue_time_sum_ms=0,
        ttft_buckets=(0, 0, 0, 1, 1, 6, 7, 10, *[17] * 15),
        itl_buckets=(3399, *[3433] * 19),
        awake=True,
    )


def test_what_is_deferred_is_no_demand_but_a_drain_waits_for_it() -> None:
    page = read_page(
        b'vllm:num_requests_running{engine="0"} 0\n'
        b'vllm:num_requests_waiting{engine="0"} 3\n'
        b'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 0\n'
        b'vllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 3\n'
    )
    assert (page.requests_waiting, page.requests_queued, page.idle) == (0, 3, False)


def test_ranks_add_up_and_kv_use_is_weighted_by_their_blocks() -> None:
    page = read_page(
        b'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} 4\n'
        b'vllm:kv_cache_usage_perc{engine="0"} 0.9\nvllm:kv_cache_usage_perc{engine="1"} 0.1\n'
        b'vllm:cache_config_info{engine="0",num_gpu_blocks="300",block_size="16"} 1\n'
        b'vllm:cache_config_info{engine="1",num_gpu_blocks="100",block_size="16"} 1\n'
        b'vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1"} 1\n'
        b'vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} 2\n'
        b'vllm:time_to_first_token_seconds_bucket{engine="1",le="0.1"} 4\n'
        b'vllm:time_to_first_token_seconds_bucket{engine="1",le="+Inf"} 8\n'
    )
    assert (page.requests_running, page.kv_blocks_total, page.kv_block_tokens) == (7, 400, 16)
    assert page.kv_used_permille == 700  # (0.9 x 300 + 0.1 x 100) / 400
    assert page.ttft_buckets is not None
    assert (page.ttft_buckets[TTFT_BOUNDS_MS.index(100)], page.ttft_buckets[-1]) == (5, 10)


def test_an_engine_asleep_in_one_rank_is_not_awake() -> None:
    page = read_page(
        b'vllm:engine_sleep_state{engine="0",sleep_state="awake"} 1\n'
        b'vllm:engine_sleep_state{engine="1",sleep_state="awake"} 0\n'
    )
    assert page.awake is False


def test_other_bounds_than_ours_count_at_the_largest_bound_below() -> None:
    page = read_page(
        b'vllm:inter_token_latency_seconds_bucket{le="0.02"} 5\n'
        b'vllm:inter_token_latency_seconds_bucket{le="0.06"} 8\n'
        b'vllm:inter_token_latency_seconds_bucket{le="+Inf"} 9\n'
    )
    assert page.itl_buckets is not None
    at = dict(zip(ITL_BOUNDS_MS, page.itl_buckets, strict=False))
    assert (at[10], at[25], at[50], at[75], at[80000], page.itl_buckets[-1]) == (0, 5, 5, 8, 8, 9)


RUNNING = b'vllm:num_requests_running{engine="0",model_name="m"} 1\n'
UNKNOWN = {
    "an absent metric": (b"", "requests_queued"),
    "a value that is not a number": (b"vllm:num_requests_waiting NaN\n", "requests_queued"),
    "an infinite value": (b"vllm:num_requests_waiting +Inf\n", "requests_queued"),
    "a negative count": (b"vllm:num_requests_waiting -1\n", "requests_queued"),
    "one rank of two not a number": (
        b'vllm:num_requests_waiting{engine="0"} 1\nvllm:num_requests_waiting{engine="1"} NaN\n',
        "requests_queued",
    ),
    "a KV use above 1": (b"vllm:kv_cache_usage_perc 1.5\n", "kv_used_permille"),
    "blocks that are not known yet": (b'vllm:cache_config_info{num_gpu_blocks="None"} 1\n', "kv_blocks_total"),
    "blocks without a rank where there are two ranks": (
        b'vllm:cache_config_info{num_gpu_blocks="7"} 1\n%b\n%b\n'
        % (b'vllm:kv_cache_usage_perc{engine="0"} 0', b'vllm:kv_cache_usage_perc{engine="1"} 0'),
        "kv_blocks_total",
    ),
    "ranks with different block sizes": (
        b"%b\n%b\n"
        % (
            b'vllm:cache_config_info{engine="0",num_gpu_blocks="7",block_size="16"} 1',
            b'vllm:cache_config_info{engine="1",num_gpu_blocks="7",block_size="32"} 1',
        ),
        "kv_block_tokens",
    ),
    "a histogram without its last bucket": (
        b'vllm:time_to_first_token_seconds_bucket{le="0.1"} 1\n',
        "ttft_buckets",
    ),
    "a histogram whose counts fall": (
        b'vllm:time_to_first_token_seconds_bucket{le="0.1"} 4\nvllm:time_to_first_token_seconds_bucket{le="+Inf"} 3\n',
        "ttft_buckets",
    ),
    "a bucket without a bound": (b"vllm:time_to_first_token_seconds_bucket 4\n", "ttft_buckets"),
}


@pytest.mark.parametrize(("lines", "signal"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_not_known_is_none_and_never_zero(lines: bytes, signal: str) -> None:
    assert getattr(read_page(RUNNING + lines), signal) is None


def test_a_page_that_lacks_a_number_cannot_call_its_engine_idle() -> None:
    assert read_page(b"vllm:num_requests_running 0\n").idle is None
    assert read_page(b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n").idle is True


BROKEN = {
    "an empty page": b"",
    "an error page": b"<html><body>502 Bad Gateway</body></html>",
    "another program's metrics": b"process_open_fds 56\n",
    "bytes that are no text": RUNNING + b"\xff\xfe",
    "a value that is a word": b"vllm:num_requests_running many\n",
    "labels that do not end": b'vllm:num_requests_running{engine="0} 1} 1\n',
    "two models at once": RUNNING + b'vllm:num_requests_waiting{engine="0",model_name="n"} 1\n',
}


@pytest.mark.parametrize("page", BROKEN.values(), ids=BROKEN)
def test_a_broken_page_is_one_named_error(page: bytes) -> None:
    with pytest.raises(MetricsPageError):
        read_page(page)


def parsed_or_refused(page: bytes) -> None:
    try:
        read_page(page)
    except MetricsPageError:
        return


@given(
    cut=st.integers(0, len(RECORDED)),
    at=st.integers(0, len(RECORDED)),
    noise=st.binary(max_size=40) | st.text('{}",= \n+-.eNaIf0123456789', max_size=40).map(str.encode),
)
def test_fuzz_a_damaged_page_is_parsed_or_refused(cut: int, at: int, noise: bytes) -> None:
    parsed_or_refused(RECORDED[:at] + noise + RECORDED[max(at, cut) :])


NAMES = ["vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:cache_config_info"]
NAMES += ["vllm:time_to_first_token_seconds_bucket", "vllm:engine_sleep_state"]


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.text(max_size=30), st.text(max_size=12)), max_size=6))
def test_fuzz_damaged_lines_are_parsed_or_refused(lines: list[tuple[str, str, str]]) -> None:
    page = "".join(f"{name}{{{labels}}} {value}\n" for name, labels, value in lines)
    parsed_or_refused(page.encode("utf-8", "replace"))
