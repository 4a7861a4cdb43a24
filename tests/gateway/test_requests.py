"""What clients see, through a real Envoy."""

from __future__ import annotations

import asyncio
import io
import time
from typing import TYPE_CHECKING, Any

import aiohttp
import openai
import pytest

from forebay.gateway.settings import MAX_BODY_BYTES
from forebay.observe.cluster import Change
from forebay.wire.signals import GatewaySignals

from .fleet import until

if TYPE_CHECKING:
    from .conftest import Rig


async def test_a_request_is_held_until_the_first_replica_serves_and_then_answered(rig: Rig) -> None:
    rig.service()
    asking = asyncio.create_task(rig.client.ask())
    await until(lambda: rig.told().requests_held == 1)
    warm = await rig.backend(state="warm")
    await until(lambda: warm.uid in rig.gateway.book.services["chat/a"].replicas)
    assert not asking.done()
    rig.pod(warm, state="serving")
    reply = await asking
    assert (reply.status, reply.json["from"]) == (200, "r1")
    assert reply.headers["x-forebay-served-by"] == "chat/a"
    await until(lambda: rig.told().answered_total == 1)
    told = rig.told()
    assert (told.requests_held, told.requests_in_flight, told.arrivals_total, told.admitted_total) == (0, 0, 1, 1)


async def test_a_full_queue_says_429_and_when_to_come_back(rig: Rig) -> None:
    rig.service()
    asking = [asyncio.create_task(rig.client.ask()) for _ in range(5)]
    await until(lambda: rig.told().requests_held == 5)
    reply = await rig.client.ask()
    assert (reply.status, reply.code, reply.headers["retry-after"]) == (429, "queue_full", "2")
    await rig.backend()
    assert [r.status for r in await asyncio.gather(*asking)] == [200] * 5
    await until(lambda: rig.told().answered_total == 5)
    assert (rig.told().arrivals_total, rig.told().admitted_total, rig.told().refused_total) == (6, 5, 0)


async def test_what_is_wrong_with_a_request_is_said_in_openais_shape(rig: Rig) -> None:
    rig.service()
    await rig.backend()
    client = rig.client
    cases: dict[str, tuple[Any, int, str]] = {
        "a model that nobody serves": (client.ask("ghost"), 404, "model_not_found"),
        "a body that is no JSON": (client.post("/v1/chat/completions", data=b"{nonsense"), 400, "invalid_json"),
        "a body that is a list": (client.post("/v1/chat/completions", data=b"[]"), 400, "invalid_json"),
        "an empty body": (client.post("/v1/chat/completions"), 400, "invalid_json"),
        "no model": (client.post("/v1/completions", json={"prompt": "x"}), 400, "missing_model"),
        "a model that is a number": (client.post("/v1/completions", json={"model": 7}), 400, "missing_model"),
        "an engine's own control route": (client.post("/sleep"), 404, "unknown_url"),
        "the same under a service": (client.post("/svc/a/sleep"), 404, "unknown_url"),
        "the same behind a trick": (client.post("/v1/chat/completions/..%2f..%2f/sleep"), 404, "unknown_url"),
        "a service that does not exist": (client.ask(path="/svc/ghost/v1/chat/completions"), 404, "model_not_found"),
        "the wrong method": (client.call("GET", "/v1/chat/completions"), 404, "unknown_url"),
    }
    for case, (asked, status, code) in cases.items():
        reply = await asked
        assert (reply.status, reply.code, reply.headers["content-type"]) == (status, code, "application/json"), case
        assert {"message", "type", "param", "code"} == reply.json["error"].keys(), case
    assert rig.backends[0].seen == []


async def test_a_body_over_the_limit_is_refused_while_it_uploads(rig: Rig) -> None:
    rig.service()
    reply = await rig.client.post("/v1/chat/completions", data=io.BytesIO(b"x" * (MAX_BODY_BYTES + 1)))
    assert (reply.status, reply.code) == (413, "request_too_large")


async def test_a_large_body_arrives_whole(rig: Rig) -> None:
    rig.service()
    backend = await rig.backend()
    body = b'{"model": "a", "padding": "' + b"x" * (5 << 20) + b'"}'
    reply = await rig.client.post("/v1/chat/completions", data=io.BytesIO(body))
    assert reply.status == 200
    assert backend.seen[0]["size"] == len(body)


