"""From pod changes to spans of states, and from those to promote latencies."""

import asyncio
from typing import Any

import aiohttp
from aiohttp import web

from e2e.demo.fleet import GONE, PROMOTED, FleetLog, Span
from e2e.demo.promote import Promotion, PromotionWatch
from forebay.observe.cluster import Change
from forebay.wire.names import LABEL_SERVICE, LABEL_STATE

CHAT = "chat/chat-8b"
GPU = "nvidia.com/gpu"


def pod(uid: str, state: str | None, *, node: str | None = "node-1", **meta: Any) -> dict[str, Any]:
    labels = {LABEL_SERVICE: "chat-8b"} | ({LABEL_STATE: state} if state else {})
    return {
        "metadata": {"uid": uid, "name": f"chat-8b-{uid}", "namespace": "chat", "labels": labels, **meta},
        "spec": {"nodeName": node, "containers": [{"resources": {"limits": {GPU: "1", "cpu": "2"}}}]},
        "status": {"podIP": f"10.88.0.{uid}", "phase": "Running"},
    }


def life(*changes: tuple[Change, dict[str, Any], int]) -> FleetLog:
    log = FleetLog(GPU)
    for change, one, at_ms in changes:
        log.on_pod(change, one, at_ms)
    return log


def test_a_life_is_a_row_of_spans() -> None:
    log = life(
        (Change.CHANGED, pod("1", None, node=None), -5000),  # pending: no node, so no GPU
        (Change.CHANGED, pod("1", "starting"), -4000),
        (Change.CHANGED, pod("1", "warm"), 100),
        (Change.CHANGED, pod("1", "warm"), 200),  # the same again
        (Change.CHANGED, pod("1", "serving"), 300),
        (Change.CHANGED, pod("1", "serving", deletionTimestamp="now"), 900),
        (Change.DELETED, pod("1", "serving", deletionTimestamp="now"), 1000),
    )
    name = "chat-8b-1"
    assert log.all_spans() == [
        Span(CHAT, name, "starting", 0, -5000, -4000),
        Span(CHAT, name, "starting", 1, -4000, 100),
        Span(CHAT, name, "warm", 1, 100, 300),
        Span(CHAT, name, "serving", 1, 300, 900),
        Span(CHAT, name, "draining", 1, 900, 1000),
    ]
    assert log.counts(CHAT) == {}


def test_counts_are_of_now() -> None:
    log = life(
        (Change.CHANGED, pod("1", "serving"), 0),
        (Change.CHANGED, pod("2", "warm"), 0),
        (Change.CHANGED, pod("3", "warm"), 0),
    )
    assert log.counts(CHAT) == {"serving": 1, "warm": 2}
    assert log.counts("other/service") == {}


def test_what_a_pod_has_become_is_told_once() -> None:
    log = FleetLog(GPU)
    steps = [
        (Change.CHANGED, pod("1", "starting"), "starting"),
        (Change.CHANGED, pod("1", "warm"), "warm"),
        (Change.CHANGED, pod("1", "warm"), None),
        (Change.CHANGED, pod("1", "serving"), PROMOTED),
        (Change.CHANGED, pod("2", "serving"), "serving"),  # never was warm
        (Change.DELETED, pod("1", "serving"), GONE),
    ]
    assert [log.on_pod(change, one, 0) for change, one, _ in steps] == [became for _, _, became in steps]


def test_times_move_with_the_moment_from_which_they_count() -> None:
    log = life((Change.CHANGED, pod("1", "warm"), 100), (Change.CHANGED, pod("1", "serving"), 300))
    log.shift(-1000)
    assert [(span.from_ms, span.until_ms) for span in log.all_spans()] == [(-900, -700), (-700, None)]


async def test_a_promotion_lasts_until_the_engine_has_a_request() -> None:
    pages = [b'vllm:num_requests_running{m="x"} 0.0\n', b'vllm:num_requests_running{m="x"} 1.0\n']

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=pages.pop(0) if len(pages) > 1 else pages[0])

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    times = iter([500, 620])
    async with aiohttp.ClientSession() as http:
        watch = PromotionWatch(http, lambda: next(times), runner.addresses[0][1])
        watch.follow(CHAT, "chat-8b-1", "127.0.0.1")
        while not watch.promotions:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
        await watch.close()
    await runner.cleanup()
    assert watch.promotions == [Promotion(CHAT, "chat-8b-1", 500, 120)]
