"""OBSERVE: what every replica says of itself, asked once a second, and the one HTTP client of this room.

A reading that could not be renewed is kept and grows old; judging its age is core's business, so nothing here turns a
failure into a number.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from forebay.observe.gather import signal_row
from forebay.wire.names import PATH_STATE, SUPERVISOR_PORT
from forebay.wire.signals import ReplicaSignals, SignalsError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from forebay.core.units import I64

log = logging.getLogger(__name__)

TIMEOUT_S = 0.8  # less than the interval, so that sweeps never overlap: a slow replica costs only its own reading
CONCURRENCY = 128  # at 2 ms a request, 600 replicas take about 10 ms of waiting; more only opens more sockets at once
MAX_DOCUMENT_BYTES = 4096  # a state is at most 1 kB by contract; four times this is no longer a state
MAX_LINE_BYTES = 8 << 20  # a gateway's line holds every service: 10,000 x 300 B, and room for long names


class NoAnswerError(Exception):
    """A replica or gateway did not answer, or with an HTTP error: an absent reading, not a wrong one."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The last thing that a replica said, and when it came."""

    signals: ReplicaSignals
    row: I64  # the same as core's columns, made once
    received_ms: int

    def age_ms(self, now_ms: int) -> int | None:
        """Age of the engine's numbers; None: the supervisor has never read its engine."""
        sample = self.signals.sample_age_ms
        return None if sample is None else max(0, now_ms - self.received_ms) + sample


def open_client() -> httpx.AsyncClient:
    """Open the client for replicas and gateways. Pod addresses are direct: a proxy of the environment is wrong."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=4096, keepalive_expiry=15)
    return httpx.AsyncClient(limits=limits, timeout=TIMEOUT_S, trust_env=False, follow_redirects=False)


async def read_document(client: httpx.AsyncClient, url: str) -> bytes:
    """Get a small document.

    Raises
    ------
    NoAnswerError
        When nobody answered in time, or not with 200.
    SignalsError
        When the answer is longer than MAX_DOCUMENT_BYTES.
    """
    try:
        async with asyncio.timeout(TIMEOUT_S), client.stream("GET", url) as response:
            if response.status_code != httpx.codes.OK:
                raise NoAnswerError(f"HTTP {response.status_code}")
            parts = bytearray()
            async for part in response.aiter_raw():
                parts += part
                if len(parts) > MAX_DOCUMENT_BYTES:
                    raise SignalsError(f"more than {MAX_DOCUMENT_BYTES} bytes")
            return bytes(parts)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, TimeoutError) as error:
        raise NoAnswerError(repr(error)) from error


async def read_lines(client: httpx.AsyncClient, url: str, silence_s: float) -> AsyncIterator[bytes]:
    """Follow an endless stream of lines; `silence_s` without a byte ends it.

    Raises
    ------
    NoAnswerError
        When the stream ends, however it ends.
    SignalsError
        When a line is longer than MAX_LINE_BYTES.
    """
    timeout = httpx.Timeout(silence_s)
    try:
        async with client.stream("GET", url, timeout=timeout) as response:
            if response.status_code != httpx.codes.OK:
                raise NoAnswerError(f"HTTP {response.status_code}")
            rest = b""
            async for part in response.aiter_raw():
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    yield line
                if len(rest) > MAX_LINE_BYTES:
                    raise SignalsError(f"a line of more than {MAX_LINE_BYTES} bytes")
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise NoAnswerError(repr(error)) from error
    raise NoAnswerError("the stream ended")


class Scraper:
    """Asks all replicas at once.

    Attributes
    ----------
    readings : dict
        Pod uid to its last good Reading.
    garbage : dict
        Pod uid to what was wrong with its last answer, for those whose last answer was no state at all.
    garbage_total : int
        Such answers so far.
    """

    def __init__(self, client: httpx.AsyncClient, now_ms: Callable[[], int]) -> None:
        self.readings: dict[str, Reading] = {}
        self.garbage: dict[str, str] = {}
        self.garbage_total = 0
        self._client, self._now_ms = client, now_ms
        self._slots = asyncio.Semaphore(CONCURRENCY)

    async def sweep(self, targets: Mapping[str, str], port: int = SUPERVISOR_PORT) -> None:
        """Ask every target (pod uid to pod IP) once; forget the readings of those that are no longer targets."""
        for uid in self.readings.keys() - targets.keys():
            del self.readings[uid]
        for uid in self.garbage.keys() - targets.keys():
            del self.garbage[uid]
        await asyncio.gather(*(self._ask(uid, ip, port) for uid, ip in targets.items()))

    async def _ask(self, uid: str, ip: str, port: int) -> None:
        host = f"[{ip}]" if ":" in ip else ip
        async with self._slots:
            try:
                document = await read_document(self._client, f"http://{host}:{port}{PATH_STATE}")
                signals = ReplicaSignals.from_json(document)
            except NoAnswerError as error:
                log.debug("a replica did not answer", extra={"uid": uid, "error": str(error)})
                return
            except SignalsError as error:
                self.garbage_total += 1
                self.garbage[uid] = str(error)[:200]
                return
        if signals.pod_uid != uid:
            return  # the address was given to another pod since the last list; its numbers are not this replica's
        self.garbage.pop(uid, None)
        self.readings[uid] = Reading(signals, signal_row(signals), self._now_ms())
