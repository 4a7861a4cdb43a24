"""Gateway streams against a real HTTP server on loopback."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from forebay.observe.gateways import GatewayStreams, waits_more
from forebay.observe.scrape import open_client
from forebay.wire.names import PATH_WATCH
from forebay.wire.signals import GatewayService, GatewaySignals

if TYPE_CHECKING:
    from collections.abc import Callable


def line(uid: str, sequence: int, held: int) -> GatewaySignals:
    row = GatewayService(held, held * 100, 0, 0, held, held * 100, held, 0, 0, 0, 0)
    return GatewaySignals(uid, sequence, {"ns/a": row})


def test_waiting_more_is_what_wakes() -> None:
    table = {
        "the first line with a held request": (None, line("g", 1, 1), True),
        "the first line without one": (None, line("g", 1, 0), False),
        "a queue that grows": (line("g", 1, 1), line("g", 2, 2), True),
        "a queue that shrinks": (line("g", 1, 2), line("g", 2, 1), False),
        "a queue that stands": (line("g", 1, 2), line("g", 2, 2), False),
        "another gateway at the same place": (line("g", 1, 5), line("h", 1, 1), True),
    }
    for sentence, (before, after, wakes) in table.items():
        assert waits_more(before, after) is wakes, sentence


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - waits for a state that has no event of its own
            await asyncio.sleep(0.01)


async def test_a_cut_stream_is_opened_again_and_garbage_is_counted() -> None:
    connections = 0
    held_open = asyncio.Event()

    async def watch(request: web.Request) -> web.StreamResponse:
        nonlocal connections
        connections += 1
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(line("g1", 1, connections).to_json() + b"\nnot json\n")
        if connections > 1:
            await held_open.wait()
        return response

    app = web.Application()
    app.router.add_get(PATH_WATCH, watch)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = int(runner.addresses[0][1])
    wakes = 0

    def wake() -> None:
        nonlocal wakes
        wakes += 1

    async with open_client() as client:
        streams = GatewayStreams(client, lambda: 77, wake, port)
        streams.follow({"g1": "127.0.0.1"})
        await until(lambda: connections == 2 and streams.garbage_total == 2)
        assert streams.readings["g1"].signals.services["ns/a"].requests_held == 2
        assert streams.readings["g1"].received_ms == 77
        assert wakes == 2
        streams.follow({})
        assert streams.readings == {}
        await streams.close()
    held_open.set()
    await runner.cleanup()
