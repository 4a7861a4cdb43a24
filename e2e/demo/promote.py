"""How long a promoted replica takes until it works: from its pod's label to the first request in its engine.

A watch on pods shows the label turn from warm to serving, a few milliseconds after the operator decided so. From then
on the engine's own page is asked every 20 ms, until it has a request. Beyond what the gateway needs, that includes the
time until there is a request to be sent; within a burst that is next to nothing, and later promotions may find none.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp

from forebay.wire.names import ENGINE_PORT, PATH_METRICS

if TYPE_CHECKING:
    from collections.abc import Callable

ASK_EVERY_S = 0.02
GIVE_UP_S = 10
MEASURED = (
    "from the watch event in which the pod's label became serving to the first request in its engine, asked every "
    f"{ASK_EVERY_S * 1000:.0f} ms; promotions without a request within {GIVE_UP_S} s are not counted"
)
_RUNNING = b"vllm:num_requests_running{"


@dataclass(frozen=True)
class Promotion:
    """A warm replica that began to serve."""

    service: str
    pod: str
    at_ms: int  # since the traffic began
    took_ms: int


class PromotionWatch:
    """Follows every promoted replica to its first request."""

    def __init__(self, http: aiohttp.ClientSession, now_ms: Callable[[], int], port: int = ENGINE_PORT) -> None:
        self.promotions: list[Promotion] = []
        self._http, self._now_ms, self._port = http, now_ms, port
        self._tasks: set[asyncio.Task[None]] = set()

    def follow(self, service: str, pod: str, address: str) -> None:
        """Begin to ask a replica that was promoted just now."""
        task = asyncio.create_task(self._follow(service, pod, address))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop asking."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, service: str, pod: str, address: str) -> None:
        at_ms = self._now_ms()
        try:
            async with asyncio.timeout(GIVE_UP_S):
                while not await self._works(address):  # noqa: ASYNC110 - another process has no event for us
                    await asyncio.sleep(ASK_EVERY_S)
        except TimeoutError:
            return
        self.promotions.append(Promotion(service, pod, at_ms, self._now_ms() - at_ms))

    async def _works(self, address: str) -> bool:
        try:
            async with self._http.get(f"http://{address}:{self._port}{PATH_METRICS}") as response:
                return has_work(await response.read())
        except (aiohttp.ClientError, OSError):
            return False


def has_work(page: bytes) -> bool:
    """Say whether an engine's page tells of a running request."""
    return any(line.startswith(_RUNNING) and float(line.rpartition(b" ")[2]) > 0 for line in page.splitlines())
