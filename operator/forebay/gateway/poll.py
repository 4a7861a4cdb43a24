"""Reads the state of every serving replica each second, and of a promoted one at once."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import aiohttp

from forebay.wire.names import PATH_STATE
from forebay.wire.signals import MAX_STATE_BYTES, ReplicaSignals, SignalsError

if TYPE_CHECKING:
    from forebay.gateway.desk import Desk
    from forebay.gateway.settings import Ports
    from forebay.gateway.table import Pod, Table

log = logging.getLogger(__name__)

PERIOD_S = 1.0
TIMEOUT_S = 0.9  # the next poll comes anyway; a late answer would only be older
AT_ONCE_MAX = 32  # open polls: 1,000 replicas within their second at 20 ms each


class Poller:
    """Keeps the book informed of the replicas' own numbers."""

    def __init__(self, http: aiohttp.ClientSession, table: Table, desk: Desk, ports: Ports) -> None:
        self._http, self._table, self._desk, self._port = http, table, desk, ports.supervisor
        self._slots = asyncio.Semaphore(AT_ONCE_MAX)
        self._silent: set[str] = set()

    async def run(self) -> None:
        """Poll until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            started_s = loop.time()
            pods = list(self._table.serving())
            self._silent &= {pod.uid for pod in pods}
            await asyncio.gather(*(self._poll(pod) for pod in pods))
            await self._table.wait_for_promotion(max(0.0, started_s + PERIOD_S - loop.time()))

    async def _poll(self, pod: Pod) -> None:
        host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        async with self._slots:
            try:
                timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
                async with self._http.get(f"http://{host}:{self._port}{PATH_STATE}", timeout=timeout) as response:
                    report = ReplicaSignals.from_json(await response.content.read(4 * MAX_STATE_BYTES))
            except (aiohttp.ClientError, TimeoutError, OSError, SignalsError) as error:
                # The book sees a report that grows old. One line a silence, not one a second.
                if pod.uid not in self._silent:
                    self._silent.add(pod.uid)
                    log.warning("replica does not report", extra={"pod": pod.uid, "error": repr(error)})
                return
        self._silent.discard(pod.uid)
        if report.pod_uid == pod.uid:  # else the address belongs to another pod by now
            self._desk.observe(pod.key, report)
