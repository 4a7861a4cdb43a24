"""Tells what waits: one line a second, and at once when something begins to wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from forebay.wire.signals import GatewaySignals

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from forebay.gateway.counters import CountersFile
    from forebay.routing.book import Book

PERIOD_S = 1.0
# At most 20 lines a second: a thousand requests that begin to wait together are one piece of news.
GAP_S = 0.05


class Teller:
    """Makes the lines, once for all who listen."""

    def __init__(self, gateway_uid: str, book: Book, counters: CountersFile, now_ms: Callable[[], int]) -> None:
        self._uid, self._book, self._counters, self._now_ms = gateway_uid, book, counters, now_ms
        self._sequence = 0
        self._bell = asyncio.Event()
        self._line = b""
        self._told = asyncio.Event()

    def ring(self) -> None:
        """Say that something began to wait."""
        self._bell.set()

    async def run(self) -> None:
        """Make lines until cancelled."""
        while True:
            self._bell.clear()
            self.tell()
            await asyncio.sleep(GAP_S)
            try:
                async with asyncio.timeout(PERIOD_S - GAP_S):
                    await self._bell.wait()
            except TimeoutError:
                pass

    def tell(self) -> None:
        """Make a line now."""
        self._counters.save(self._book)  # first: a counter that was told never goes back
        self._sequence += 1
        services = self._book.signals(self._now_ms())
        self._line = GatewaySignals(self._uid, self._sequence, services).to_json() + b"\n"
        self._told.set()
        self._told = asyncio.Event()

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the latest line, then every new one; who is slow misses lines, never order."""
        while True:
            told = self._told
            if self._line:
                yield self._line
            await told.wait()
