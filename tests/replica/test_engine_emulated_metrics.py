"""The emulated engine's /metrics page against the page that vLLM 0.32.0 really served."""

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from forebay.engine_model.engine import Engine, EngineSettings
from forebay.engine_model.step_time import StepTimes
from forebay.wire import engine_metrics
from forebay.wire.replica_config import ReplicaConfig
from forebay_replica.engine_emulated.metrics import EngineMetrics

RECORDED = Path(__file__).resolve().parents[1] / "data" / "vllm-0.32-metrics.txt"
CONFIG = ReplicaConfig("Emulated", "hf://meta-llama/Llama-3.1-8B", ("m",), max_model_len=2_048)  # as recorded
# This one describes the cache by some forty labels, most of them of features that are not emulated.
INFO = "vllm:cache_config_info"

Shape = tuple[str, frozenset[str], frozenset[str]]


def shapes(page: str) -> dict[str, Shape]:
    """Each metric's type, the labels that all its samples have, and its buckets."""
    found: dict[str, Shape] = {}
    for family in text_string_to_metric_families(page):
        labels = [frozenset(sample.labels) - {"le"} for sample in family.samples]
        bounds = frozenset(sample.labels["le"] for sample in family.samples if "le" in sample.labels)
        found[family.name] = (family.type, frozenset.union(*labels), bounds)
    return found


def made() -> EngineMetrics:
    return EngineMetrics(CONFIG, 128, running=lambda: 7, waiting=lambda: 17, kv_usage=lambda: 0.5, awake=lambda: True)


def values(metrics: EngineMetrics) -> dict[str, float]:
    families = text_string_to_metric_families(metrics.page().decode())
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_every_metric_is_one_of_vllms_with_its_type_labels_and_buckets() -> None:
    ours, recorded = shapes(made().page().decode()), shapes(RECORDED.read_text(encoding="utf-8"))
    assert ours.keys() <= recorded.keys()
    assert {name: shape for name, shape in ours.items() if name != INFO} == {
        name: recorded[name] for name in ours.keys() - {INFO}
    }
    assert ours[INFO][0] == recorded[INFO][0]
    assert ours[INFO][1] <= recorded[INFO][1]


def test_every_sample_that_a_supervisor_reads_is_there() -> None:
    recorded = {sample_name(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()}
    ours = {sample_name(line) for line in made().page().decode().splitlines()}
    assert engine_metrics.sample_names() & recorded <= ours


def sample_name(line: str) -> str:
    return line.partition("{")[0]


def test_a_requests_life_is_counted_once() -> None:
    metrics = made()
    engine = Engine(EngineSettings(StepTimes(1, 0, 0, 0, 0), 128, 1_024, 4, 64))
    request = engine.submit("a", 100, 3, [], 1_000_000_000_000)
    for second in (2, 3, 4, 6):  # a chunk of 64 tokens, the rest of the prompt, two more tokens
        engine.begin_step(2_000_000_000_000)
        metrics.scheduled(engine)
        metrics.stepped(engine.end_step(second * 1_000_000_000_000))
    metrics.finished(request, "length", 3)
    expected = {
        "vllm:prompt_tokens_total": 100,
        "vllm:generation_tokens_total": 3,
        "vllm:prefix_cache_queries_total": 100,
        "vllm:prefix_cache_hits_total": 0,
        "vllm:iteration_tokens_total_count": 4,
        "vllm:iteration_tokens_total_sum": 102,
        "vllm:time_to_first_token_seconds_sum": 2,
        "vllm:inter_token_latency_seconds_count": 2,
        "vllm:inter_token_latency_seconds_sum": 3,
        "vllm:request_time_per_output_token_seconds_sum": 1.5,
        "vllm:e2e_request_latency_seconds_sum": 5,
        "vllm:request_queue_time_seconds_sum": 1,
        "vllm:request_inference_time_seconds_sum": 4,
        "vllm:request_prefill_time_seconds_sum": 1,
        "vllm:request_decode_time_seconds_sum": 3,
        "vllm:request_prompt_tokens_sum": 100,
        "vllm:request_generation_tokens_sum": 3,
        "vllm:request_prefill_kv_computed_tokens_sum": 100,
    }
    counted = values(metrics)
    assert {name: counted[name] for name in expected} == expected


def test_a_request_of_one_token_has_no_gap_and_an_aborted_one_no_times() -> None:
    metrics = made()
    engine = Engine(EngineSettings(StepTimes(1, 0, 0, 0, 0), 128, 1_024, 4, 64))
    one, gone = engine.submit("one", 10, 1, [], 0), engine.submit("gone", 10, 1, [], 0)
    engine.begin_step(0)
    engine.abort("gone")
    metrics.stepped(engine.end_step(1))
    metrics.finished(one, "length", 1)
    metrics.finished(gone, "abort", 1)
    counted = values(metrics)
    assert counted["vllm:e2e_request_latency_seconds_count"] == 1
    assert counted["vllm:request_time_per_output_token_seconds_count"] == 0
    assert counted["vllm:request_prompt_tokens_count"] == 2
