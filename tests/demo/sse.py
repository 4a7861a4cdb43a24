"""A server that speaks the streaming API as a test tells it to: real HTTP, invented behaviour."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def event(document: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(document) + b"\n\n"


def delta(content: str, finish: str | None = None) -> bytes:
    return event({"choices": [{"delta": {"content": content}, "finish_reason": finish}]})


async def answer(request: web.Request) -> web.StreamResponse:
    """Behave as the model's name says."""
    asked = orjson.loads(await request.read())
    match asked["model"]:
        case "full":
            return web.json_response({"error": {"message": "later"}}, status=429, headers={"retry-after": "1"})
        case "down":
            return web.json_response({"error": {"message": "later"}}, status=503)
        case "unknown":
            return web.json_response({"error": {"message": "no such model"}}, status=404)
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    await response.write(event({"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}))
    if asked["model"] == "stuck":
        await asyncio.Event().wait()
    for number in range(asked["max_tokens"]):
        if asked["model"] == "cut" and number == 2:
            request.transport.abort()  # type: ignore[union-attr]
            return response
        # Cut in the middle of a line: a reader that takes pieces for lines fails here.
        piece = delta(f" {number}")
        await response.write(piece[:9])
        await response.write(piece[9:])
        await asyncio.sleep(0)
    if asked["model"] == "error":
        await response.write(event({"error": {"message": "engine died"}}))
    words = len(asked["messages"][0]["content"].split())
    usage = {"prompt_tokens": words, "completion_tokens": asked["max_tokens"]}
    await response.write(delta("", "length") + event({"choices": [], "usage": usage}))
    if asked["model"] != "endless":
        await response.write(b"data: [DONE]\n\n")
    return response


@asynccontextmanager
async def serving() -> AsyncIterator[str]:
    """Yield the base address of such a server."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
