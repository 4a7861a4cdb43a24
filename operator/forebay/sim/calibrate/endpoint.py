"""The engine under calibration as its HTTP endpoints show it: what it is, how it was started, what it counted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import aiohttp
import orjson

from forebay.sim.calibrate.recording import EngineFacts
from forebay.wire.engine_metrics import KV_CAPACITY, LABEL_BLOCK_TOKENS, LABEL_BLOCKS, NUMBERS

if TYPE_CHECKING:
    from collections.abc import Mapping

_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_LABEL_PREFIX_CACHING = "enable_prefix_caching"
OK = 200
QUICK = aiohttp.ClientTimeout(total=20)


class EndpointError(RuntimeError):
    """The endpoint cannot be calibrated; the message says what it answered and what to do."""


async def fetch(http: aiohttp.ClientSession, path: str) -> bytes:
    """Read one page of the engine.

    Raises
    ------
    EndpointError
        When there is no such page, or no engine.
    """
    try:
        async with http.get(path, timeout=QUICK) as answer:
            body = await answer.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise EndpointError(f"no answer to GET {path}: {error or type(error).__name__}; is the engine up?") from error
    if answer.status != OK:
        raise EndpointError(f"GET {path} answered {answer.status}: calibration needs vLLM's OpenAI server itself")
    return body


async def read_facts(
    http: aiohttp.ClientSession, *, model: str | None, machine: str, max_num_seqs: int, max_num_batched_tokens: int
) -> EngineFacts:
    """Ask an engine what it is; two of its limits stand on no page and have to be given.

    Raises
    ------
    EndpointError
        When it serves no such model, or does not say how large its KV cache is.
    """
    served = {entry["id"]: entry for entry in orjson.loads(await fetch(http, "/v1/models"))["data"]}
    name = model or next(iter(served), "")
    if name not in served:
        raise EndpointError(f"the engine serves {', '.join(served) or 'nothing'}, not {name!r}: name one with --model")
    version = orjson.loads(await fetch(http, "/version"))["version"]
    page = (await fetch(http, "/metrics")).decode()
    cache = kv_cache(page)
    return EngineFacts(
        engine=f"vllm {version}",
        model=name,
        machine=machine,
        max_model_len=int(served[name]["max_model_len"]),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_blocks=int(cache[LABEL_BLOCKS]),
        kv_block_tokens=int(cache[LABEL_BLOCK_TOKENS]),
        prefix_caching=cache.get(_LABEL_PREFIX_CACHING, "True") == "True",
    )


async def read_preemptions(http: aiohttp.ClientSession) -> int:
    """Read how many requests the engine has preempted since it started."""
    page = (await fetch(http, "/metrics")).decode()
    names = {spelling.name for spelling in NUMBERS["preemptions_total"]}
    return round(sum(float(match["value"]) for match in _SAMPLE.finditer(page) if match["name"] in names))


def kv_cache(page: str) -> Mapping[str, str]:
    """Return the labels of the metric that describes the KV cache.

    Raises
    ------
    EndpointError
        When the page has no such metric, or it does not say how many blocks there are.
    """
    names = {spelling.name for spelling in KV_CAPACITY}
    for match in _SAMPLE.finditer(page):
        if match["name"] in names:
            labels = dict(_LABEL.findall(match["labels"] or ""))
            if labels.get(LABEL_BLOCKS, "").isdigit() and labels.get(LABEL_BLOCK_TOKENS, "").isdigit():
                return labels
    raise EndpointError(
        f"/metrics does not tell the size of the KV cache ({', '.join(sorted(names))}): calibration needs vLLM 0.9 or "
        "later with its metrics on"
    )
