"""The scraper against a real HTTP server on loopback."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from forebay.observe.scrape import MAX_DOCUMENT_BYTES, Scraper, open_client
from forebay.wire.names import PATH_STATE
from forebay.wire.signals import ReplicaSignals

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Serve = Callable[[Callable[[web.Request], Awaitable[web.StreamResponse]]], Awaitable[int]]

IP = "127.0.0.1"


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000

    def __call__(self) -> int:
        return self.now


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    # A machine that builds something beside may answer late; only the test of the timeout is about the timeout.
    monkeypatch.setattr("forebay.observe.scrape.TIMEOUT_S", 30.0)


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    runners: list[web.AppRunner] = []

    async def start(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> int:
        app = web.Application()
        app.router.add_get(PATH_STATE, answer)
        runner = web.AppRunner(app, shutdown_timeout=0)
        runners.append(runner)
        await runner.setup()
        site = web.TCPSite(runner, IP, 0)
        await site.start()
        return int(runner.addresses[0][1])

    yield start
    for runner in runners:
        await runner.cleanup()


def state(uid: str = "u1", **more: int) -> bytes:
    return ReplicaSignals(pod_uid=uid, phase="ready", sample_age_ms=20, **more).to_json()


async def test_a_reading_is_kept_and_grows_old_while_the_replica_does_not_answer(serve: Serve) -> None:
    broken = False

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=500) if broken else web.Response(body=state(requests_running=3))

    port, clock = await serve(answer), Clock()
    async with open_client() as client:
        scraper = Scraper(client, clock)
        await scraper.sweep({"u1": IP}, port)
        assert scraper.readings["u1"].age_ms(clock()) == 20
        broken = True
        clock.now += 2500
        await scraper.sweep({"u1": IP}, port)
        assert scraper.readings["u1"].signals.requests_running == 3
        assert scraper.readings["u1"].age_ms(clock()) == 2520
        assert scraper.garbage_total == 0


@pytest.mark.parametrize(
    ("sentence", "body"),
    [
        ("a page that is not JSON", b"<html>"),
        ("a negative counter", b'{"pod_uid":"u1","phase":"ready","requests_running":-1}'),
        ("no identity", b'{"phase":"ready"}'),
        ("a document without end", b" " * (MAX_DOCUMENT_BYTES + 1)),
    ],
)
async def test_garbage_is_counted_and_never_becomes_a_reading(serve: Serve, sentence: str, body: bytes) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body)

    port = await serve(answer)
    async with open_client() as client:
        scraper = Scraper(client, Clock())
        await scraper.sweep({"u1": IP}, port)
        assert scraper.readings == {}, sentence
        assert scraper.garbage_total == 1
        assert "u1" in scraper.garbage


async def test_a_reused_address_gives_no_reading(serve: Serve) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=state("another"))

    port = await serve(answer)
    async with open_client() as client:
        scraper = Scraper(client, Clock())
        await scraper.sweep({"u1": IP}, port)
        assert scraper.readings == {}
        assert scraper.garbage_total == 0


async def test_a_replica_that_is_gone_is_forgotten_by_its_uid(serve: Serve) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=state())

    port = await serve(answer)
    async with open_client() as client:
        scraper = Scraper(client, Clock())
        await scraper.sweep({"u1": IP}, port)
        await scraper.sweep({}, port)
        assert scraper.readings == {}


async def test_a_hanging_replica_does_not_hold_the_sweep_beyond_its_timeout(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.observe.scrape.TIMEOUT_S", 0.05)

    released = asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        await released.wait()
        return web.Response()

    port = await serve(answer)
    async with open_client() as client:
        scraper = Scraper(client, Clock())
        await asyncio.wait_for(scraper.sweep({"u1": IP, "u2": IP}, port), 10)
        assert scraper.readings == {}
    released.set()
