"""Envoy's external processor: one gRPC stream a request, which ends when the request has been routed.

It reads the body, asks the desk, and answers with a list of replicas or a response of its own. Nothing of an engine's
response passes through here.
"""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
import orjson
from envoy.config.core.v3 import base_pb2 as core  # type: ignore[import-untyped]  # generated
from envoy.service.ext_proc.v3 import external_processor_pb2 as ep  # type: ignore[import-untyped]  # generated
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as ep_grpc

from forebay.gateway import openai_api
from forebay.gateway.settings import MAX_BODY_BYTES
from forebay.routing.service import Refusal
from forebay.wire.names import (
    HEADER_DESTINATION,
    HEADER_PRIORITY,
    HEADER_SERVED_BY,
    HEADER_TENANT,
    METADATA_NAMESPACE,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.gateway.desk import Desk
    from forebay.gateway.metrics import Metrics
    from forebay.gateway.openai_api import Answer
    from forebay.gateway.table import Known, Table
    from forebay.routing.book import Route

    Context: TypeAlias = grpc.aio.ServicerContext[ep.ProcessingRequest, ep.ProcessingResponse]

log = logging.getLogger(__name__)

CHUNK_BYTES = 60_000  # below the 64 KiB at which Envoy's HTTP/2 frames would be cut
OVERWRITE = core.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
BODY_MODE_NONE = 0
NO_TENANT = ""


class Picker(ep_grpc.ExternalProcessorServicer):  # type: ignore[misc]  # generated
    """Answers Envoy's question where each request should go.

    Parameters
    ----------
    bytes_max
        Request bytes that all streams together may keep; beyond it a newcomer gets 429 while it still uploads.
    """

    def __init__(self, table: Table, desk: Desk, metrics: Metrics, bytes_max: int) -> None:
        self._table, self._desk, self._metrics, self._bytes_max = table, desk, metrics, bytes_max
        self._bytes = 0

    async def Process(self, request_iterator: object, context: Context) -> None:  # noqa: N802, ARG002 - gRPC's names
        """Handle one request."""
        pieces: list[bytes] = []
        size = 0
        headers: dict[str, str] = {}
        try:
            while (message := await context.read()) is not grpc.aio.EOF:
                kind = message.WhichOneof("request")
                if kind == "request_headers":
                    headers = _headers(message)
                    by_path = message.protocol_config.request_body_mode == BODY_MODE_NONE
                    if message.request_headers.end_of_stream or by_path:
                        await self._without_body(context, headers)
                        return
                elif kind == "request_body":
                    pieces.append(message.request_body.body)
                    size += len(pieces[-1])
                    self._bytes += len(pieces[-1])
                    if size > MAX_BODY_BYTES:
                        await self._tell(context, openai_api.too_large(MAX_BODY_BYTES))
                        return
                    if self._bytes > self._bytes_max:
                        await self._tell(context, openai_api.refused(Refusal.QUEUE_FULL))
                        return
                if kind == "request_trailers" or (kind == "request_body" and message.request_body.end_of_stream):
                    body = b"".join(pieces)  # one copy while it waits
                    pieces.clear()
                    del message
                    await self._with_body(context, headers, body, trailers=kind == "request_trailers")
                    return
        finally:
            self._bytes -= size

    async def _without_body(self, context: Context, headers: dict[str, str]) -> None:
        path = headers.get(":path", "").partition("?")[0]
        name, rest = _split(path)
        known = self._table.of_path(name) if name is not None else None
        if rest == openai_api.PATH_MODELS and (name is None or known is not None):
            rows = [
                (model, k.key.partition("/")[0], k.created_s)
                for model, k in self._table.models()
                if known is None or k is known
            ]
            await self._tell(context, openai_api.models(rows))
        elif name is None:
            await self._tell(context, openai_api.not_json())
        elif known is None:
            await self._tell(context, openai_api.unknown_model(name))
        else:
            length = headers.get("content-length", "")
            route = await self._ask(context, known, headers, int(length) if length.isdecimal() else 0)
            if route is not None:
                await context.write(_routed(route.endpoints, known.key))

    async def _with_body(self, context: Context, headers: dict[str, str], body: bytes, *, trailers: bool) -> None:
        try:
            document = orjson.loads(body)
        except orjson.JSONDecodeError:
            document = None
        if not isinstance(document, dict):
            await self._tell(context, openai_api.not_json())
            return
        model: Any = document.get("model")
        del document  # the parsed prompt is several times its body, and the wait may be long
        if not isinstance(model, str) or not model:
            await self._tell(context, openai_api.no_model())
            return
        known = self._table.of_model(model)
        if known is None:
            await self._tell(context, openai_api.unknown_model(model))
            return
        route = await self._ask(context, known, headers, len(body))
        if route is None:
            return
        await context.write(_routed(route.endpoints, known.key))
        for chunk in _chunks(body):
            await context.write(chunk)
        if trailers:
            done = ep.ProcessingResponse()
            done.request_trailers.SetInParent()
            await context.write(done)

    async def _ask(self, context: Context, known: Known, headers: dict[str, str], body_bytes: int) -> Route | None:
        verdict = await self._desk.route(
            known.key,
            headers.get("x-request-id", ""),
            tenant=_tenant(headers),
            priority=_priority(headers),
            body_bytes=body_bytes,
        )
        if isinstance(verdict, Refusal):
            await self._tell(context, openai_api.refused(verdict))
            return None
        return verdict

    async def _tell(self, context: Context, answer: Answer) -> None:
        self._metrics.own_answers.labels(str(answer.status), answer.reason).inc()
        response = ep.ProcessingResponse()
        immediate = response.immediate_response
        # The numbers of Envoy's enum are HTTP's.
        immediate.status.code = answer.status
        immediate.details = f"picker_{answer.reason}"
        immediate.body = answer.body
        immediate.headers.set_headers.append(_header("content-type", "application/json"))
        if answer.retry_after_s is not None:
            immediate.headers.set_headers.append(_header("retry-after", str(answer.retry_after_s)))
        await context.write(response)


def _headers(message: ep.ProcessingRequest) -> dict[str, str]:
    return {
        header.key: (header.raw_value or header.value.encode()).decode("latin-1")
        for header in message.request_headers.headers.headers
    }


def _split(path: str) -> tuple[str | None, str]:
    """Split /svc/NAME/rest into NAME and /rest; another path has no NAME."""
    if not path.startswith(openai_api.SERVICE_PREFIX):
        return None, path
    name, _, rest = path.removeprefix(openai_api.SERVICE_PREFIX).partition("/")
    return name, f"/{rest}"


def _tenant(headers: dict[str, str]) -> str:
    key = headers.get("authorization")
    if key:
        # A digest, so that no key is kept or could be logged.
        return hashlib.sha256(key.encode()).hexdigest()[:16]
    return headers.get(HEADER_TENANT, NO_TENANT)[:63]


def _priority(headers: dict[str, str]) -> int | None:
    text = headers.get(HEADER_PRIORITY, "")
    digits = text.removeprefix("-")
    # A longer number is no rank that a policy could have.
    return int(text) if digits.isascii() and digits.isdecimal() and len(digits) <= 7 else None  # noqa: PLR2004


def _header(key: str, value: str) -> core.HeaderValueOption:
    return core.HeaderValueOption(header=core.HeaderValue(key=key, raw_value=value.encode()), append_action=OVERWRITE)


def _routed(endpoints: tuple[str, ...], service_key: str) -> ep.ProcessingResponse:
    """Tell the destinations as header and as metadata, which is what the endpoint-picker protocol asks for."""
    response = ep.ProcessingResponse()
    value = ",".join(endpoints)
    response.request_headers.response.header_mutation.set_headers.append(_header(HEADER_DESTINATION, value))
    metadata = response.dynamic_metadata.get_or_create_struct(METADATA_NAMESPACE)
    metadata[HEADER_DESTINATION] = value
    metadata[HEADER_SERVED_BY] = service_key
    return response


def _chunks(body: bytes) -> Iterator[ep.ProcessingResponse]:
    for start in range(0, max(len(body), 1), CHUNK_BYTES):
        response = ep.ProcessingResponse()
        piece = response.request_body.response.body_mutation.streamed_response
        piece.body = body[start : start + CHUNK_BYTES]
        piece.end_of_stream = start + CHUNK_BYTES >= len(body)
        yield response
