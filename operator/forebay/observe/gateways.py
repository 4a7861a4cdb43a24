"""OBSERVE: one long-lived stream from every gateway pod, and the early wake when requests begin to wait."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.observe.scrape import NoAnswerError, read_lines
from forebay.wire.names import GATEWAY_SIGNALS_PORT, PATH_WATCH
from forebay.wire.signals import GatewaySignals, SignalsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import httpx

log = logging.getLogger(__name__)

SILENCE_S = 4.0  # a gateway sends a line each second; four missed ones are a dead connection
BACKOFF_FIRST_S = 0.1  # a restarted gateway holds requests at once; 100 ms of blindness are 100 ms of their TTFT
BACKOFF_MAX_S = 2.0


@dataclass(frozen=True, slots=True)
class GatewayReading:
    """The last line of one gateway, and when it came."""

    signals: GatewaySignals
    received_ms: int


def waits_more(before: GatewaySignals | None, after: GatewaySignals) -> bool:
    """Say whether somewhere more requests are held than one line before: the reason for an early tick."""
    earlier = before.services if before is not None and before.gateway_uid == after.gateway_uid else {}
    for key, service in after.services.items():
        old = earlier.get(key)
        if service.requests_held > (old.requests_held if old is not None else 0):
            return True
    return False


class GatewayStreams:
    """Keeps a stream open to every gateway pod.

    Parameters
    ----------
    wake
        Called when more requests wait than a line ago.

    Attributes
    ----------
    readings : dict
        Gateway pod uid to its last GatewayReading.
    garbage_total : int
        Lines so far that were no signals.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        now_ms: Callable[[], int],
        wake: Callable[[], None],
        port: int = GATEWAY_SIGNALS_PORT,
    ) -> None:
        self.readings: dict[str, GatewayReading] = {}
        self.garbage_total = 0
        self._client, self._now_ms, self._wake, self._port = client, now_ms, wake, port
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}

    def follow(self, targets: Mapping[str, str]) -> None:
        """Follow exactly these gateways (pod uid to pod IP); a changed address is a new stream."""
        wanted = set(targets.items())
        for key in [key for key in self._tasks if key not in wanted]:
            self._tasks.pop(key).cancel()
        for uid in self.readings.keys() - targets.keys():
            del self.readings[uid]
        for key in wanted - self._tasks.keys():
            self._tasks[key] = asyncio.create_task(self._run(*key), name=f"gateway {key[0]}")

    async def close(self) -> None:
        """End all streams."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, uid: str, ip: str) -> None:
        host = f"[{ip}]" if ":" in ip else ip
        delay_s = BACKOFF_FIRST_S
        while True:
            try:
                async for line in read_lines(self._client, f"http://{host}:{self._port}{PATH_WATCH}", SILENCE_S):
                    self._take(uid, line)
                    delay_s = BACKOFF_FIRST_S
            except (NoAnswerError, SignalsError) as error:
                log.info("gateway stream interrupted", extra={"uid": uid, "error": str(error)})
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
            delay_s = min(BACKOFF_MAX_S, delay_s * 2)

    def _take(self, uid: str, line: bytes) -> None:
        if not line:
            return
        try:
            signals = GatewaySignals.from_json(line)
        except SignalsError as error:
            self.garbage_total += 1
            log.warning("a gateway sent garbage", extra={"uid": uid, "error": str(error)})
            return
        if signals.gateway_uid != uid:
            return  # the address belongs to another pod by now; the next list of pods ends this stream
        before = self.readings.get(uid)
        self.readings[uid] = GatewayReading(signals, self._now_ms())
        if waits_more(before.signals if before is not None else None, signals):
            self._wake()
