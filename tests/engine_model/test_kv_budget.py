"""The KV numbers of the mission, and the exceptions that a naive formula gets wrong."""

import pytest

from forebay.engine_model.kv_budget import (
    KvShape,
    batch_that_fits,
    kv_bytes_left,
    kv_bytes_per_request,
    kv_bytes_per_token,
    kv_tokens,
    weight_bytes_per_gpu,
)

LLAMA_8B = KvShape(32, 0, 0, 8, 128)
LLAMA_70B = KvShape(80, 0, 0, 8, 128)
LLAMA_405B = KvShape(126, 0, 0, 8, 128)
DEEPSEEK_V3 = KvShape(61, 0, 0, 1, 576, latent=True)
GPT_OSS_20B = KvShape(12, 12, 128, 8, 64)
QWEN3_30B = KvShape(48, 0, 0, 4, 128)
BF16, FP8 = 2, 1

PER_TOKEN = {
    "Llama 3.1 8B in bf16": (LLAMA_8B, BF16, 1, 131_072),
    "Llama 3.1 70B in bf16": (LLAMA_70B, BF16, 1, 327_680),
    "Llama 3.1 405B in bf16": (LLAMA_405B, BF16, 1, 516_096),
    "DeepSeek-V3 keeps one latent a layer": (DEEPSEEK_V3, BF16, 1, 70_272),
    "a latent is not shrunk by tensor parallelism": (DEEPSEEK_V3, BF16, 8, 70_272),
    "fp8 is half": (LLAMA_70B, FP8, 1, 163_840),
    "four GPUs keep a quarter each": (LLAMA_70B, BF16, 4, 81_920),
    "beyond one head a GPU the heads are replicated": (QWEN3_30B, BF16, 8, 48 * 2 * 1 * 128 * 2),
    "heads that do not divide are rounded up": (QWEN3_30B, BF16, 3, 48 * 2 * 2 * 128 * 2),
    "layers with a window do not grow": (GPT_OSS_20B, BF16, 1, 24_576),
}


@pytest.mark.parametrize(("shape", "value_bytes", "tp", "expected"), PER_TOKEN.values(), ids=PER_TOKEN)
def test_bytes_per_token(shape: KvShape, value_bytes: int, tp: int, expected: int) -> None:
    assert kv_bytes_per_token(shape, value_bytes, tp) == expected


PER_REQUEST = {
    "Llama 3.1 8B, 128,000 tokens: 16.8 GB": (LLAMA_8B, BF16, 128_000, 16_777_216_000),
    "Llama 3.1 70B, 128,000 tokens: 41.9 GB": (LLAMA_70B, BF16, 128_000, 41_943_040_000),
    "Llama 3.1 405B, 128,000 tokens: 66.1 GB": (LLAMA_405B, BF16, 128_000, 66_060_288_000),
    "fp8 halves the 70B request": (LLAMA_70B, FP8, 128_000, 20_971_520_000),
    "a request shorter than the window pays for every layer": (GPT_OSS_20B, BF16, 100, 24 * 100 * 2_048),
    "beyond the window only the full layers grow": (GPT_OSS_20B, BF16, 1_000, 1_000 * 24_576 + 128 * 24_576),
}


@pytest.mark.parametrize(("shape", "value_bytes", "tokens", "expected"), PER_REQUEST.values(), ids=PER_REQUEST)
def test_bytes_per_request(shape: KvShape, value_bytes: int, tokens: int, expected: int) -> None:
    assert kv_bytes_per_request(shape, value_bytes, 1, tokens) == expected


def test_70b_in_bf16_on_two_80_gb_cards_leaves_3_gb_for_kv() -> None:
    weights = weight_bytes_per_gpu(70_553_706_496, 16, 2)
    assert round(2 * weights / 1e9) == 141
    left = 2 * kv_bytes_left(80 * 10**9, 900, weights, 0)
    assert round(left / 1e9) == 3
    # "Fits the weights, not the work": not one request of 10,000 tokens has room.
    assert batch_that_fits(left, kv_bytes_per_request(LLAMA_70B, BF16, 1, 10_000)) == 0


def test_70b_in_bf16_does_not_fit_one_80_gb_card() -> None:
    assert kv_bytes_left(80 * 10**9, 900, weight_bytes_per_gpu(70_553_706_496, 16, 1), 0) == 0


def test_fp8_kv_doubles_the_batch() -> None:
    left = kv_bytes_left(80 * 10**9, 900, weight_bytes_per_gpu(70_553_706_496, 16, 4), 0)
    batch = [batch_that_fits(left, kv_bytes_per_request(LLAMA_70B, width, 4, 8_000)) for width in (BF16, FP8)]
    assert batch == [56, 112]


def test_tokens_that_fit() -> None:
    assert kv_tokens(kv_bytes_left(80 * 2**30, 900, 16_060_000_000, 3_584 * 2**20), 131_072) == 438_623


def test_weights_round_up_and_int4_is_a_quarter() -> None:
    assert weight_bytes_per_gpu(1_001, 16, 2) == 1_001
    assert weight_bytes_per_gpu(1_001, 4, 1) == 501
