"""The engine of an InferenceService: which one, and the settings that its capacity depends on."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from forebay.api.base import ApiModel, Milliseconds
from forebay.api.rules import Rule, ruled

Argument = Annotated[str, Field(min_length=1, max_length=1024)]

# What Forebay passes to the engine itself; a second value would make the judgement wrong, or the replica unreachable.
OWN_ARGUMENTS = (
    "--host", "--port", "--model", "--served-model-name", "--dtype", "--kv-cache-dtype", "--max-model-len",
    "--max-num-seqs", "--max-num-batched-tokens", "--gpu-memory-utilization", "--enable-prefix-caching",
    "--no-enable-prefix-caching", "--tensor-parallel-size", "-tp", "--api-key", "--root-path", "--uds",
)  # fmt: skip


class EngineType(StrEnum):
    """Which program answers."""

    VLLM = "VLLM"
    EMULATED = "Emulated"


class DType(StrEnum):
    """Number format of the weights' arithmetic."""

    AUTO = "Auto"
    BFLOAT16 = "BFloat16"
    FLOAT16 = "Float16"
    FLOAT32 = "Float32"


class KVCacheDType(StrEnum):
    """Number format of the KV cache."""

    AUTO = "Auto"
    FP8 = "FP8"


class Switch(StrEnum):
    """On or off."""

    ENABLED = "Enabled"
    DISABLED = "Disabled"


class EmulatedSettings(ApiModel):
    """How the emulated engine behaves; its step times are the profile's of the model on the accelerator."""

    cold_start_seconds: Annotated[int, Field(ge=0, le=3600, strict=True)] = 90
    """Seconds that the engine takes to load before it answers, as a real one does."""
    wake_milliseconds: Milliseconds = 1000
    """Milliseconds that the engine takes to wake from sleep."""
    model_error_permille: Annotated[int, Field(ge=0, le=1000, strict=True)] = 250
    """How wrong the profile is: sigma, in thousandths, of the lognormal factor between the profile's step times and
    those of each replica. 0 makes the world as the operator believes it to be, which no real one is."""
    step_noise_permille: Annotated[int, Field(ge=0, le=1000, strict=True)] = 50
    """Noise of each single step, in thousandths of its time."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1, strict=True)] = 0
    """Seed of the draws; the same seed and pod name draw the same replica."""


@ruled(
    Rule(
        "!has(self.emulated) || self.type == 'Emulated'",
        "emulated settings belong to type: Emulated: remove them, or write engine.type: Emulated",
        holds=lambda self: self.emulated is None or self.type is EngineType.EMULATED,
        field=".emulated",
    ),
    Rule(
        "!has(self.extraArgs) || self.extraArgs.all(a, !(a.split('=')[0] in ["
        + ", ".join(f"'{name}'" for name in OWN_ARGUMENTS)
        + "]))",
        "Forebay sets host, port, model, names, dtypes, lengths, batch sizes, memory share, prefix caching and tensor "
        "parallelism itself: use the fields of spec.engine, spec.model and spec.parallelism",
        holds=lambda self: not any(argument.split("=")[0] in OWN_ARGUMENTS for argument in self.extra_args),
        field=".extraArgs",
    ),
)
class Engine(ApiModel):
    """Which inference engine runs, and the settings that its capacity depends on."""

    type: EngineType = EngineType.VLLM
    """VLLM runs vLLM's OpenAI server. Emulated answers the same API with made-up text at the measured speed of the
    model on the accelerator, without needing one: for trials, demonstrations and tests. It cannot be changed
    later."""
    image: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Image of the replica. It must contain forebay-replica beside the engine; see replica_image/Dockerfile. Default:
    the image that the chart was installed with."""
    dtype: DType = DType.AUTO
    """Number format of weights and activations. Auto takes what the model's own configuration says."""
    kv_cache_dtype: KVCacheDType = KVCacheDType.AUTO
    """Number format of the KV cache. Auto: as dtype. FP8 halves the bytes per token, so twice as many sequences fit."""
    max_model_len: Annotated[int, Field(ge=16, le=10_000_000, strict=True)] = 8192
    """Most tokens of one request, prompt and output together."""
    max_num_seqs: Annotated[int, Field(ge=1, le=8192, strict=True)] = 256
    """Most sequences that run at once in one replica. More gives throughput, and a larger gap between tokens."""
    max_num_batched_tokens: Annotated[int, Field(ge=1, le=1_048_576, strict=True)] = 2048
    """Token budget of one engine step (chunked prefill). Smaller keeps the gap between tokens short while a long
    prompt is computed; larger computes prompts faster."""
    gpu_memory_utilization_permille: Annotated[int, Field(ge=50, le=1000, strict=True)] = 900
    """Share of each GPU's memory, in thousandths, that the engine may use for weights and KV cache. 900 is 90 %."""
    prefix_caching: Switch = Switch.ENABLED
    """Whether prompts that begin alike share the computed prefix."""
    extra_args: Annotated[tuple[Argument, ...], Field(max_length=64)] = ()
    """Further arguments of the engine, one list entry each, for example "--enforce-eager". What Forebay sets itself,
    such as --port or --max-model-len, is refused."""
    start_deadline_seconds: Annotated[int, Field(ge=10, le=86_400, strict=True)] = 1200
    """A replica that does not answer within this many seconds of its start has failed and is replaced."""
    emulated: EmulatedSettings | None = None
    """How the emulated engine behaves; only with type: Emulated."""

    @property
    def emulation(self) -> EmulatedSettings:
        """Return how the emulated engine behaves, defaults included."""
        return self.emulated or EmulatedSettings()
