"""Counters that outlive the picker's process within its pod: written before they are told, read at the start."""

from __future__ import annotations

import logging
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

import orjson

from forebay.gateway.endpoints import replace_file
from forebay.gateway.envoy_admin import EnvoyError
from forebay.routing.service import Counters, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forebay.gateway.desk import Desk
    from forebay.gateway.envoy_admin import EnvoyAdmin
    from forebay.gateway.metrics import Metrics
    from forebay.routing.book import Book

log = logging.getLogger(__name__)

# A sent request that Envoy no longer runs should have been reported within 4 ms; after ten seconds its entry is lost.
OVERDUE_MS = 10_000


class CountersFile:
    """The file in the directory that picker and Envoy share."""

    def __init__(self, path: Path, gateway_uid: str) -> None:
        self._path, self._uid = path, gateway_uid

    def save(self, book: Book) -> None:
        """Write all counters."""
        services = {key: asdict(service.counters) for key, service in book.services.items()}
        try:
            replace_file(self._path, orjson.dumps({"gateway_uid": self._uid, "services": services}))
        except OSError as error:
            log.warning("counters could not be saved", extra={"error": repr(error)})

    def load(self) -> dict[str, Counters]:
        """Read what a former process of this pod left; empty at the pod's first start."""
        try:
            document = orjson.loads(self._path.read_bytes())
            if document["gateway_uid"] != self._uid:
                return {}
            names = {f.name for f in fields(Counters)}
            return {
                key: Counters(**{name: int(value) for name, value in row.items() if name in names})
                for key, row in document["services"].items()
            }
        except FileNotFoundError:
            return {}
        except (OSError, orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
            log.warning("counters of the former process are lost", extra={"error": repr(error)})
            return {}


async def restore(
    book: Book, former: dict[str, Counters], admin: EnvoyAdmin, metrics: Metrics, now_ms: Callable[[], int]
) -> None:
    """Go on where the former process ended: its counters, and what Envoy still runs of it.

    An Envoy that does not answer runs nothing: the whole pod is starting.
    """
    try:
        running = (await admin.running()).requests
    except EnvoyError:
        running = {}
    for key, service in book.services.items():
        counters = former.get(key, Counters())
        still = {uid: running[r.endpoint] for uid, r in service.replicas.items() if running.get(r.endpoint)}
        unseen = book.restore(key, counters, still, now_ms())
        metrics.unseen_ends.inc(unseen)
        if unseen or still:
            log.warning(
                "former process continued",
                extra={"service": key, "still_running": sum(still.values()), "ended_unseen": unseen},
            )


def overdue(book: Book, running: dict[str, int], now_ms: int) -> list[str]:
    """Find sent requests that Envoy does not run any more although nobody reported their end.

    Parameters
    ----------
    running
        "ip:port" to requests that run there, by Envoy.

    Returns
    -------
    list
        As many ids as there are more in the book than in Envoy, the oldest of the replicas with a surplus first. A
        request that was sent again to another replica is a surplus at one and missing at the other, hence the sum
        decides.
    """
    late: dict[str, list[str]] = {}
    for request_id, endpoint in book.sent_before(now_ms - OVERDUE_MS):
        late.setdefault(endpoint, []).append(request_id)
    surplus = book.in_flight - sum(running.values())
    lost: list[str] = []
    for endpoint, names in sorted(late.items()):
        here = min(len(names), max(0, len(names) - running.get(endpoint, 0)), surplus - len(lost))
        lost += names[: max(0, here)]
    return lost


class Reconciler:
    """Ends requests whose end was never reported, so that nothing is in flight for ever."""

    def __init__(self, desk: Desk, admin: EnvoyAdmin, metrics: Metrics, now_ms: Callable[[], int]) -> None:
        self._desk, self._admin, self._metrics, self._now_ms = desk, admin, metrics, now_ms
        self._suspects: set[str] = set()

    async def check(self) -> None:
        """Compare book and Envoy; what is missing in two checks in a row is ended as failed: nobody saw it succeed."""
        book = self._desk.book
        try:
            running = (await self._admin.running()).requests
        except EnvoyError:
            return  # it restarts, or is too busy: the next check knows more
        found = set(overdue(book, running, self._now_ms()))
        for request_id in sorted(found & self._suspects):
            self._desk.end(request_id, "", Outcome.FAILED)
            self._metrics.unseen_ends.inc()
            log.warning("the end of a request was never reported", extra={"request_id": request_id})
        self._suspects = found - self._suspects
        for key, service in list(book.services.items()):
            for replica in [r for r in service.replicas.values() if r.adopted > running.get(r.endpoint, 0)]:
                for _ in range(replica.adopted - running.get(replica.endpoint, 0)):
                    self._desk.end("", replica.endpoint, Outcome.FAILED)
                    self._metrics.unseen_ends.inc()
                log.warning("ends of adopted requests were never reported", extra={"service": key})
