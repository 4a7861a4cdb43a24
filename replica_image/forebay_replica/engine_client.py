"""The supervisor's side of the engine's HTTP port, on loopback."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import aiohttp

from forebay_replica.engine_guard import HEADER_TOKEN
from forebay_replica.metrics_page import read_page

if TYPE_CHECKING:
    from forebay_replica.metrics_page import EnginePage

HEALTH_TIMEOUT_S = 2.0
PAGE_TIMEOUT_S = 5.0
MAX_PAGE_BYTES = 8 << 20  # 100 kB a rank: eighty ranks
# Sleeping copies the weights to host memory, waking back: 1 to 6 s measured by others for up to 235 B parameters.
SWITCH_TIMEOUT_S = 120.0


class EngineRefusedError(Exception):
    """The engine did not do what it was asked for, or did not answer."""


class EngineClient:
    """Asks one engine. Every method raises EngineRefusedError when the engine gives no usable answer."""

    def __init__(self, port: int, token: str) -> None:
        self._session = aiohttp.ClientSession(
            f"http://127.0.0.1:{port}", headers={HEADER_TOKEN: token}, trust_env=False, raise_for_status=False
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def check_health(self) -> None:
        """Return if the engine says that it is well."""
        await self._ask("GET", "/health", HEALTH_TIMEOUT_S)

    async def page(self) -> EnginePage:
        """Read the engine's metrics.

        Raises
        ------
        MetricsPageError
            When there is an answer that is no page of an engine.
        """
        return read_page(await self._ask("GET", "/metrics", PAGE_TIMEOUT_S))

    async def rehearse(self, model: str, timeout_s: float) -> None:
        """Have a first token made, so that no client pays for what engines do only once.

        The first request after a start or a wake takes 5 to 7 times as long (autotuning, lazily loaded kernels). Two
        tokens, so that a step of prefill and one of decode have run. A model without tokens is asked for an embedding.
        """
        try:
            await self._ask("POST", "/v1/completions", timeout_s, {"model": model, "prompt": "Hello", "max_tokens": 2})
        except _NoSuchRouteError:
            await self._ask("POST", "/v1/embeddings", timeout_s, {"model": model, "input": "Hello"})

    async def sleep(self) -> None:
        """Ask for the GPU memory back, the weights kept in host memory (level 1)."""
        await self._ask("POST", "/sleep?level=1", SWITCH_TIMEOUT_S)

    async def wake(self) -> None:
        """Ask it to take its GPU memory again."""
        await self._ask("POST", "/wake_up", SWITCH_TIMEOUT_S)

    async def _ask(self, method: str, path: str, timeout_s: float, body: dict[str, Any] | None = None) -> bytes:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.request(method, path, json=body, timeout=timeout) as response:
                answer = await response.content.read(MAX_PAGE_BYTES)
                while not response.content.at_eof() and len(answer) < MAX_PAGE_BYTES:
                    answer += await response.content.read(MAX_PAGE_BYTES - len(answer))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EngineRefusedError(f"{method} {path}: {error!r}") from error
        if response.status in (HTTPStatus.NOT_FOUND, HTTPStatus.NOT_IMPLEMENTED):
            raise _NoSuchRouteError(f"{method} {path}: HTTP {response.status}")
        if response.status != HTTPStatus.OK:
            raise EngineRefusedError(f"{method} {path}: HTTP {response.status}")
        return answer


class _NoSuchRouteError(EngineRefusedError):
    pass
