"""What the KV cache costs and what a GPU has left for it: whole bytes and tokens, nothing measured.

A running engine's own report (`vllm:cache_config_info`) is the truth; these formulas serve before the first start, for
`plan` and for the capacity that a decision assumes.
"""

from __future__ import annotations

from dataclasses import dataclass

PERMILLE = 1000


@dataclass(frozen=True, slots=True)
class KvShape:
    """The parts of a model's architecture that its KV cache depends on."""

    growing_layers: int  # layers that keep every token
    window_layers: int  # layers that keep at most `window_tokens` tokens
    window_tokens: int
    kv_heads: int
    head_dim: int  # stated by the model: hidden size / heads is wrong for Qwen3 and Mistral-Nemo
    # Multi-head latent attention: one vector of `head_dim` a layer, no separate V, the same on every GPU of a group.
    latent: bool = False


def heads_per_gpu(kv_heads: int, tensor_parallel: int) -> int:
    """Return the KV heads on each GPU: beyond one head a GPU they are replicated, not split."""
    return max(1, -(-kv_heads // tensor_parallel))


def layer_bytes_per_token(shape: KvShape, value_bytes: int, tensor_parallel: int) -> int:
    """Return the bytes that one layer keeps of one token on one GPU."""
    if shape.latent:
        return shape.head_dim * value_bytes
    return 2 * heads_per_gpu(shape.kv_heads, tensor_parallel) * shape.head_dim * value_bytes


def kv_bytes_per_token(shape: KvShape, value_bytes: int, tensor_parallel: int) -> int:
    """Return the bytes on one GPU by which the cache grows with each token.

    Parameters
    ----------
    shape
        The architecture.
    value_bytes
        2 for bf16 and fp16, 1 for fp8.
    tensor_parallel
        GPUs that share the model.
    """
    return shape.growing_layers * layer_bytes_per_token(shape, value_bytes, tensor_parallel)


def kv_bytes_per_request(shape: KvShape, value_bytes: int, tensor_parallel: int, tokens: int) -> int:
    """Return the bytes on one GPU of a request of `tokens` tokens, its sliding windows included.

    The constant state of hybrid models (Mamba, gated delta) is not counted: no table states it.
    """
    windowed = shape.window_layers * min(tokens, shape.window_tokens)
    growing = shape.growing_layers * tokens
    return (growing + windowed) * layer_bytes_per_token(shape, value_bytes, tensor_parallel)


def weight_bytes_per_gpu(parameters: int, bits_per_weight: int, tensor_parallel: int) -> int:
    """Return the bytes of weights on one GPU, rounded up."""
    return -(-parameters * bits_per_weight // (8 * tensor_parallel))


def kv_bytes_left(memory_bytes: int, utilization_permille: int, weight_bytes: int, reserve_bytes: int) -> int:
    """Return the bytes of one GPU that are left for the KV cache; 0 when the weights alone do not fit.

    Parameters
    ----------
    memory_bytes
        The GPU's memory.
    utilization_permille
        The share that the engine may use (`gpuMemoryUtilizationPermille`).
    weight_bytes
        Weights on this GPU.
    reserve_bytes
        Activations, captured graphs and the runtime itself.
    """
    return max(0, memory_bytes * utilization_permille // PERMILLE - weight_bytes - reserve_bytes)


def kv_tokens(kv_bytes: int, bytes_per_token: int) -> int:
    """Return the tokens that fit; both arguments of the same one GPU."""
    return kv_bytes // bytes_per_token


def batch_that_fits(kv_bytes: int, bytes_per_request: int) -> int:
    """Return the requests that fit at once; both arguments of the same one GPU."""
    return kv_bytes // bytes_per_request
