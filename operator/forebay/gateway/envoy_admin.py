"""What the picker asks of its Envoy, on loopback: does it answer, what does it run, let its connections end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp
import orjson

from forebay.gateway.envoy import POOL

if TYPE_CHECKING:
    from forebay.gateway.settings import Ports

TIMEOUT_S = 2  # on loopback; measured 6 ms


class EnvoyError(Exception):
    """Envoy did not answer, or not as expected."""


@dataclass(frozen=True, slots=True)
class Running:
    """What Envoy says of its endpoints."""

    requests: dict[str, int]  # "ip:port" of every endpoint that it knows to requests that run there

    @property
    def total(self) -> int:
        """All requests that run."""
        return sum(self.requests.values())


class EnvoyAdmin:
    """A client of Envoy's admin interface."""

    def __init__(self, http: aiohttp.ClientSession, ports: Ports) -> None:
        self._http, self._url = http, f"http://127.0.0.1:{ports.envoy_admin}"

    async def is_ready(self) -> bool:
        """Say whether Envoy serves."""
        try:
            await self._call("GET", "/ready")
        except EnvoyError:
            return False
        return True

    async def running(self) -> Running:
        """Ask which endpoints Envoy knows and how many requests run on each.

        Raises
        ------
        EnvoyError
            When it does not answer as expected.
        """
        try:
            document = orjson.loads(await self._call("GET", "/clusters?format=json"))
            counts: dict[str, int] = {}
            for cluster in document.get("cluster_statuses", ()):
                for host in cluster.get("host_statuses", ()) if cluster["name"] == POOL else ():
                    address = host["address"]["socket_address"]
                    # A value of zero is left out, and a value is JSON text since it may exceed 2^53.
                    active = next((int(s.get("value", 0)) for s in host["stats"] if s["name"] == "rq_active"), 0)
                    counts[f"{address['address']}:{address['port_value']}"] = active
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise EnvoyError(f"clusters: {error!r}") from error
        return Running(counts)

    async def drain(self) -> None:
        """Ask clients to close: responses carry `connection: close` from now on; new connections still work.

        Raises
        ------
        EnvoyError
            When it does not answer.
        """
        await self._call("POST", "/drain_listeners?graceful&skip_exit")

    async def _call(self, method: str, path: str) -> bytes:
        try:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
            async with self._http.request(method, self._url + path, timeout=timeout) as response:
                body = await response.read()
                if response.status != 200:  # noqa: PLR2004 - HTTP's OK
                    raise EnvoyError(f"{path}: HTTP {response.status}")
                return body
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EnvoyError(f"{path}: {error!r}") from error
