"""The part of OpenAI's API that the gateway speaks itself: its paths, its errors, its list of models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from forebay.routing.service import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable

PATH_MODELS = "/v1/models"
# What clients may reach of an engine. Everything else, /sleep and /collective_rpc first, is a 404 of Envoy's own.
PATHS_POST = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
SERVICE_PREFIX = "/svc/"

# Seconds after which another try makes sense: a replica's batch turns over within seconds, a cold start takes a minute.
RETRY_BUSY_S = 2
RETRY_STARTING_S = 15


@dataclass(frozen=True, slots=True)
class Answer:
    """A response of our own."""

    status: int
    body: bytes
    retry_after_s: int | None = None
    reason: str = ""  # for logs and metrics


def error(status: int, message: str, kind: str, code: str, retry_after_s: int | None = None) -> Answer:
    """Build an error as OpenAI's clients understand it."""
    body = orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})
    return Answer(status, body, retry_after_s, code)


def not_json() -> Answer:
    """Build the answer to a body that is no JSON object."""
    return error(400, "the request body is not a JSON object", "invalid_request_error", "invalid_json")


def no_model() -> Answer:
    """Build the answer to a body without a model."""
    return error(400, 'the request lacks "model", a text', "invalid_request_error", "missing_model")


def unknown_model(name: str) -> Answer:
    """Build the answer to a model that nobody serves; the name is cut, since it is the client's text."""
    return error(
        404,
        f"the model {name[:253]!r} does not exist; GET {PATH_MODELS} lists those that do",
        "invalid_request_error",
        "model_not_found",
    )


def too_large(limit_bytes: int) -> Answer:
    """Build the answer to a body over the limit."""
    return error(
        413, f"the request body is larger than {limit_bytes} bytes", "invalid_request_error", "request_too_large"
    )


def refused(why: Refusal) -> Answer:
    """Build the answer to a request that was not let in, or waited in vain."""
    match why:
        case Refusal.QUEUE_FULL:
            return error(429, "too many requests wait for this model", "rate_limit_error", "queue_full", RETRY_BUSY_S)
        case Refusal.NOT_STARTED:
            return error(
                503,
                "no replica of this model started in time",
                "service_unavailable_error",
                "model_not_started",
                RETRY_STARTING_S,
            )
        case Refusal.STILL_BUSY:
            return error(
                503,
                "all replicas of this model are busy",
                "service_unavailable_error",
                "model_busy",
                RETRY_BUSY_S,
            )
        case Refusal.SERVICE_GONE:
            return error(404, "the model was deleted", "invalid_request_error", "model_not_found")
        case Refusal.GATEWAY_LEAVES:
            return error(503, "this gateway is going away", "service_unavailable_error", "gateway_leaves", RETRY_BUSY_S)


def models(rows: Iterable[tuple[str, str, int]]) -> Answer:
    """List models: (name, owner, created in seconds since 1970)."""
    data: list[dict[str, Any]] = [
        {"id": name, "object": "model", "created": created, "owned_by": owner} for name, owner, created in rows
    ]
    return Answer(200, orjson.dumps({"object": "list", "data": data}), reason="models")
