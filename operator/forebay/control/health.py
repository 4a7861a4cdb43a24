"""The operator's own ears: /healthz from the state of its loop, /readyz, and /metrics."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from forebay.wire.names import PATH_HEALTH, PATH_METRICS, PATH_READY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


async def serve(
    port: int, alive: Callable[[], str], ready: Callable[[], str], metrics: Callable[[], bytes]
) -> web.AppRunner:
    """Serve until the runner's `cleanup`.

    Parameters
    ----------
    port
        0: any free one, see the runner's `addresses`.
    alive, ready
        Say what is wrong; the empty text is 200, anything else 503.
    metrics
        Renders the page, in a thread of its own.
    """
    app = web.Application()

    def answer(check: Callable[[], str]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(_: web.Request) -> web.Response:
            wrong = check()
            return web.Response(text=wrong or "ok", status=503 if wrong else 200)

        return handle

    async def page(_: web.Request) -> web.Response:
        # Beside the loop: the page of 10,000 services takes longer than a tick.
        body = await asyncio.to_thread(metrics)
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    app.router.add_get(PATH_HEALTH, answer(alive))
    app.router.add_get(PATH_READY, answer(ready))
    app.router.add_get(PATH_METRICS, page)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner
