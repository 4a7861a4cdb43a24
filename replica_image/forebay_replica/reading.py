"""The last look at an engine's metrics: made on demand, shared by everybody who asks at once, honest about its age."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay_replica.engine_client import EngineRefusedError
from forebay_replica.metrics_page import EnginePage, MetricsPageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

FRESH_MS = 250  # four looks a second at most, however many ask
PATIENCE_MS = 300  # an operator waits 800 ms for the whole answer; after this it gets the older numbers and their age


@dataclass(frozen=True, slots=True)
class Reading:
    """One page, and when it was read."""

    page: EnginePage
    at_ms: int


class EngineReader:
    """Keeps the last reading. A look that fails leaves it as it is: it only grows old."""

    def __init__(self, read: Callable[[], Awaitable[EnginePage]], now_ms: Callable[[], int]) -> None:
        self._read = read
        self._now_ms = now_ms
        self._look: asyncio.Task[None] | None = None
        self.last: Reading | None = None
        self.failures_total = 0

    async def latest(self) -> Reading | None:
        """Return a reading of the last FRESH_MS, or after PATIENCE_MS the last one there is."""
        if self.last is not None and self._now_ms() - self.last.at_ms < FRESH_MS:
            return self.last
        if self._look is None or self._look.done():
            self._look = asyncio.create_task(self._renew())
        # Waited for, not awaited: when one who asks goes away, the others still get their answer.
        await asyncio.wait({self._look}, timeout=PATIENCE_MS / 1000)
        return self.last

    async def close(self) -> None:
        """Give up a look that is still under way."""
        if self._look is not None:
            self._look.cancel()
            await asyncio.wait({self._look})

    async def _renew(self) -> None:
        asked_ms = self._now_ms()  # the numbers may be as old as the question
        try:
            page = await self._read()
        except (EngineRefusedError, MetricsPageError) as error:
            self.failures_total += 1
            log.debug("metrics page not read", extra={"error": str(error)})
        else:
            self.last = Reading(page, asked_ms)
