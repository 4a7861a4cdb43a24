"""What is assumed of a (model, GPU, tensor parallel degree, types) before its engine runs: step times and KV capacity.

Tables of `data/` become a `Prior`. Whatever the tables do not know is None: a model by another name, a GPU by another
name, "CPU". Measured fits come first, then a roofline from the GPU's data sheet and the model's size.
"""

from __future__ import annotations

import csv
import dataclasses
import re
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from forebay.engine_model.kv_budget import KvShape, kv_bytes_left, kv_bytes_per_token, kv_tokens, weight_bytes_per_gpu
from forebay.engine_model.roofline import roofline
from forebay.engine_model.step_time import FS_PER_PS, PS_PER_MS, StepTimes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ENGINE_OVERHEAD_PS = 700_000_000  # scheduler, sampling and Python, which neither kernels nor roofline contain
RESERVE_BYTES = 3_584 * 2**20  # activations, captured graphs, the CUDA context: as the fits assume
_BITS_16, _BITS_8, _BITS_4 = 16, 8, 4
_LAYERS_THAT_KEEP_A_WINDOW = "gqa+sliding"
# Words of a checkpoint's name that change neither its shape nor its size.
_SILENT_WORDS = frozenset(
    {"meta", "nvidia", "instruct", "chat", "it", "base", "hf", "bf16", "fp16", "thinking", "dynamic", "kv", "quantized"}
)
_RELEASE = re.compile(r"\d{4}")  # of a year and month, as in Qwen3-30B-A3B-Instruct-2507
_WEIGHT_WORDS = {
    "fp8": _BITS_8,
    "w8a8": _BITS_8,
    "w8a16": _BITS_8,
    "awq": _BITS_4,
    "gptq": _BITS_4,
    "int4": _BITS_4,
    "w4a16": _BITS_4,
}  # fmt: skip
_DTYPE_BITS = {"auto": None, "bfloat16": _BITS_16, "float16": _BITS_16, "half": _BITS_16, "fp8": _BITS_8}
_KV_VALUE_BYTES = {"auto": 2, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
_FIT_BITS = {"bfloat16": _BITS_16, "fp8": _BITS_8}


class PriorSource(StrEnum):
    """Where step times come from."""

    MEASURED = "measured"
    ROOFLINE = "roofline"


@dataclass(frozen=True, slots=True)
class Model:
    """One model of the tables."""

    name: str
    shape: KvShape
    layers: int
    parameters: int
    active_parameters: int
    weight_bits: int  # as published, or as the checkpoint's own name says


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of the tables."""

    name: str
    memory_bytes: int
    bytes_per_s: int
    flops_per_s: int
    fp8_flops_per_s: int | None


@dataclass(frozen=True, slots=True)
class Prior:
    """What is assumed of one replica's engine; bytes and tokens are those of one GPU of its group."""

    model: str
    gpu: str
    source: PriorSource
    times: StepTimes
    weight_bytes: int
    kv_bytes_per_token: int
    kv_bytes: int  # left for the cache; 0 when the weights do not fit
    kv_tokens_total: int


@dataclass(frozen=True, slots=True)
class Tables:
    """All rows, by the names under which they are looked up."""

    models: Mapping[str, Model]
    gpus: Mapping[str, Gpu]
    fits: Mapping[tuple[str, str, int, int], StepTimes]  # (GPU, model, tensor parallel, bits a weight); kernels alone


@cache
def load() -> Tables:
    """Read the tables that ship with this package."""
    names = ("model-kv", "model-names", "gpu-specs", "gpu-names", "derived-linear-fits")
    return build_tables(*map(_rows, names))


def build_tables(
    shapes: Iterable[Mapping[str, str]],
    model_names: Iterable[Mapping[str, str]],
    specs: Iterable[Mapping[str, str]],
    gpu_names: Iterable[Mapping[str, str]],
    fits: Iterable[Mapping[str, str]],
) -> Tables:
    """Make the tables of the rows of their five files, columns as strings."""
    shape_of = {row["model"]: row for row in shapes}
    models: dict[str, Model] = {}
    for row in model_names:
        model = _model(row, shape_of[row["model"]])
        models.update(dict.fromkeys(row["names"].split(), model))
    spec_of = {row["gpu"]: _gpu(row) for row in specs}
    gpus: dict[str, Gpu] = {}
    gpu_of_fit: dict[str, str] = {}
    for row in gpu_names:
        gpus.update(dict.fromkeys(row["names"].split(), spec_of[row["gpu"]]))
        if row["fits"]:
            gpu_of_fit[row["fits"]] = row["gpu"]
    times = {
        (gpu_of_fit[row["gpu"]], models[row["model"]].name, int(row["tp"]), _FIT_BITS[row["dtype"]]): _fit(row)
        for row in fits
    }
    return Tables(models, gpus, times)


def find_model(tables: Tables, uri: str) -> Model | None:
    """Recognise a model by the last part of its URI or name; None when no table knows it.

    Every word of the name must be accounted for: a distillation or a fine-tune of another shape is not its namesake.
    """
    words = re.split(r"[-_]", uri.rstrip("/").rpartition("/")[2].partition("@")[0].lower())
    telling = [word for word in words if not (word in _SILENT_WORDS or _RELEASE.fullmatch(word))]
    model = tables.models.get("-".join(word for word in telling if word not in _WEIGHT_WORDS))
    bits = next((_WEIGHT_WORDS[word] for word in telling if word in _WEIGHT_WORDS), None)
    return model if model is None or bits is None else dataclasses.replace(model, weight_bits=bits)


def find_gpu(tables: Tables, gpu_type: str) -> Gpu | None:
    """Recognise a GPU by a short name ("H100") or a node label's ("NVIDIA-H100-80GB-HBM3"); None when unknown."""
    words = [word for word in re.split(r"[-_ ]+", gpu_type.lower()) if word not in {"nvidia", "tesla"}]
    return tables.gpus.get("-".join(words))


def lookup(
    tables: Tables,
    *,
    model_uri: str,
    gpu_type: str,
    tensor_parallel: int = 1,
    dtype: str = "auto",
    kv_cache_dtype: str = "auto",
    gpu_memory_utilization_permille: int = 900,
) -> Prior | None:
    """Return what is assumed of an engine, or None where model, GPU or a type is not known.

    Parameters
    ----------
    tables
        From `load`.
    model_uri
        hf://, s3://, pvc:// or file:// URI, or a bare name.
    gpu_type
        As an accelerator's `type` says.
    tensor_parallel
        GPUs that share the model.
    dtype, kv_cache_dtype
        As the engine takes them; "auto" is what the checkpoint's name says, and 16 bits for the cache.
    gpu_memory_utilization_permille
        The share of the GPU's memory that the engine may use.
    """
    model, gpu = find_model(tables, model_uri), find_gpu(tables, gpu_type)
    value_bytes = _KV_VALUE_BYTES.get(kv_cache_dtype.lower())
    if model is None or gpu is None or value_bytes is None or dtype.lower() not in _DTYPE_BITS:
        return None
    # A quantised checkpoint stays quantised: dtype is then the arithmetic's, not the weights'.
    bits = min(model.weight_bits, _DTYPE_BITS[dtype.lower()] or model.weight_bits)
    weight_bytes = weight_bytes_per_gpu(model.parameters, bits, tensor_parallel)
    bytes_per_token = kv_bytes_per_token(model.shape, value_bytes, tensor_parallel)
    kv_bytes = kv_bytes_left(gpu.memory_bytes, gpu_memory_utilization_permille, weight_bytes, RESERVE_BYTES)
    measured = tables.fits.get((gpu.name, model.name, tensor_parallel, bits))
    if measured is not None:
        times = dataclasses.replace(measured, c2_ps=measured.c2_ps * value_bytes // 2)  # fits are for a 16-bit cache
    else:
        times = _roofline(
            model,
            gpu,
            bits,
            weight_bytes=weight_bytes,
            bytes_per_token=bytes_per_token,
            tensor_parallel=tensor_parallel,
        )
    return Prior(
        model=model.name,
        gpu=gpu.name,
        source=PriorSource.ROOFLINE if measured is None else PriorSource.MEASURED,
        times=dataclasses.replace(times, c0_ps=times.c0_ps + ENGINE_OVERHEAD_PS),
        weight_bytes=weight_bytes,
        kv_bytes_per_token=bytes_per_token,
        kv_bytes=kv_bytes,
        kv_tokens_total=kv_tokens(kv_bytes, bytes_per_token),
    )


def _roofline(
    model: Model, gpu: Gpu, bits: int, *, weight_bytes: int, bytes_per_token: int, tensor_parallel: int
) -> StepTimes:
    fp8_flops = gpu.fp8_flops_per_s if bits == _BITS_8 else None
    return roofline(
        weight_bytes=weight_bytes,
        active_parameters=model.active_parameters,
        layers=model.layers,
        kv_bytes_per_token=bytes_per_token,
        tensor_parallel=tensor_parallel,
        flops_per_s=fp8_flops or gpu.flops_per_s,
        arithmetic_bits=_BITS_16 if fp8_flops is None else _BITS_8,
        bytes_per_s=gpu.bytes_per_s,
    )


def _rows(name: str) -> list[dict[str, str]]:
    text = (files("forebay.resolve") / "data" / f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _model(names: Mapping[str, str], row: Mapping[str, str]) -> Model:
    full, other = int(row["full_attention_layers"]), int(row["other_layers"])
    windowed = row["kind"] == _LAYERS_THAT_KEEP_A_WINDOW
    return Model(
        name=row["model"],
        shape=KvShape(
            growing_layers=full,
            window_layers=other if windowed else 0,
            window_tokens=int(row["window_tokens"]) if windowed else 0,
            kv_heads=int(row["kv_heads_or_latent"]),
            head_dim=int(row["head_dim"]),
            latent=row["kind"] == "mla",
        ),
        layers=full + other,
        parameters=int(names["parameters_millions"]) * 10**6,
        active_parameters=int(names["active_parameters_millions"]) * 10**6,
        weight_bits=int(names["weight_bits_as_published"]),
    )


def _gpu(row: Mapping[str, str]) -> Gpu:
    fp8 = row["fp8_tflops_dense"]
    return Gpu(
        name=row["gpu"],
        memory_bytes=_scaled(row["mem_gib"], 2**30),
        bytes_per_s=_scaled(row["hbm_gb_s"], 10**9),
        flops_per_s=_scaled(row["bf16_tflops_dense"], 10**12),
        fp8_flops_per_s=_scaled(fp8, 10**12) if fp8 else None,
    )


def _fit(row: Mapping[str, str]) -> StepTimes:
    return StepTimes(
        c0_ps=_scaled(row["dec_c0_ms"], PS_PER_MS),
        c1_ps=_scaled(row["dec_c1_ms_per_seq"], PS_PER_MS),
        c2_ps=_scaled(row["dec_c2_ms_per_1k_ctx_tokens"], PS_PER_MS // 1000),
        p1_ps=_scaled(row["pre_c1_ms_per_token"], PS_PER_MS),
        # Two of the fits bound by PCIe bend the wrong way: noise, and a step must not get shorter with its prompt.
        p2_fs=max(0, _scaled(row["pre_c2_ms_per_Mtok2"], PS_PER_MS * FS_PER_PS // 10**6)),
    )


def _scaled(text: str, factor: int) -> int:
    """Convert a decimal number to whole units, once and exactly."""
    return round(Decimal(text) * factor)
