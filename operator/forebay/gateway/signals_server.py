"""The HTTP side of the picker, for the operator, the kubelet and Prometheus; never for clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from forebay.wire.names import PATH_DRAINED, PATH_HEALTH, PATH_METRICS, PATH_READY, PATH_WATCH

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry

    from forebay.gateway.teller import Teller


class SignalsServer:
    """Serves /v1/watch, /v1/drained, /healthz, /readyz and /metrics.

    Parameters
    ----------
    not_ready
        Says why the gateway is not ready; empty when it is.
    """

    def __init__(
        self, teller: Teller, registry: CollectorRegistry, not_ready: Callable[[], str], drained: asyncio.Event
    ) -> None:
        self._teller, self._registry, self._not_ready, self._drained = teller, registry, not_ready, drained
        self._app = web.Application()
        self._app.router.add_get(PATH_WATCH, self._watch)
        self._app.router.add_get(PATH_DRAINED, self._wait_drained)
        self._app.router.add_get(PATH_HEALTH, self._health)
        self._app.router.add_get(PATH_READY, self._ready)
        self._app.router.add_get(PATH_METRICS, self._metrics)
        self._runner = web.AppRunner(self._app, access_log=None, shutdown_timeout=1.0)

    async def start(self, host: str, port: int) -> None:
        """Listen."""
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()

    async def stop(self) -> None:
        """End all streams and stop listening."""
        await self._runner.cleanup()

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        async for line in self._teller.lines():
            try:
                await response.write(line)
            except ConnectionResetError:
                break
        return response

    async def _wait_drained(self, _: web.Request) -> web.Response:
        await self._drained.wait()
        return web.Response(text="drained")

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _ready(self, _: web.Request) -> web.Response:
        why = self._not_ready()
        return web.Response(status=503, text=why) if why else web.Response(text="ok")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
