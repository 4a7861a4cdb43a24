"""What is assumed of an engine: recognised names, measured fits, rooflines, and None where nothing is known."""

import csv
from dataclasses import astuple
from pathlib import Path

import pytest

from forebay.engine_model.kv_budget import kv_bytes_per_request, kv_bytes_per_token
from forebay.engine_model.step_time import StepTimes, step_time_ps
from forebay.resolve import profiles
from forebay.resolve.profiles import ENGINE_OVERHEAD_PS, PriorSource, Tables, find_gpu, find_model, lookup

TABLES = profiles.load()
LLAMA = "hf://meta-llama/Llama-3.1-8B-Instruct"

MODELS = {
    "hf://meta-llama/Llama-3.1-8B-Instruct": "Llama-3.1-8B",
    "hf://meta-llama/Meta-Llama-3.1-8B": "Llama-3.1-8B",
    "meta-llama/Llama-3.3-70B-Instruct": "Llama-3.1-70B / Llama-3.3-70B",
    "pvc://models/neuralmagic/Meta-Llama-3.1-70B-Instruct-FP8/": "Llama-3.1-70B / Llama-3.3-70B",
    "hf://deepseek-ai/DeepSeek-R1-0528": "DeepSeek-V3 / R1 / V3.1",
    "hf://deepseek-ai/DeepSeek-R1-Distill-Llama-70B": "Llama-3.1-70B / Llama-3.3-70B",
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "Qwen3-30B-A3B",
    "Qwen/Qwen2.5-Coder-7B-Instruct": "Qwen2.5-7B",
    "s3://bucket/Mistral-7B-Instruct-v0.3": "Mistral-7B-v0.3",
    "mistralai/Mistral-Nemo-Instruct-2407": "Mistral-Nemo-12B",
    "google/gemma-3-27b-it": "Gemma-3-27B",
    "hf://openai/gpt-oss-20b@main": "gpt-oss-20b",
    # The 2,047-token window of this one is in no table, and this fine-tune may have any shape.
    "microsoft/Phi-3-mini-4k-instruct": None,
    "someone/Llama-3.1-8B-Instruct-Pruned": None,
    "file:///models/tiny-random-llama": None,
    "": None,
}


@pytest.mark.parametrize(("uri", "name"), MODELS.items(), ids=MODELS)
def test_a_model_is_recognised_by_every_word_of_its_name(uri: str, name: str | None) -> None:
    model = find_model(TABLES, uri)
    assert (model.name if model else None) == name


GPUS = {
    "L40S": "L40S",
    "NVIDIA-L40S": "L40S",
    "H100": "H100-SXM",
    "H100-SXM": "H100-SXM",
    "NVIDIA-H100-80GB-HBM3": "H100-SXM",
    "NVIDIA H100 PCIe": "H100-PCIe",
    "NVIDIA-A100-SXM4-80GB": "A100-SXM-80G",
    "NVIDIA-A100-80GB-PCIe": "A100-PCIe-80G",
    "h200": "H200-SXM",
    "B200": "B200-SXM",
    "NVIDIA-A100-SXM4-40GB": None,
    "CPU": None,
    "": None,
}


@pytest.mark.parametrize(("gpu_type", "name"), GPUS.items(), ids=GPUS)
def test_a_gpu_is_recognised_by_short_name_and_by_node_label(gpu_type: str, name: str | None) -> None:
    gpu = find_gpu(TABLES, gpu_type)
    assert (gpu.name if gpu else None) == name


UNKNOWN = {
    "no such model": {"model_uri": "file:///models/mine", "gpu_type": "L40S"},
    "no GPU": {"model_uri": LLAMA, "gpu_type": "CPU"},
    "a type of weights without a table": {"model_uri": LLAMA, "gpu_type": "L40S", "dtype": "float32"},
    "a type of cache without a table": {"model_uri": LLAMA, "gpu_type": "L40S", "kv_cache_dtype": "int4"},
}


@pytest.mark.parametrize("what", UNKNOWN.values(), ids=UNKNOWN)
def test_what_no_table_knows_is_none(what: dict[str, str]) -> None:
    assert lookup(TABLES, **what) is None  # type: ignore[arg-type]


def test_a_measured_fit_with_the_engines_overhead() -> None:
    prior = lookup(TABLES, model_uri=LLAMA, gpu_type="L40S")
    assert prior is not None
    assert prior.source is PriorSource.MEASURED
    assert prior.times == StepTimes(21_775_000_000 + ENGINE_OVERHEAD_PS, 32_536_000, 208_430, 53_206_000, 3_154_300)
    assert (prior.weight_bytes, prior.kv_bytes_per_token) == (16_060_000_000, 131_072)
    assert prior.kv_tokens_total == 180_487


def test_the_capacity_of_the_fits_is_reproduced_on_an_h100() -> None:
    prior = lookup(TABLES, model_uri="meta-llama/Llama-3.1-70B", gpu_type="H100", tensor_parallel=4, dtype="BFloat16")
    assert prior is not None
    assert abs(prior.kv_tokens_total - 467_225) < 50


def test_an_fp8_cache_halves_its_bytes_and_the_time_to_read_it() -> None:
    plain = lookup(TABLES, model_uri=LLAMA, gpu_type="H100")
    halved = lookup(TABLES, model_uri=LLAMA, gpu_type="H100", kv_cache_dtype="FP8")
    assert plain is not None
    assert halved is not None
    assert 2 * halved.kv_bytes_per_token == plain.kv_bytes_per_token
    assert plain.times.c2_ps - 2 * halved.times.c2_ps in (0, 1)
    assert halved.kv_tokens_total in (2 * plain.kv_tokens_total, 2 * plain.kv_tokens_total + 1)


def test_a_quantised_checkpoint_has_smaller_weights_than_its_dtype_says() -> None:
    name = "neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8"
    by_name = lookup(TABLES, model_uri=name, gpu_type="H100", dtype="bfloat16")
    by_dtype = lookup(TABLES, model_uri=LLAMA, gpu_type="H100", dtype="fp8")
    assert by_name == by_dtype
    assert by_name is not None
    assert by_name.weight_bytes == 8_030_000_000
    assert by_name.source is PriorSource.MEASURED


def test_int4_weights_are_computed_in_16_bits_by_the_roofline() -> None:
    prior = lookup(TABLES, model_uri="Qwen/Qwen2.5-32B-Instruct-AWQ", gpu_type="L40S")
    assert prior is not None
    assert (prior.source, prior.weight_bytes) == (PriorSource.ROOFLINE, 16_382_000_000)


def test_a_model_that_does_not_fit_has_no_room_for_kv() -> None:
    prior = lookup(TABLES, model_uri="meta-llama/Llama-3.1-70B-Instruct", gpu_type="H100")
    assert prior is not None
    assert (prior.kv_bytes, prior.kv_tokens_total) == (0, 0)


def test_less_of_the_memory_means_fewer_tokens() -> None:
    prior = lookup(TABLES, model_uri=LLAMA, gpu_type="H100", gpu_memory_utilization_permille=500)
    assert prior is not None
    assert prior.kv_tokens_total == (80 * 2**29 - 16_060_000_000 - 3_584 * 2**20) // 131_072


def rows_of(name: str) -> list[dict[str, str]]:
    with (Path(profiles.__file__).parent / "data" / f"{name}.csv").open(encoding="utf-8") as table:
        return list(csv.DictReader(table))


def test_every_model_of_the_table_has_the_bytes_that_the_table_states() -> None:
    by_name = {model.name: model for model in TABLES.models.values()}
    assert by_name.keys() == {row["model"] for row in rows_of("model-kv")}
    for row in rows_of("model-kv"):
        shape = by_name[row["model"]].shape
        assert kv_bytes_per_token(shape, 2, 1) == int(row["bytes_per_token_full_bf16"])
        window = int(row["window_tokens"] or 0)
        at_window = kv_bytes_per_request(shape, 2, 1, window) - window * kv_bytes_per_token(shape, 2, 1)
        assert at_window == int(row["extra_bytes_per_seq_at_window"] or 0)


def without_fits() -> Tables:
    return Tables(TABLES.models, TABLES.gpus, {})


def test_the_roofline_meets_the_measured_fits() -> None:
    compared = 0
    for gpu, name, tp, bits in TABLES.fits:
        model = next(alias for alias, model in TABLES.models.items() if model.name == name)
        label = next(alias for alias, found in TABLES.gpus.items() if found.name == gpu)
        if gpu == "L40S" and tp > 1:
            continue  # tensor parallelism over PCIe: no data sheet tells it
        dtype = "fp8" if bits == 8 else "bfloat16"
        measured = lookup(TABLES, model_uri=model, gpu_type=label, tensor_parallel=tp, dtype=dtype)
        estimated = lookup(without_fits(), model_uri=model, gpu_type=label, tensor_parallel=tp, dtype=dtype)
        assert measured is not None
        assert estimated is not None
        for work, limit in (((32, 32 * 1_000, 0, 0), 1.6), ((0, 0, 2_048, 2_048**2), 2.2)):
            ratio = step_time_ps(*astuple(estimated.times), *work) / step_time_ps(*astuple(measured.times), *work)
            assert 1 / limit < ratio < limit, (gpu, name, tp, bits, work, ratio)
            compared += 1
    assert compared > 100


def test_every_row_of_every_table_is_reachable() -> None:
    assert {gpu.name for gpu in TABLES.gpus.values()} == {row["gpu"] for row in rows_of("gpu-specs")}
    assert len(TABLES.fits) == len(rows_of("derived-linear-fits"))
