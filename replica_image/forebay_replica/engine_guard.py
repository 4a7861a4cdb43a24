"""ASGI middleware inside vLLM's own server: whoever comes over the network reaches inference, and nothing else.

vLLM in development mode serves /sleep, /wake_up, /collective_rpc, /update_weights and twenty more routes on the port
that clients use, and every version adds some; so this is a list of what is open, and all else is the supervisor's
alone: from loopback, with the token that the supervisor made for this one process. Loaded by `--middleware`,
therefore nothing but the standard library is imported here.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

ENV_TOKEN = "FOREBAY_ENGINE_TOKEN"  # noqa: S105 - a name, not a secret
HEADER_TOKEN = "x-forebay-engine-token"  # noqa: S105 - a name, not a secret
MIDDLEWARE = f"{__name__}.EngineGuard"

# What the gateway forwards, what a foreign gateway asks for health, and what a Prometheus of the platform team scrapes.
OPEN_PATHS = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/models",
        "/v1/responses",
        "/health",
        "/metrics",
    }
)
_REFUSAL = b'{"error":{"message":"Not served on this port.","type":"not_found_error","param":null,"code":404}}'
_POLICY_VIOLATION = 1008  # close code of RFC 6455, section 7.4.1

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class EngineGuard:
    """Refuses what is not open to its peer with 404, as if it did not exist."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._token = os.environ.get(ENV_TOKEN, "").encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on or answer it."""
        if scope["type"] == "lifespan" or self._allows(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        else:
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(_REFUSAL)).encode())]
            await send({"type": "http.response.start", "status": 404, "headers": headers})
            await send({"type": "http.response.body", "body": _REFUSAL})

    def _allows(self, scope: Scope) -> bool:
        if scope["type"] == "http" and scope["path"] in OPEN_PATHS:
            return True
        return _is_loopback(scope.get("client")) and self._bears_token(scope["headers"])

    def _bears_token(self, headers: list[tuple[bytes, bytes]]) -> bool:
        given = [value for name, value in headers if name == HEADER_TOKEN.encode()]
        return bool(self._token) and len(given) == 1 and hmac.compare_digest(given[0], self._token)


def _is_loopback(client: tuple[str, int] | None) -> bool:
    if client is None:
        return False
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
