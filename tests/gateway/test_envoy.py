"""Envoy's own faults: it dies with requests on board, and nothing stays in flight for ever."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp
import pytest

from forebay.gateway import counters
from forebay.gateway.counters import Reconciler
from forebay.gateway.envoy_admin import EnvoyAdmin, EnvoyError

from .fleet import Envoy, until

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Rig


async def test_what_ran_when_envoy_died_is_ended_as_failed(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "OVERDUE_MS", 0)
    rig.service()
    backend = await rig.backend()
    streaming = asyncio.create_task(rig.client.ask(stream=True))
    await until(lambda: backend.running == 1)
    rig.envoy.stop()
    with pytest.raises(aiohttp.ClientError):
        await streaming
    assert rig.told().requests_in_flight == 1
    admin = EnvoyAdmin(rig.client.http, rig.settings.ports)
    with pytest.raises(EnvoyError):
        await admin.running()
    rig.envoy = Envoy(rig.settings, tmp_path / "second.log")
    async with asyncio.timeout(30):
        while not await admin.is_ready():  # noqa: ASYNC110 - a state of another process
            await asyncio.sleep(0.02)
    reconciler = Reconciler(rig.gateway.desk, admin, rig.gateway.metrics, rig.gateway._now_ms)
    await reconciler.check()
    assert rig.told().requests_in_flight == 1  # once may be a matter of milliseconds
    await reconciler.check()
    told = rig.told()
    assert (told.requests_in_flight, told.failed_total, told.admitted_total) == (0, 1, 1)
    assert (await rig.client.ask()).status == 200
