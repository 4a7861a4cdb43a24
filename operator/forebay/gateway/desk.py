"""The desk in front of the book: here coroutines wait, and here they are told where to go."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeAlias

from forebay.routing.service import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.gateway.metrics import Metrics
    from forebay.routing.book import Book, Route
    from forebay.routing.service import Outcome, ServiceSpec
    from forebay.wire.signals import ReplicaSignals

Verdict: TypeAlias = "Route | Refusal"

# How often patience is checked and time alone may make room (a report that grew old): far below a second of patience.
TICK_S = 0.1


class Desk:
    """Requests come to `route` and wait there.

    Parameters
    ----------
    ring
        Called whenever a request begins to wait.
    """

    def __init__(self, book: Book, now_ms: Callable[[], int], metrics: Metrics, ring: Callable[[], None]) -> None:
        self.book = book
        self._now_ms, self._metrics, self._ring = now_ms, metrics, ring
        self._waiters: dict[str, asyncio.Future[Verdict]] = {}

    async def route(self, key: str, request_id: str, *, tenant: str, priority: int | None, body_bytes: int) -> Verdict:
        """Wait for a replica.

        Returns
        -------
        Route or Refusal
            Where to send the request, or why nowhere.

        Raises
        ------
        asyncio.CancelledError
            The client left; the book knows.
        """
        started_ns = time.perf_counter_ns()
        waiter: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._waiters[request_id] = waiter
        try:
            admission = self.book.admit(
                key, request_id, tenant=tenant, priority=priority, body_bytes=body_bytes, now_ms=self._now_ms()
            )
            for evicted in admission.evicted:
                self._answer(evicted, Refusal.QUEUE_FULL)
            if not admission.admitted:
                return Refusal.QUEUE_FULL
            self.pump(key)
            self._metrics.pick_seconds.observe((time.perf_counter_ns() - started_ns) / 1e9)
            if not waiter.done():
                self._ring()
            return await waiter
        except asyncio.CancelledError:
            # Also when a route was already decided: nobody is left to carry it out.
            self.book.abort(request_id, self._now_ms())
            self.pump(key)
            raise
        finally:
            del self._waiters[request_id]

    def pump(self, key: str) -> None:
        """Send on whoever can go."""
        for route in self.book.release(key, self._now_ms()):
            self._metrics.queue_seconds.labels(key).observe(route.waited_ms / 1_000)
            self._answer(route.request_id, route)

    def end(self, request_id: str, endpoint: str, outcome: Outcome) -> None:
        """Take the end of a request in, by its id, or, of one from before this process, by its replica's address."""
        now_ms = self._now_ms()
        key = self.book.end(request_id, outcome, now_ms) or self.book.end_adopted(endpoint, outcome, now_ms)
        if key is not None:
            self.pump(key)

    async def tick_forever(self) -> None:
        """Refuse those whose patience is over."""
        while True:
            await asyncio.sleep(TICK_S)
            for key in self.book.holding:
                for request_id, why in self.book.expire(key, self._now_ms()):
                    self._answer(request_id, why)
                self.pump(key)

    def refuse_all(self) -> int:
        """Refuse everything that waits, because this gateway goes away; return how many."""
        waiting = [name for key in self.book.holding for name in self.book.services[key].queue.waiting]
        for request_id in waiting:
            self.book.refuse(request_id)
            self._answer(request_id, Refusal.GATEWAY_LEAVES)
        return len(waiting)

    # --- what the table tells ---------------------------------------------------------------------------------------

    def set_service(self, spec: ServiceSpec) -> None:
        """Make or change a service."""
        self.book.set_service(spec, self._now_ms())

    def drop_service(self, key: str) -> None:
        """Forget a service."""
        for request_id in self.book.drop_service(key):
            self._answer(request_id, Refusal.SERVICE_GONE)

    def set_replica(self, key: str, uid: str, endpoint: str, *, routable: bool) -> None:
        """Make or change a replica; a promoted one takes its share of the queue at once."""
        self.book.set_replica(key, uid, endpoint, routable=routable, now_ms=self._now_ms())
        self.pump(key)

    def drop_replica(self, key: str, uid: str) -> None:
        """Forget a replica."""
        self.book.drop_replica(key, uid, self._now_ms())

    def observe(self, key: str, report: ReplicaSignals) -> None:
        """Take a replica's report in."""
        self.book.observe(key, report, self._now_ms())
        self.pump(key)

    def _answer(self, request_id: str, verdict: Verdict) -> None:
        waiter = self._waiters.get(request_id)
        if waiter is not None and not waiter.done():
            waiter.set_result(verdict)
