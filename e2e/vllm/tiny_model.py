"""A Llama of 2.6 million random weights that real vLLM loads: one token a byte, English letters out, no download.

Written with numpy alone, since the format is simple: safetensors is a JSON header and raw bytes, bfloat16 is the
upper half of float32. The same seed gives the same bytes everywhere.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from e2e.cluster.paths import cache, digest, locked

HIDDEN = 256
INTERMEDIATE = 512
LAYERS = 4
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 64
MAX_POSITIONS = 4096
SPECIAL = ("<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>")
FIRST_PRINTABLE, LAST_PRINTABLE = 0x20, 0x7E
_PRINTABLE_IN_LATIN1 = (range(0x21, 0x7F), range(0xA1, 0xAD), range(0xAE, 0x100))
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

Weights = dict[str, npt.NDArray[np.float32]]


def tiny_model() -> Path:
    """Return the folder of the checkpoint in the user's cache, made when it is missing."""
    folder = cache() / f"tiny-llama-{digest([Path(__file__)])}"
    if not folder.is_dir():
        with locked(folder.name):
            if not folder.is_dir():
                partial = folder.with_suffix(".partial")
                shutil.rmtree(partial, ignore_errors=True)
                write_checkpoint(partial, seed=0)
                partial.rename(folder)
    return folder


def write_checkpoint(folder: Path, seed: int) -> None:
    """Write config, tokenizer and weights as Hugging Face's loaders expect them."""
    folder.mkdir(parents=True)
    vocabulary = _vocabulary()
    _write_json(folder / "config.json", _config(len(vocabulary)))
    _write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0})
    _write_json(folder / "tokenizer.json", _tokenizer(vocabulary))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config())
    (folder / "model.safetensors").write_bytes(_safetensors(_weights(vocabulary, np.random.default_rng(seed))))


def _write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")


def _vocabulary() -> dict[str, int]:
    """Give numbers to the special tokens, then to each byte, in the alphabet of byte-level BPE (GPT-2's)."""
    return {token: number for number, token in enumerate((*SPECIAL, *(_letter(byte) for byte in range(256))))}


def _letter(byte: int) -> str:
    """Byte-level BPE writes a byte that does not print as the next free character from U+0100 on."""
    if any(byte in block for block in _PRINTABLE_IN_LATIN1):
        return chr(byte)
    hidden_before = sum(not any(b in block for block in _PRINTABLE_IN_LATIN1) for b in range(byte))
    return chr(0x100 + hidden_before)


def _tokenizer(vocabulary: dict[str, int]) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": vocabulary[token], "content": token, **flags} for token in SPECIAL],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }


def _tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "model_max_length": MAX_POSITIONS,
        "chat_template": CHAT_TEMPLATE,
    }


def _config(vocabulary_size: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": vocabulary_size,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }


def _weights(vocabulary: dict[str, int], dice: np.random.Generator) -> Weights:
    def random(rows: int, columns: int) -> npt.NDArray[np.float32]:
        return dice.normal(0, 0.2, (rows, columns)).astype(np.float32)

    ones = np.ones(HIDDEN, np.float32)
    weights: Weights = {"model.embed_tokens.weight": random(len(vocabulary), HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        weights |= {
            prefix + "self_attn.q_proj.weight": random(HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.k_proj.weight": random(KV_HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.v_proj.weight": random(KV_HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.o_proj.weight": random(HIDDEN, HEADS * HEAD_DIM),
            prefix + "mlp.gate_proj.weight": random(INTERMEDIATE, HIDDEN),
            prefix + "mlp.up_proj.weight": random(INTERMEDIATE, HIDDEN),
            prefix + "mlp.down_proj.weight": random(HIDDEN, INTERMEDIATE),
            prefix + "input_layernorm.weight": ones,
            prefix + "post_attention_layernorm.weight": ones,
        }
    return weights | {"model.norm.weight": ones, "lm_head.weight": _readable_head(random(len(vocabulary), HIDDEN))}


def _readable_head(head: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Let only printable ASCII score: output then streams byte by byte as text, and never ends before max_tokens.

    Doubled to a standard deviation of 0.4, the 95 logits spread by 6.4 around the 0 of every other token, which
    therefore comes up about once in a million draws at temperature 1.
    """
    readable = np.zeros_like(head)
    rows = slice(len(SPECIAL) + FIRST_PRINTABLE, len(SPECIAL) + LAST_PRINTABLE + 1)
    readable[rows] = 2 * head[rows]
    return readable


def _safetensors(weights: Weights) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts = []
    offset = 0
    for name, array in weights.items():
        part = _bfloat16(array)
        header[name] = {"dtype": "BF16", "shape": list(array.shape), "data_offsets": [offset, offset + len(part)]}
        parts.append(part)
        offset += len(part)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the tensors start at a multiple of 8
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def _bfloat16(array: npt.NDArray[np.float32]) -> bytes:
    # Cut off rather than rounded: the weights are random anyway.
    return (array.view(np.uint32) >> 16).astype("<u2").tobytes()
