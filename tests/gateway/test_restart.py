"""The picker as a process: against an API server that lists and watches, killed and started again."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forebay.gateway.main import render_envoy
from forebay.wire.signals import GatewayService, GatewaySignals
from tests.observe.kube_api import KubeApi

from .fleet import Backend, Client, Envoy, a_pod, a_service, some_network, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from forebay.gateway.settings import Settings

PODS = "/api/v1/pods"
SERVICES = "/apis/forebay.dev/v1alpha1/inferenceservices"
POLICIES = "/apis/forebay.dev/v1alpha1/slopolicies"


class Pod:
    """A gateway pod: its Envoy stays, its picker comes and goes."""

    def __init__(self, settings: Settings, kube: KubeApi) -> None:
        self.settings, self.kube = settings, kube
        self.client = Client(settings)
        self.network = some_network()
        self.backends: list[Backend] = []

    async def start_picker(self) -> None:
        fields: dict[str, Any] = asdict(self.settings) | {
            "directory": str(self.settings.directory),
            "api_url": self.kube.url,
        }
        script = Path(__file__).with_name("picker_process.py")
        self.picker = await asyncio.create_subprocess_exec(
            sys.executable,
            str(script),
            json.dumps(fields),
        )
        await self.client.until_ready()

    async def kill_picker(self) -> None:
        self.picker.kill()
        await self.picker.wait()

    async def backend(self, uid: str, state: str = "serving") -> Backend:
        backend = await Backend(uid, f"{self.network}.{len(self.backends) + 1}", self.settings.ports).start()
        self.backends.append(backend)
        await self.kube.collections[PODS].put_object(a_pod(uid, backend.ip, "a", state=state))
        return backend

    async def told(self) -> GatewayService:
        async with self.client.http.get(self.client.signals_url + "/v1/watch") as watch:
            return GatewaySignals.from_json(await watch.content.readline()).services["chat/a"]

    async def until_told(self, **wanted: int) -> GatewayService:
        async with asyncio.timeout(30), self.client.http.get(self.client.signals_url + "/v1/watch") as watch:
            while True:
                signals = GatewaySignals.from_json(await watch.content.readline())
                told = signals.services.get("chat/a")
                if told is not None and all(getattr(told, name) == value for name, value in wanted.items()):
                    return told


@pytest.fixture
async def pod(settings: Settings, tmp_path: Path) -> AsyncIterator[Pod]:
    kube = await KubeApi(PODS, SERVICES, POLICIES).start()
    render_envoy(settings)
    envoy = Envoy(settings, tmp_path / "envoy.log")
    pod = Pod(settings, kube)
    await kube.collections[SERVICES].put_object(a_service("a"))
    try:
        await pod.start_picker()
        yield pod
    finally:
        envoy.stop()
        if pod.picker.returncode is None:
            await pod.kill_picker()
        for backend in pod.backends:
            await backend.stop()
        await pod.client.close()
        await kube.stop()


async def test_objects_of_a_real_watch_lead_from_a_hold_to_an_answer(pod: Pod) -> None:
    await pod.kube.collections[POLICIES].put_object(
        {"metadata": {"name": "interactive-chat", "uid": "p"}, "spec": {"priority": 7}}
    )
    asking = asyncio.create_task(pod.client.ask())
    await pod.until_told(requests_held=1)
    await pod.backend("r1")
    assert (await asking).json["from"] == "r1"


async def test_while_the_picker_is_dead_streams_go_on_and_a_service_can_be_reached_by_its_path(pod: Pod) -> None:
    backend = await pod.backend("r1")
    stream = asyncio.create_task(pod.client.ask(stream=True))
    await until(lambda: backend.running == 1)
    await pod.kill_picker()
    reply = await pod.client.ask()
    assert (reply.status, reply.code, reply.headers["retry-after"]) == (503, "gateway_unavailable", "5")
    assert (await pod.client.ask(path="/svc/a/v1/chat/completions")).json["from"] == "r1"
    unknown = await pod.client.ask(path="/svc/ghost/v1/chat/completions")
    assert (unknown.status, unknown.code) == (503, "upstream_unavailable")
    backend.go.set()
    assert (await stream).body.endswith(b"data: [DONE]\n\n")


async def test_the_count_goes_on_over_a_restart_and_says_what_nobody_saw(pod: Pod) -> None:
    backend = await pod.backend("r1")
    assert (await pod.client.ask()).status == 200
    seen, unseen = (asyncio.create_task(pod.client.ask(stream=True)) for _ in range(2))
    await pod.until_told(requests_in_flight=2, answered_total=1)
    await pod.kill_picker()
    unseen.cancel()  # ends while nobody listens
    await until(lambda: backend.running == 1)
    await pod.start_picker()
    told = await pod.told()
    assert (told.admitted_total, told.answered_total, told.failed_total, told.requests_in_flight) == (3, 1, 1, 1)
    backend.go.set()
    assert (await seen).status == 200
    told = await pod.until_told(requests_in_flight=0)
    assert (told.admitted_total, told.answered_total, told.failed_total) == (3, 2, 1)
    page = (await pod.client.call("GET", pod.client.signals_url + "/metrics")).body.decode()
    assert "forebay_gateway_unseen_ends_total 1.0" in page
    assert (await pod.client.ask()).status == 200


async def test_what_was_held_when_the_picker_died_got_an_answer_and_is_counted(pod: Pod) -> None:
    asking = asyncio.create_task(pod.client.ask())
    await pod.until_told(requests_held=1)
    await pod.kill_picker()
    reply = await asking
    assert (reply.status, reply.code) == (503, "gateway_unavailable")
    await pod.start_picker()
    told = await pod.told()
    assert (told.admitted_total, told.failed_total, told.requests_held) == (1, 1, 0)


async def test_sigterm_ends_the_process_once_its_streams_have_ended(pod: Pod) -> None:
    backend = await pod.backend("r1")
    stream = asyncio.create_task(pod.client.ask(stream=True))
    await until(lambda: backend.running == 1)
    drained = asyncio.create_task(pod.client.call("GET", pod.client.signals_url + "/v1/drained"))
    pod.picker.send_signal(signal.SIGTERM)
    async with asyncio.timeout(20):
        while await pod.client.ready():
            pass
    assert pod.picker.returncode is None
    backend.go.set()
    assert (await stream).status == 200
    assert (await drained).status == 200
    assert await pod.picker.wait() == 0
