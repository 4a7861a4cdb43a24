"""How a gateway leaves: not ready at once, streams finished, what still waits refused at the end."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from .fleet import until

if TYPE_CHECKING:
    from forebay.gateway.settings import Settings

    from .conftest import Rig


async def test_a_leaving_gateway_finishes_its_streams_and_lets_envoy_wait_for_them(rig: Rig) -> None:
    rig.service()
    backend = await rig.backend()
    streaming = asyncio.create_task(rig.client.ask(stream=True))
    await until(lambda: backend.running == 1)
    before_stop = asyncio.create_task(rig.client.call("GET", rig.client.signals_url + "/v1/drained"))
    rig.stop.set()
    await until(lambda: rig.gateway._leaving)
    assert not await rig.client.ready()
    assert (await rig.client.call("GET", rig.client.url + "/healthz")).status == 200
    late = await rig.client.ask()  # endpoints take a moment to go: what comes is still served
    assert (late.status, late.headers["connection"]) == (200, "close")
    assert not before_stop.done()
    backend.go.set()
    assert (await streaming).body.endswith(b"data: [DONE]\n\n")
    assert (await before_stop).body == b"drained"


class TestShortDrain:
    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return replace(settings, drain_s=1)

    async def test_what_still_waits_when_the_time_is_over_is_told_to_try_elsewhere(self, rig: Rig) -> None:
        rig.service()
        asking = asyncio.create_task(rig.client.ask())
        await until(lambda: rig.told().requests_held == 1)
        rig.stop.set()
        reply = await asking
        assert (reply.status, reply.code, reply.headers["retry-after"]) == (503, "gateway_leaves", "2")
        assert rig.told().refused_total == 1


class TestShortPatience:
    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return replace(settings, start_wait_s=1, busy_wait_s=1)

    async def test_a_hold_at_zero_ends_with_a_time_to_come_back(self, rig: Rig) -> None:
        rig.service()
        reply = await rig.client.ask()
        assert (reply.status, reply.code, reply.headers["retry-after"]) == (503, "model_not_started", "15")

    async def test_a_hold_at_saturation_has_its_own_limit(self, rig: Rig) -> None:
        rig.service(engine={"maxNumSeqs": 1})
        backend = await rig.backend()
        await rig.until_routable("r1")
        running = [asyncio.create_task(rig.client.ask(wait=True)) for _ in range(2)]
        await until(lambda: rig.told().requests_in_flight >= 1)
        reply = await rig.client.ask()
        assert (reply.status, reply.code) == (503, "model_busy")
        backend.go.set()
        await asyncio.gather(*running)
        await until(lambda: rig.told().requests_in_flight == 0)
        told = rig.told()
        assert told.admitted_total == told.answered_total + told.refused_total
