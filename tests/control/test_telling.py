"""What is written of a fleet, with the real judgement and client, against a small HTTP server; and what is not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from kubernetes.aio import client

from forebay.actuate.client import Kube
from forebay.control import health, telling
from forebay.control.checkpoint import INTERVAL_MS, Schedule, restored
from forebay.control.telling import RETRY_MS, Telling
from forebay.control.views import Findings
from forebay.core import codec
from forebay.observe.cluster import Change
from forebay.report import metrics
from forebay.report.publish import MIN_INTERVAL_MS
from tests.control.test_loop import Scene, _current
from tests.observe.test_gather import WALL, pod, service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NOTHING = Findings({}, {}, frozenset(), {})


class Server:
    """An API server that takes everything, or refuses everything."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.bodies: list[Any] = []
        self.refuses = False
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append((request.method, request.path.rpartition("/")[2]))
        self.bodies.append(await request.json())
        if self.refuses:
            return web.json_response({"reason": "Forbidden", "message": "no"}, status=403)
        return web.json_response({"metadata": {"resourceVersion": "9"}})


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


class Teller:
    """A scene that is told of."""

    def __init__(self, scene: Scene, api: client.ApiClient) -> None:
        self.scene, self.budgets = scene, {"ns/a": None}
        self.telling = Telling(
            Kube(api, lambda: 60.0), scene.objects, scene.acting, scene.metrics,
            budgets=self.budgets.keys(), instance="me",
        )  # fmt: skip

    async def tell(self, now_ms: int) -> None:
        judged = self.scene.judge.look(now_ms, WALL)
        self.telling.tell(judged, NOTHING, now_ms)
        await self.telling.settle(30)
        # What a write's answer brings about, events for example, is another write.
        await self.telling.settle(30)


@pytest.fixture
async def teller(server: Server) -> AsyncIterator[Teller]:
    async with client.ApiClient(configuration=client.Configuration(host=server.url)) as api:
        scene = Scene()
        scene.world.on_pod(Change.CHANGED, scene.world.prune_pod(_current(scene, pod("u1"))))
        yield Teller(scene, api)


async def test_a_status_is_written_once_and_not_again_while_nothing_changes(server: Server, teller: Teller) -> None:
    await teller.tell(10_000)
    assert ("PATCH", "status") in server.asked
    written = server.bodies[server.asked.index(("PATCH", "status"))]
    assert written["metadata"]["resourceVersion"] == "1"
    assert written["status"]["readyReplicas"] == 1
    before = len(server.asked)
    for second in range(11, 40):
        await teller.tell(second * 1000)
    assert server.asked[before:] == []


async def test_a_change_that_is_taken_back_at_once_is_taken_back_in_the_status_too(
    server: Server, teller: Teller
) -> None:
    await teller.tell(10_000)
    await teller.tell(11_000)
    teller.scene.autoscalers["h"] = "ns/a"
    await teller.tell(30_000)
    teller.scene.autoscalers.clear()
    for second in range(31, 45):
        await teller.tell(second * 1000)
    told = [
        next(c["reason"] for c in body["status"]["conditions"] if c["type"] == "ScalingActive")
        for (_, last), body in zip(server.asked, server.bodies, strict=True)
        if last == "status"
    ]
    assert told == ["Autoscaling", "ForeignAutoscaler", "Autoscaling"]


async def test_a_budget_that_is_missing_is_made_and_one_that_is_there_is_left(server: Server, teller: Teller) -> None:
    await teller.tell(10_000)
    assert ("PATCH", "a") not in server.asked
    teller.budgets.clear()
    await teller.tell(11_000)
    assert server.bodies[server.asked.index(("PATCH", "a"))]["kind"] == "PodDisruptionBudget"


async def test_a_service_without_pods_needs_no_budget(server: Server) -> None:
    async with client.ApiClient(configuration=client.Configuration(host=server.url)) as api:
        teller = Teller(Scene(), api)
        teller.budgets.clear()
        await teller.tell(10_000)
    assert "PodDisruptionBudget" not in [body["kind"] for body in server.bodies]


async def test_no_tick_tells_of_more_than_it_may_and_every_service_has_its_turn(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "TICK_MAX", 2)
    services = [service(name) for name in "abcde"]
    written = []
    async with client.ApiClient(configuration=client.Configuration(host=server.url)) as api:
        teller = Teller(Scene(*services), api)
        teller.budgets |= {f"ns/{name}": None for name in "abcde"}
        for second in range(10, 20):
            await teller.tell(second * 1000)
            written.append(server.asked.count(("PATCH", "status")))
    assert written == [2, 4, *[5] * 8]


async def test_what_was_read_is_not_written_again(server: Server, teller: Teller) -> None:
    memory, services = teller.scene.judge.begin(10_000), teller.scene.judge.fleet().services
    teller.telling.remember(memory, unreadable=())
    teller.telling.checkpoint(memory, services, 11_000, all_of_them=True)
    await teller.telling.settle(30)
    assert server.asked == []
    teller.telling.checkpoint(learned_more(memory), services, 12_000, all_of_them=True)
    await teller.telling.settle(30)
    assert server.asked == [("PATCH", "a")]


def learned_more(memory: Any) -> Any:
    return replace(memory, learned=replace(memory.learned, base_micro=memory.learned.base_micro + 1))


async def test_a_refused_write_is_tried_again_after_a_while_and_not_each_tick(server: Server, teller: Teller) -> None:
    server.refuses = True
    await teller.tell(10_000)
    await teller.tell(11_000)
    assert server.asked.count(("PATCH", "status")) == 1
    server.refuses = False
    await teller.tell(10_000 + RETRY_MS)
    assert server.asked.count(("PATCH", "status")) == 2


async def test_replicas_are_written_through_scale_in_auto_only(server: Server) -> None:
    auto, manual = service("a"), service("m")
    for raw in (auto, manual):
        raw["spec"]["replicas"] = 3
    manual["spec"]["scaling"] = {"mode": "Manual"}
    async with client.ApiClient(configuration=client.Configuration(host=server.url)) as api:
        teller = Teller(Scene(auto, manual), api)
        await teller.tell(10_000)
    scaled = [body for (_, last), body in zip(server.asked, server.bodies, strict=True) if last == "scale"]
    assert scaled == [{"spec": {"replicas": 1}}]


async def test_a_warning_becomes_an_event(server: Server) -> None:
    lost = service("a")
    lost["spec"]["sloPolicyRef"] = {"name": "nowhere"}
    async with client.ApiClient(configuration=client.Configuration(host=server.url)) as api:
        await Teller(Scene(lost), api).tell(10_000)
    reasons = [body["reason"] for (_, last), body in zip(server.asked, server.bodies, strict=True) if last == "events"]
    assert "PolicyNotFound" in reasons


# --- memory ----------------------------------------------------------------------------------------------------------


def test_stored_memory_comes_back_and_what_is_unreadable_is_named() -> None:
    scene = Scene(service("a"), service("b"))
    memory = scene.judge.look(scene.now, WALL).memory
    statuses = {"ns/a": codec.encode_safety(memory, 0), "ns/b": "garbage"}
    checkpoints = {"ns/a": codec.encode_learned(memory, 0), "ns/b": "{}"}
    again, unreadable = restored(scene.judge.begin(scene.now), statuses, checkpoints)
    assert unreadable == {"ns/b"}
    assert codec.encode_safety(again, 0) == statuses["ns/a"]
    assert codec.encode_learned(again, 0) == checkpoints["ns/a"]


def test_checkpoints_are_due_at_most_once_in_ten_minutes_and_only_when_they_differ() -> None:
    scene = Scene()
    memory = scene.judge.begin(0)
    schedule = Schedule()
    assert schedule.due(memory, 0) == []
    assert schedule.due(memory, INTERVAL_MS - 1) == []
    ((key, text),) = schedule.due(memory, 2 * INTERVAL_MS)
    schedule.wrote(key, text)
    assert schedule.due(memory, 4 * INTERVAL_MS) == []
    assert schedule.due(memory, 4 * INTERVAL_MS, all_of_them=True) == []
    schedule.keep(())
    assert schedule.due(memory, 4 * INTERVAL_MS + 1, all_of_them=True) == [(key, text)]
    assert MIN_INTERVAL_MS < INTERVAL_MS


# --- health and metrics ----------------------------------------------------------------------------------------------


async def test_of_a_large_fleet_the_numbers_behind_decisions_are_not_on_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    scene.metrics.fleet.tell(scene.judge.look(scene.now, WALL).decisions, {}, {})
    assert b"forebay_decision_input{" in scene.metrics.page()
    monkeypatch.setattr(metrics, "INPUTS_SERVICES_MAX", 0)
    page = scene.metrics.page()
    assert b"forebay_decision_input{" not in page
    assert b"forebay_replicas_desired{" in page


async def test_health_says_what_is_wrong_and_metrics_tell_the_fleet() -> None:
    scene = Scene()
    await scene.tick()
    judged = scene.judge.look(scene.now + 1, WALL)
    scene.metrics.fleet.tell(judged.decisions, {}, {"ns/a": 990})
    scene.metrics.fleet.hold("ns/a", "serving", 2, 500)
    wrong = ["hung", ""]
    runner = await health.serve(0, lambda: wrong[0], lambda: wrong[1], scene.metrics.page)
    try:
        # One socket for IPv4 and one for IPv6, each with a free port of its own.
        port = next(address[1] for address in runner.addresses if len(address) == 2)
        answers = {}
        for path in ("healthz", "readyz", "metrics"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET /{path} HTTP/1.0\r\n\r\n".encode())
            answers[path] = (await reader.read()).decode()
            writer.close()
    finally:
        await runner.cleanup()
    assert "503" in answers["healthz"].splitlines()[0]
    assert answers["healthz"].endswith("hung")
    assert "200" in answers["readyz"].splitlines()[0]
    page = answers["metrics"]
    assert 'forebay_replicas_desired{namespace="ns",service="a",state="serving"} 1.0' in page
    assert 'forebay_gpu_seconds_total{namespace="ns",service="a",state="serving"} 1.0' in page
    assert 'forebay_slo_attainment_ratio{namespace="ns",service="a"} 0.99' in page
    assert "forebay_decision_input" in page
