"""A gateway in this process behind a real Envoy, its table fed by the test; one for each test."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from forebay.gateway.main import Gateway, render_envoy
from forebay.gateway.settings import Ports, Settings
from forebay.gateway.table import prune_pod, prune_service
from forebay.observe.cluster import Change

from .fleet import Backend, Client, Envoy, a_pod, a_service, free_port, some_network, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from forebay.gateway.table import Table
    from forebay.wire.signals import GatewayService


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    ports = Ports(*(free_port() for _ in range(6)))
    return Settings(
        "gateway-uid",
        directory=tmp_path / "run",
        queue_requests_max=5,
        drain_s=20,
        withdraw_s=0,
        listen="127.0.0.1",
        ports=ports,
    )


class Rig:
    """A running gateway and what the test does to it."""

    def __init__(self, settings: Settings, envoy: Envoy) -> None:
        self.settings, self.envoy = settings, envoy
        self.network = some_network()
        self.gateway = Gateway(settings)
        self.client = Client(settings)
        self.backends: list[Backend] = []
        self.stop = asyncio.Event()

    async def start(self) -> None:
        self.serving = asyncio.create_task(self.gateway.serve(self._watch, self.stop))
        await self.client.until_ready()

    async def _watch(self, table: Table, synced: asyncio.Event) -> None:
        del table  # the test feeds it
        synced.set()
        await asyncio.Event().wait()

    async def close(self) -> None:
        if not self.stop.is_set():
            self.serving.cancel()
        await asyncio.gather(self.serving, return_exceptions=True)
        for backend in self.backends:
            await backend.stop()
        await self.client.close()

    def service(self, name: str = "a", **options: Any) -> None:
        self.gateway.table.on_service(Change.CHANGED, prune_service(a_service(name, **options)))

    async def backend(self, uid: str = "r1", service: str = "a", *, running: bool = True, **pod: Any) -> Backend:
        """Add a replica; `running` False: its pod exists, and nothing listens."""
        backend = Backend(uid, f"{self.network}.{len(self.backends) + 1}", self.settings.ports)
        if running:
            self.backends.append(await backend.start())
        self.pod(backend, service, **pod)
        return backend

    def pod(self, backend: Backend, service: str = "a", change: Change = Change.CHANGED, **pod: Any) -> None:
        self.gateway.table.on_pod(change, prune_pod(a_pod(backend.uid, backend.ip, service, **pod)))

    async def until_routable(self, *uids: str, key: str = "chat/a") -> None:
        replicas = self.gateway.book.services[key].replicas
        await until(lambda: all(uid in replicas and replicas[uid].routable for uid in uids))

    def told(self, key: str = "chat/a") -> GatewayService:
        return self.gateway.book.signals(0)[key]


@pytest.fixture
async def rig(settings: Settings, tmp_path: Path) -> AsyncIterator[Rig]:
    render_envoy(settings)
    rig = Rig(settings, Envoy(settings, tmp_path / "envoy.log"))
    try:
        await rig.start()
        yield rig
    finally:
        # Envoy first: a gateway that ends waits until its Envoy is gone.
        rig.envoy.stop()
        await rig.close()
