"""What is assumed of a service's engine before it has run, and whether its model can fit the accelerator at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.api.engine import EngineType
from forebay.core.reasons import Reason
from forebay.resolve.problem import Problem
from forebay.resolve.profiles import RESERVE_BYTES, Prior, find_gpu, find_model, load, lookup

if TYPE_CHECKING:
    from forebay.api.inference_service import InferenceServiceSpec

MIB = 2**20
GB = 10**9
DEGREES = (1, 2, 4, 8, 16)  # of tensor parallelism: the ways in which attention heads divide


def prior_of(spec: InferenceServiceSpec) -> tuple[Prior | None, Problem | None]:
    """Look a service up in the profiles.

    Returns
    -------
    tuple
        What is assumed, None where nothing is known; and why the service cannot run, None where nothing says so. A
        real engine of unknown speed can run: Forebay learns from it. An emulated one has nothing to imitate.
    """
    prior = _lookup(spec, spec.parallelism.tensor)
    if prior is None:
        unknown = spec.engine.type is EngineType.EMULATED
        return None, Problem(Reason.INVALID_SPEC, _no_profile(spec)) if unknown else None
    if prior.kv_tokens_total >= spec.engine.max_model_len:
        return prior, None
    return prior, _misfit(spec, prior)


def _lookup(spec: InferenceServiceSpec, tensor: int) -> Prior | None:
    return lookup(
        load(),
        model_uri=spec.model.uri,
        gpu_type=spec.accelerators[0].type,
        tensor_parallel=tensor,
        dtype=spec.engine.dtype.lower(),
        kv_cache_dtype=spec.engine.kv_cache_dtype.lower(),
        gpu_memory_utilization_permille=spec.engine.gpu_memory_utilization_permille,
    )


def _no_profile(spec: InferenceServiceSpec) -> str:
    """Say which of model, accelerator and dtype an emulated engine cannot imitate."""
    if find_model(load(), spec.model.uri) is None:
        return (
            f"no profile of the model {spec.model.uri} for an emulated engine: name one such as Llama-3.1-8B-Instruct"
        )
    if find_gpu(load(), spec.accelerators[0].type) is None:
        return (
            f"no profile of the accelerator {spec.accelerators[0].type} for an emulated engine: name one such as L40S"
        )
    return f"no profile for dtype {spec.engine.dtype} and kvCacheDtype {spec.engine.kv_cache_dtype}: write Auto"


def _misfit(spec: InferenceServiceSpec, prior: Prior) -> Problem:
    gpu = find_gpu(load(), spec.accelerators[0].type)
    memory = gpu.memory_bytes if gpu else 0
    available = memory * spec.engine.gpu_memory_utilization_permille // 1000
    request = spec.engine.max_model_len * prior.kv_bytes_per_token
    needed = prior.weight_bytes + RESERVE_BYTES + request
    detail = (
        f"{prior.model} on {_cards(spec.parallelism.tensor)} of {prior.gpu} needs {needed / GB:.1f} GB on each "
        f"(weights {prior.weight_bytes / GB:.1f}, runtime {RESERVE_BYTES / GB:.1f}, a request of "
        f"{spec.engine.max_model_len} tokens {request / GB:.1f}) and has {available / GB:.1f} GB; {_way_out(spec)}"
    )
    inputs = (("bytes_needed_mib", -(-needed // MIB)), ("bytes_available_mib", available // MIB))
    return Problem(Reason.MODEL_DOES_NOT_FIT, detail, inputs)


def _way_out(spec: InferenceServiceSpec) -> str:
    """Name the smallest group of cards that holds the model, or say that none does."""
    for tensor in DEGREES:
        larger = _lookup(spec, tensor)
        if tensor > spec.parallelism.tensor and larger and larger.kv_tokens_total >= spec.engine.max_model_len:
            return f"it fits on {_cards(tensor)} (parallelism.tensor {tensor})"
    return f"it does not fit on {DEGREES[-1]} cards either"


def _cards(number: int) -> str:
    return "1 card" if number == 1 else f"{number} cards"
