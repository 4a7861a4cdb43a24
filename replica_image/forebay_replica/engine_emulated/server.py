"""The emulated engine's HTTP server: OpenAI's API, health, metrics, and sleep for its own supervisor."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import TYPE_CHECKING
from uuid import uuid4

import orjson
from aiohttp import web

from forebay_replica.engine_emulated.ask import (
    HTTP_BAD_REQUEST,
    HTTP_NOT_FOUND,
    HTTP_UNAVAILABLE,
    ApiError,
    Ask,
    read_ask,
)
from forebay_replica.engine_emulated.chunks import HTTP_INTERNAL_ERROR, Chunks, stream_error, whole_answer
from forebay_replica.engine_emulated.metrics import CONTENT_TYPE
from forebay_replica.engine_emulated.pace import FAILED

if TYPE_CHECKING:
    from forebay.wire.replica_config import ReplicaConfig
    from forebay_replica.engine_emulated.metrics import EngineMetrics
    from forebay_replica.engine_emulated.pace import Pacer, Stream

LOG = logging.getLogger(__name__)
BODY_BYTES = 64 * 2**20  # a prompt of 128,000 tokens is 0.5 MB; aiohttp's own limit of 1 MiB is too near
_STOPPED = "The engine was stopped before the answer was complete."
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Phase(Enum):
    """Where the engine is in its life."""

    LOADING = "loading"  # every route answers 503
    READY = "ready"
    DRAINING = "draining"  # what runs may finish, nothing new is taken


class EngineServer:
    """The routes, and the phases that decide whether they answer.

    Parameters
    ----------
    config
        The replica's configuration.
    pacer
        The engine in real time.
    metrics
        What /metrics shows.
    """

    def __init__(self, config: ReplicaConfig, pacer: Pacer, metrics: EngineMetrics) -> None:
        self._config = config
        self._pacer = pacer
        self._metrics = metrics
        self._started = int(time.time())
        self.phase = Phase.LOADING

    def application(self) -> web.Application:
        """Make the web application."""
        app = web.Application(client_max_size=BODY_BYTES, middlewares=[self._errors])
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions", self._completion),
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
                web.get("/metrics", self._metrics_page),
                web.post("/sleep", self._sleep),
                web.post("/wake_up", self._wake_up),
                web.get("/is_sleeping", self._is_sleeping),
            ]
        )
        return app

    async def drain(self, deadline_s: float) -> None:
        """Take nothing new, let what runs finish, and give up what has not by the deadline."""
        self.phase = Phase.DRAINING
        if not await self._pacer.idle(deadline_s):
            LOG.warning("drain deadline passed: giving up what still runs")
            self._pacer.abort_all(FAILED)

    @web.middleware
    async def _errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self.phase is Phase.LOADING:
            return _refusal(ApiError(HTTP_UNAVAILABLE, "The engine is loading."))
        try:
            return await handler(request)
        except ApiError as error:
            return _refusal(error)
        except web.HTTPException as error:
            return _refusal(ApiError(error.status, error.reason))

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, chat=True)

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, chat=False)

    async def _answer(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        if self.phase is Phase.DRAINING:
            raise ApiError(HTTP_UNAVAILABLE, "The engine is draining: send this to another replica.")
        ask = read_ask(
            await request.read(),
            chat=chat,
            served_names=self._config.served_names,
            max_model_len=self._config.max_model_len,
        )
        # Clients may name a request, but only the engine can make that name unique.
        answer_id = f"{'chatcmpl' if chat else 'cmpl'}-{request.headers.get('X-Request-Id') or uuid4().hex}"
        stream = self._pacer.submit(f"{answer_id}-{uuid4().hex[:8]}", ask)
        try:
            if ask.stream:
                return await self._stream(request, ask, stream, answer_id)
            return await self._whole(ask, stream, answer_id)
        finally:
            self._pacer.abort(stream)  # the client went away, unless the stream has ended

    async def _stream(self, request: web.Request, ask: Ask, stream: Stream, answer_id: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        try:
            await response.prepare(request)
            await _send_all(response, stream, Chunks(ask, answer_id, int(time.time())))
            await response.write_eof()
        except ConnectionResetError:
            LOG.debug("client left in mid-stream")
        return response

    async def _whole(self, ask: Ask, stream: Stream, answer_id: str) -> web.Response:
        tokens, finish_reason = 0, None
        while finish_reason is None:
            count, finish_reason = await stream.take()
            tokens += count
        if finish_reason == FAILED:
            raise ApiError(HTTP_INTERNAL_ERROR, _STOPPED)
        body = whole_answer(ask, answer_id, int(time.time()), tokens, finish_reason)
        return web.Response(body=body, content_type="application/json")

    async def _models(self, _request: web.Request) -> web.Response:
        models = [
            {
                "id": name,
                "object": "model",
                "created": self._started,
                "owned_by": "forebay",
                "root": self._config.model_uri,
                "parent": None,
                "max_model_len": self._config.max_model_len,
            }
            for name in self._config.served_names
        ]
        return web.Response(body=orjson.dumps({"object": "list", "data": models}), content_type="application/json")

    async def _health(self, _request: web.Request) -> web.Response:
        # Like vLLM's it stays 200 while draining and asleep: readiness is the supervisor's to withdraw.
        return web.Response()

    async def _metrics_page(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.page(), headers={"Content-Type": CONTENT_TYPE})

    async def _sleep(self, request: web.Request) -> web.Response:
        _only_loopback(request)
        if request.query.get("level", "1") != "1":
            raise ApiError(HTTP_BAD_REQUEST, "Only sleep level 1 is emulated.", "level")
        self._pacer.sleep()
        return web.Response()

    async def _wake_up(self, request: web.Request) -> web.Response:
        _only_loopback(request)
        if self._pacer.asleep and self._config.emulation is not None:
            await asyncio.sleep(self._config.emulation.wake_ms / 1000)
            self._pacer.wake()
        return web.Response()

    async def _is_sleeping(self, request: web.Request) -> web.Response:
        _only_loopback(request)
        body = orjson.dumps({"is_sleeping": self._pacer.asleep})
        return web.Response(body=body, content_type="application/json")


async def _send_all(response: web.StreamResponse, stream: Stream, chunks: Chunks) -> None:
    finish_reason = None
    while finish_reason is None:
        count, finish_reason = await stream.take()
        if finish_reason == FAILED:
            await response.write(chunks.tokens(count, None) + stream_error(_STOPPED))
        else:
            await response.write(chunks.tokens(count, finish_reason))


def _refusal(error: ApiError) -> web.Response:
    return web.Response(status=error.status, body=error.to_json(), content_type="application/json")


def _only_loopback(request: web.Request) -> None:
    peer = request.transport.get_extra_info("peername") if request.transport else None
    if not peer or not ipaddress.ip_address(peer[0]).is_loopback:
        raise ApiError(HTTP_NOT_FOUND, "Not Found")  # to anybody else it does not exist