async def test_all_names_of_a_model_work_and_the_oldest_object_keeps_one(rig: Rig) -> None:
    rig.service("old", model={"servedName": "llama", "aliases": ["best"]}, created="2026-01-01T00:00:00Z")
    rig.service("young", model={"servedName": "llama", "aliases": ["other"]}, created="2026-02-01T00:00:00Z")
    await rig.backend("r-old", "old")
    await rig.backend("r-young", "young")
    answers = {name: (await rig.client.ask(name)).json["from"] for name in ("llama", "best", "other")}
    assert answers == {"llama": "r-old", "best": "r-old", "other": "r-young"}
    listed = await rig.client.call("GET", "/v1/models")
    assert [(m["id"], m["object"], m["owned_by"]) for m in listed.json["data"]] == [
        ("best", "model", "chat"),
        ("llama", "model", "chat"),
        ("other", "model", "chat"),
    ]
    assert listed.json["data"][0]["created"] == 1_767_225_600
    one = await rig.client.call("GET", "/svc/young/v1/models")
    assert [m["id"] for m in one.json["data"]] == ["other"]
    rig.gateway.table.on_service(Change.DELETED, {"metadata": {"name": "old", "namespace": "chat"}, "spec": {}})
    assert (await rig.client.ask("llama")).json["from"] == "r-young"


async def test_the_path_of_a_service_needs_no_model(rig: Rig) -> None:
    rig.service()
    backend = await rig.backend()
    reply = await rig.client.post("/svc/a/v1/embeddings?x=1", json={"input": "x"})
    assert reply.status == 200
    assert backend.seen[0]["path"] == "/v1/embeddings"
    await until(lambda: rig.told().answered_total == 1)


async def test_a_stream_passes_untouched(rig: Rig) -> None:
    rig.service()
    backend = await rig.backend()
    backend.chunk_gap_s = 0.05
    async with rig.client.http.post(
        rig.client.url + "/v1/chat/completions", json={"model": "a", "stream": True}
    ) as response:
        assert response.headers["content-type"] == "text/event-stream"
        arrived = [time.monotonic() async for line in response.content if line.strip()]
    assert len(arrived) == 7
    # Collected chunks would arrive together; the backend needs 250 ms between the first and the last.
    assert arrived[-1] - arrived[0] >= 0.2


async def test_the_openai_client_streams_and_raises_its_own_errors(rig: Rig) -> None:
    rig.service()
    client = openai.AsyncOpenAI(base_url=rig.client.url + "/v1", api_key="k", max_retries=0)
    with pytest.raises(openai.NotFoundError, match="ghost"):
        await client.chat.completions.create(model="ghost", messages=[])
    assert [m.id for m in (await client.models.list()).data] == ["a"]
    await client.close()


async def test_a_replica_that_refuses_the_connection_is_passed_over(rig: Rig) -> None:
    rig.service()
    await rig.backend("r0", running=False)
    await rig.backend("r1")
    await rig.until_routable("r0", "r1")
    assert [(await rig.client.ask()).json["from"] for _ in range(3)] == ["r1"] * 3
    await until(lambda: rig.told().answered_total == 3)


async def test_a_replica_that_answers_503_is_passed_over_and_other_answers_are_the_engines(rig: Rig) -> None:
    rig.service()
    first, second = await rig.backend("r0"), await rig.backend("r1")
    await rig.until_routable("r0", "r1")
    first.status = 503
    assert (await rig.client.ask()).json["from"] == "r1"
    first.status = second.status = 422
    assert (await rig.client.ask()).status == 422  # the engine's own answer is an answer
    first.status = second.status = 500
    assert (await rig.client.ask()).status == 500
    await until(lambda: rig.told().requests_in_flight == 0)
    told = rig.told()
    assert (told.answered_total, told.failed_total) == (2, 1)


async def test_when_no_replica_can_be_reached_the_answer_says_so(rig: Rig) -> None:
    rig.service()
    await rig.backend(running=False)
    await rig.until_routable("r1")
    reply = await rig.client.ask()
    assert (reply.status, reply.code, reply.headers["retry-after"]) == (503, "upstream_unavailable", "5")
    await until(lambda: rig.told().failed_total == 1)


async def test_a_draining_replica_finishes_its_stream_and_gets_nothing_new(rig: Rig) -> None:
    rig.service()
    old = await rig.backend("r0")
    await rig.until_routable("r0")
    async with rig.client.http.post(
        rig.client.url + "/v1/chat/completions", json={"model": "a", "stream": True}
    ) as stream:
        assert (await stream.content.readline()) == b"data: first\n"
        rig.pod(old, state="draining")
        await rig.backend("r1")
        assert [(await rig.client.ask()).json["from"] for _ in range(4)] == ["r1"] * 4
        rig.pod(old, leaving=True)
        rig.pod(old, change=Change.DELETED)
        old.go.set()
        assert (await stream.content.read()).endswith(b"data: [DONE]\n\n")
    await until(lambda: rig.told().answered_total == 5)
    assert len(old.seen) == 1


