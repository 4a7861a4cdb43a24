"""Envoy's external processor: one gRPC stream a request, which ends when the request has been routed.

It reads the body, asks the desk, and answers with a list of replicas or a response of its own. Nothing of an engine's
response passes through here.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
import orjson
from envoy.config.core.v3 import base_pb2 as core  # type: ignore[import-untyped]  # generated
from envoy.service.ext_proc.v3 import external_processor_pb2 as ep  # type: ignore[import-untyped]  # generated

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

    from forebay.gateway.desk import Desk, Verdict
    from forebay.gateway.metrics import Metrics
    from forebay.gateway.openai_api import Answer
    from forebay.gateway.table import Known, Table

    Context: TypeAlias = grpc.aio.ServicerContext[ep.ProcessingRequest, bytes]

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
CHUNK_BYTES = 60_000  # below the 64 KiB at which Envoy's HTTP/2 frames would be cut
OVERWRITE = core.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
BODY_MODE_NONE = 0
NO_TENANT = ""
# Answers that are kept: which replicas a request may go to, in which order, changes far less often than requests come.
ROUTES_KEPT = 4_096


class Picker:
    """Answers Envoy's question where each request should go.

    Answers are bytes, made once where they repeat.

    Parameters
    ----------
    bytes_max
        Request bytes that all streams together may keep; beyond it a newcomer gets 429 while it still uploads.
    """

    def __init__(self, table: Table, desk: Desk, metrics: Metrics, bytes_max: int) -> None:
        self._table, self._desk, self._metrics, self._bytes_max = table, desk, metrics, bytes_max
        self._bytes = 0

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a server has to add.

        The call is a stream both ways. To gRPC's Python it is one whose last message is returned: that one and the
        status then leave together, which saves a write and a turn of the loop, 8 % of the CPU of a request.
        """
        method: grpc.RpcMethodHandler[ep.ProcessingRequest, bytes] = grpc.stream_unary_rpc_method_handler(
            self._process, request_deserializer=ep.ProcessingRequest.FromString
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"Process": method})

    async def _process(self, _: object, context: Context) -> bytes:
        """Handle one request; return the last message."""
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
                        return await self._without_body(headers)
                elif kind == "request_body":
                    pieces.append(message.request_body.body)
                    size += len(pieces[-1])
                    self._bytes += len(pieces[-1])
                    if size > MAX_BODY_BYTES:
                        return self._tell(openai_api.too_large(MAX_BODY_BYTES))
                    if self._bytes > self._bytes_max:
                        return self._tell(openai_api.refused(Refusal.QUEUE_FULL))
                if kind == "request_trailers" or (kind == "request_body" and message.request_body.end_of_stream):
                    body = b"".join(pieces)  # one copy while it waits
                    pieces.clear()
                    del message
                    return await self._with_body(context, headers, body, trailers=kind == "request_trailers")
        finally:
            self._bytes -= size
        return b""  # Envoy ended the call: nobody reads this

    async def _without_body(self, headers: dict[str, str]) -> bytes:
        path = headers.get(":path", "").partition("?")[0]
        name, rest = _split(path)
        known = self._table.of_path(name) if name is not None else None
        if rest == openai_api.PATH_MODELS and (name is None or known is not None):
            rows = [
                (model, k.key.partition("/")[0], k.created_s)
                for model, k in self._table.models()
                if known is None or k is known
            ]
            return self._tell(openai_api.models(rows))
        if name is None:
            return self._tell(openai_api.not_json())
        if known is None:
            return self._tell(openai_api.unknown_model(name))
        length = headers.get("content-length", "")
        verdict = await self._ask(known, headers, int(length) if length.isdecimal() else 0)
        if isinstance(verdict, Refusal):
            return self._tell(openai_api.refused(verdict))
        return _routed(verdict.endpoints, known.key)

    async def _with_body(self, context: Context, headers: dict[str, str], body: bytes, *, trailers: bool) -> bytes:
        try:
            document = orjson.loads(body)
        except orjson.JSONDecodeError:
            document = None
        if not isinstance(document, dict):
            return self._tell(openai_api.not_json())
        model: Any = document.get("model")
        del document  # the parsed prompt is several times its body, and the wait may be long
        if not isinstance(model, str) or not model:
            return self._tell(openai_api.no_model())
        known = self._table.of_model(model)
        if known is None:
            return self._tell(openai_api.unknown_model(model))
        verdict = await self._ask(known, headers, len(body))
        if isinstance(verdict, Refusal):
            return self._tell(openai_api.refused(verdict))
        message = _routed(verdict.endpoints, known.key)
        for following in _rest(body, trailers=trailers):
            await context.write(message)
            message = following
        return message

    async def _ask(self, known: Known, headers: dict[str, str], body_bytes: int) -> Verdict:
        return await self._desk.route(
            known.key,
            headers.get("x-request-id", ""),
            tenant=_tenant(headers),
            priority=_priority(headers),
            body_bytes=body_bytes,
        )

    def _tell(self, answer: Answer) -> bytes:
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
        return _bytes(response)


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


@lru_cache(ROUTES_KEPT)
def _routed(endpoints: tuple[str, ...], service_key: str) -> bytes:
    """Tell the destinations as header and as metadata, which is what the endpoint-picker protocol asks for."""
    response = ep.ProcessingResponse()
    value = ",".join(endpoints)
    response.request_headers.response.header_mutation.set_headers.append(_header(HEADER_DESTINATION, value))
    metadata = response.dynamic_metadata.get_or_create_struct(METADATA_NAMESPACE)
    metadata[HEADER_DESTINATION] = value
    metadata[HEADER_SERVED_BY] = service_key
    return _bytes(response)


def _rest(body: bytes, *, trailers: bool) -> Iterator[bytes]:
    """Yield what follows the destinations: the body as it came, in pieces, and its trailers."""
    for start in range(0, max(len(body), 1), CHUNK_BYTES):
        response = ep.ProcessingResponse()
        piece = response.request_body.response.body_mutation.streamed_response
        piece.body = body[start : start + CHUNK_BYTES]
        piece.end_of_stream = start + CHUNK_BYTES >= len(body)
        yield _bytes(response)
    if trailers:
        response = ep.ProcessingResponse()
        response.request_trailers.SetInParent()
        yield _bytes(response)


def _bytes(response: ep.ProcessingResponse) -> bytes:
    data: bytes = response.SerializeToString()
    return data
