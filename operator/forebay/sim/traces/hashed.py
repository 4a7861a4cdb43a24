"""Traces with the hashes of their prompts' blocks, one JSON object a line: Mooncake and Qwen-Bailian.

Mooncake (github.com/kvcache-ai/Mooncake, FAST25-release): milliseconds, blocks of 512 tokens; arrivals are bucketed to
about 3 s, so that many requests share an instant, and they are left there. Qwen-Bailian
(github.com/alibaba-edu/qwen-bailian-usagetraces-anon): seconds, blocks of 16. The last hash of a prompt mostly stands
for less than a block; an engine caches full blocks only, so that hash is left out.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from forebay.sim.traces.lines import SECOND_US, Format, Layout, Rows, microseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay.core.units import I64

MAX_ID = 2**53  # above, other JSON readers would merge ids
NEEDED = ("timestamp", "input_length", "output_length", "hash_ids")
MOONCAKE_BLOCK_TOKENS = 512
BAILIAN_BLOCK_TOKENS = 16


def _rows(batch: Sequence[str], *, block_tokens: int, unit_us: int) -> Rows:
    when, prompts, outputs, hashes = _columns(batch)
    prompt_tokens = _whole(prompts, "input_length")
    full = prompt_tokens // block_tokens
    if any(type(ids) is not list for ids in hashes):
        raise ValueError(f"hash_ids is {hashes[0]!r}, not a list")
    counts = np.fromiter(map(len, hashes), np.int64, len(hashes))
    most = -(-prompt_tokens // block_tokens)
    if (counts > most).any():
        raise ValueError(f"{counts[0]} hash_ids for a prompt of {most[0]} blocks of {block_tokens} tokens")
    blocks = np.minimum(counts, full)
    kept = list(itertools.chain.from_iterable(ids[:n] for ids, n in zip(hashes, blocks.tolist(), strict=True)))
    return Rows(
        arrival_us=_times(when, unit_us),
        prompt_tokens=prompt_tokens,
        output_tokens=_whole(outputs, "output_length"),
        block_ids=_whole(kept, "hash_ids"),
        blocks=blocks,
    )


def _columns(batch: Sequence[str]) -> list[list[Any]]:
    try:
        documents = [orjson.loads(line) for line in batch]
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from error
    try:
        return [[document[key] for document in documents] for key in NEEDED]
    except (KeyError, TypeError) as error:
        raise ValueError(f"not an object with {', '.join(NEEDED)}: {error}") from error


def _whole(values: Sequence[Any], key: str) -> I64:
    if not set(map(type, values)) <= {int}:
        raise ValueError(f"{key}: {next(v for v in values if type(v) is not int)!r} is no whole number")
    if values and (max(values) > MAX_ID or min(values) < -MAX_ID):
        raise ValueError(f"{key} is {max(values, key=abs)}, which is out of all proportion")
    return np.fromiter(values, np.int64, len(values))


def _times(values: Sequence[Any], unit_us: int) -> I64:
    if not set(map(type, values)) <= {int, float}:
        raise ValueError(f"timestamp is {values[0]!r}, not a number")
    return microseconds(np.array(values, np.float64) * (unit_us / SECOND_US), "timestamp")


def _layout(file_format: Format, block_tokens: int, unit_us: int) -> Layout:
    parse = partial(_rows, block_tokens=block_tokens, unit_us=unit_us)

    def parser(_first: str) -> Callable[[Sequence[str]], Rows]:
        return parse

    return Layout(file_format, parser, has_header=False, block_tokens=block_tokens)


MOONCAKE = _layout(Format.MOONCAKE, MOONCAKE_BLOCK_TOKENS, unit_us=1000)
BAILIAN = _layout(Format.BAILIAN, BAILIAN_BLOCK_TOKENS, unit_us=SECOND_US)
