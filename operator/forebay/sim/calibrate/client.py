"""The load generator: sends what a `Load` says and notes when each token comes.

Prompts are lists of token ids, so that their length is exact and no tokenizer is measured, and no two are alike, so
that the prefix cache finds nothing. The clock is read when bytes have arrived, before they are understood.
"""

from __future__ import annotations

import asyncio
import gc
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiohttp
import numpy as np
import orjson

from forebay.sim.calibrate.endpoint import OK, EndpointError, read_preemptions
from forebay.sim.calibrate.recording import EngineFacts, Recording
from forebay.sim.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forebay.sim.calibrate.loads import Load, Request

NS_PER_US = 1000
# Ids that every vocabulary has and that are no marks of its chat format in any of them that we know.
_IDS = (16, 256)
KEEP_S = 2  # of an idle connection: the server closes it after 5 s, perhaps when a request is on its way
SILENCE_S = 600  # without a byte a stream is given up: the longest wait in a queue that an overload makes
_DATA = b"data: "
_DONE = b"[DONE]"


@dataclass(slots=True)
class _Sent:
    """One request and its tokens, nanoseconds of the monotonic clock."""

    plan: Request
    body: bytes
    sent_ns: int = 0
    token_ns: list[int] = field(default_factory=list)


def session(url: str) -> aiohttp.ClientSession:
    """Open connections to an engine; as many as there are streams."""
    timeout = aiohttp.ClientTimeout(total=None, sock_read=SILENCE_S)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_S)
    return aiohttp.ClientSession(url, timeout=timeout, connector=connector)


async def record(
    http: aiohttp.ClientSession,
    facts: EngineFacts,
    load: Load,
    run: int,
    *,
    seed: int,
    on_request: Callable[[], None] = lambda: None,
) -> Recording:
    """Run a load and return what was seen.

    Parameters
    ----------
    http
        From `session`.
    facts
        The engine's.
    load, run
        What to send, and the how-manieth time this is.
    seed
        Of the prompts' contents.
    on_request
        Called whenever a request has got all of its tokens.

    Raises
    ------
    EndpointError
        When the engine refuses a request or ends a stream early.
    """
    dice = np.random.default_rng((seed, run))
    before = await read_preemptions(http)
    done: list[_Sent] = []
    with _no_collection():
        for stage in load.stages:
            sent = [_Sent(plan, _body(facts.model, plan, dice)) for plan in stage]
            await _run_stage(http, sent, on_request)
            done += sent
    return _recording(facts, load.name, run, done, await read_preemptions(http) - before)


async def _run_stage(http: aiohttp.ClientSession, stage: list[_Sent], on_request: Callable[[], None]) -> None:
    start_ns = time.monotonic_ns()
    try:
        async with asyncio.TaskGroup() as group:
            for sent in stage:
                group.create_task(_stream(http, sent, start_ns, on_request))
    except ExceptionGroup as errors:
        # Not `except*`: Python 3.11.2, which is Debian 12's, wraps what is raised in there into a group again.
        raise errors.exceptions[0] from None


async def _stream(http: aiohttp.ClientSession, sent: _Sent, start_ns: int, on_request: Callable[[], None]) -> None:
    due_ns = start_ns + sent.plan.at_us * NS_PER_US
    await asyncio.sleep(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))  # a millisecond late at times: sent_ns is true
    sent.sent_ns = time.monotonic_ns()
    headers = {"content-type": "application/json"}
    try:
        async with http.post("/v1/completions", data=sent.body, headers=headers) as answer:
            if answer.status != OK:
                text = (await answer.text())[:300]
                raise EndpointError(f"the engine answered {answer.status} to a request of {_size(sent.plan)}: {text}")
            async for line in answer.content:
                now_ns = time.monotonic_ns()
                if line.startswith(_DATA):
                    _note(sent, line.removeprefix(_DATA).strip(), now_ns)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise EndpointError(f"a stream of {_size(sent.plan)} broke off: {error or type(error).__name__}") from error
    if len(sent.token_ns) != sent.plan.output_tokens:
        raise EndpointError(
            f"a request of {_size(sent.plan)} got {len(sent.token_ns)} tokens: calibration needs an engine that heeds "
            "ignore_eos and reports usage with each token (stream_options.continuous_usage_stats), as vLLM does"
        )
    on_request()


def _note(sent: _Sent, data: bytes, now_ns: int) -> None:
    """Count what has come by the engine's own count: one message may bear several tokens."""
    if data == _DONE:
        return
    message = orjson.loads(data)
    if "error" in message:
        raise EndpointError(f"the engine ended a stream of {_size(sent.plan)}: {message['error']}")
    total = (message.get("usage") or {}).get("completion_tokens", 0)
    sent.token_ns += [now_ns] * (total - len(sent.token_ns))


def _body(model: str, plan: Request, dice: np.random.Generator) -> bytes:
    return orjson.dumps(
        {
            "model": model,
            "prompt": dice.integers(*_IDS, plan.prompt_tokens).tolist(),
            "max_tokens": plan.output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
    )


def _size(plan: Request) -> str:
    return f"{plan.prompt_tokens} prompt and {plan.output_tokens} output tokens"


def _recording(facts: EngineFacts, load: str, run: int, done: list[_Sent], preemptions: int) -> Recording:
    """Put requests into the order in which they were sent, and times on the first one's clock."""
    done = sorted(done, key=lambda sent: sent.sent_ns)
    start_ns = done[0].sent_ns
    return Recording(
        load=load,
        run=run,
        facts=facts,
        trace=Trace(
            name=load,
            arrival_us=np.array([(sent.sent_ns - start_ns) // NS_PER_US for sent in done], np.int64),
            prompt_tokens=np.array([sent.plan.prompt_tokens for sent in done], np.int64),
            output_tokens=np.array([sent.plan.output_tokens for sent in done], np.int64),
        ),
        token_us=np.array([(at - start_ns) // NS_PER_US for sent in done for at in sent.token_ns], np.int64),
        preemptions=preemptions,
    )


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python's garbage collector from pausing the client, and so from being measured."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