async def test_a_stream_that_breaks_is_not_tried_again_and_counts_as_failed(rig: Rig) -> None:
    rig.service()
    backend = await rig.backend()
    backend.broken = True
    with pytest.raises(aiohttp.ClientError):
        await rig.client.ask(stream=True)
    await until(lambda: rig.told().failed_total == 1)
    assert len(backend.seen) == 1


async def test_a_client_that_leaves_during_a_hold_or_a_stream_is_counted_and_frees_its_place(rig: Rig) -> None:
    rig.service()
    held = asyncio.create_task(rig.client.ask())
    await until(lambda: rig.told().requests_held == 1)
    held.cancel()
    await until(lambda: rig.told().aborted_total == 1)
    assert rig.told().requests_held == 0
    backend = await rig.backend()
    streaming = asyncio.create_task(rig.client.ask(stream=True))
    await until(lambda: backend.running == 1)
    streaming.cancel()
    await until(lambda: rig.told().aborted_total == 2)
    assert rig.told().requests_in_flight == 0
    await until(lambda: backend.running == 0)


@pytest.mark.parametrize("name", ["x-gateway-destination-endpoint", "X-Gateway-Destination-Endpoint"])
async def test_a_forged_destination_leads_nowhere_else(rig: Rig, name: str) -> None:
    rig.service("a")
    rig.service("b")
    await rig.backend("r-a", "a")
    secret = await rig.backend("r-b", "b")
    await rig.until_routable("r-a")
    await rig.until_routable("r-b", key="chat/b")
    forged = f"{secret.ip}:{secret.ports.engine}"
    for path in ("/v1/chat/completions", "/svc/a/v1/chat/completions"):
        reply = await rig.client.ask(path=path, headers={name: forged})
        assert reply.json["from"] == "r-a"
    assert secret.seen == []


async def test_load_beyond_the_batch_waits_here_and_a_promoted_replica_takes_it_at_once(rig: Rig) -> None:
    rig.service(engine={"maxNumSeqs": 1})
    first = await rig.backend("r0")
    warm = await rig.backend("r1", state="warm")
    await rig.until_routable("r0")
    asking = [asyncio.create_task(rig.client.ask(wait=True)) for _ in range(4)]
    await until(lambda: first.running + rig.told().requests_held == 4)
    assert rig.told().requests_held >= 2
    rig.pod(warm, state="serving")
    await until(lambda: warm.running > 0)
    first.go.set()
    warm.go.set()
    assert [r.status for r in await asyncio.gather(*asking)] == [200] * 4
    assert warm.seen


async def test_a_first_hold_is_told_at_once(rig: Rig) -> None:
    rig.service()
    async with rig.client.http.get(rig.client.signals_url + "/v1/watch") as watch:
        seen: list[GatewaySignals] = []

        async def held() -> int:
            seen.append(GatewaySignals.from_json(await watch.content.readline()))
            return seen[-1].services["chat/a"].requests_held if "chat/a" in seen[-1].services else -1

        while await held() != 0:
            pass
        asking = asyncio.create_task(rig.client.ask())
        while await held() != 1:
            pass
        assert [s.sequence for s in seen] == list(range(seen[0].sequence, seen[-1].sequence + 1))
        assert seen[-1].gateway_uid == "gateway-uid"
        assert seen[-1].services["chat/a"].held_prompt_tokens > 0
    await rig.backend()
    assert (await asking).status == 200


async def test_the_metrics_say_what_happened(rig: Rig) -> None:
    rig.service()
    await rig.backend()
    await rig.client.ask()
    await rig.client.ask("ghost")
    await until(lambda: rig.told().answered_total == 1)
    page = (await rig.client.call("GET", rig.client.signals_url + "/metrics")).body.decode()
    for line in (
        'forebay_gateway_requests_total{outcome="answered",service="chat/a"} 1.0',
        'forebay_gateway_held_requests{service="chat/a"} 0.0',
        'forebay_gateway_own_answers_total{reason="model_not_found",status="404"} 1.0',
        'forebay_gateway_queue_seconds_count{service="chat/a"} 1.0',
        "forebay_gateway_pick_seconds_count 1.0",
    ):
        assert line in page, line
