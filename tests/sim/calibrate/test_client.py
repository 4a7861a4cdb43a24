"""The load generator against a server that speaks vLLM's part of OpenAI's API, in this process."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from forebay.sim.calibrate.client import record, session
from forebay.sim.calibrate.endpoint import EndpointError, kv_cache, read_facts
from forebay.sim.calibrate.engine_run import record_all
from forebay.sim.calibrate.loads import Load, Request
from forebay.sim.calibrate.recording import EngineFacts, read_folder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

PAGE = """# HELP vllm:num_preemptions Cumulative number of preemptions.
vllm:num_preemptions_total{{engine="0",model_name="m"}} {preemptions}
vllm:cache_config_info{{block_size="32",enable_prefix_caching="True",engine="0",num_gpu_blocks="97"}} 1.0
"""


class Vllm:
    """Answers at once, with as many tokens a message as it is told."""

    def __init__(self) -> None:
        self.preemptions = 0.0
        self.tokens_per_message = 1
        self.prompts: list[list[int]] = []
        self.refuse: Callable[[dict[str, object]], str | None] = lambda _: None
        self.most_at_once = self._at_once = 0
        self.short_by = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.add_routes(
            [
                web.get("/v1/models", self.models),
                web.get("/version", self.version),
                web.get("/metrics", self.metrics),
                web.post("/v1/completions", self.complete),
            ]
        )
        return app

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "max_model_len": 1024}]})

    async def version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=PAGE.format(preemptions=self.preemptions))

    async def complete(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        reason = self.refuse(asked)
        if reason is not None:
            return web.Response(status=400, text=reason)
        self.prompts.append(asked["prompt"])
        self.preemptions += 1
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        total, sent = asked["max_tokens"] - self.short_by, 0
        while sent < total:
            sent = min(total, sent + self.tokens_per_message)
            message = {"choices": [{"text": "a"}], "usage": {"completion_tokens": sent}}
            await answer.write(f"data: {json.dumps(message)}\n\n".encode())
            await asyncio.sleep(0)
        await answer.write(f"data: {json.dumps({'choices': [], 'usage': {'completion_tokens': sent}})}\n\n".encode())
        await answer.write(b"data: [DONE]\n\n")
        self._at_once -= 1
        return answer


@pytest.fixture
async def vllm() -> AsyncIterator[tuple[Vllm, str]]:
    engine = Vllm()
    server = TestServer(engine.app())
    await server.start_server()
    yield engine, str(server.make_url("/"))
    await server.close()


async def facts_of(url: str, model: str | None = None) -> EngineFacts:
    async with session(url) as http:
        return await read_facts(http, model=model, machine="here", max_num_seqs=16, max_num_batched_tokens=256)


async def test_an_engine_says_what_it_is(vllm: tuple[Vllm, str]) -> None:
    facts = await facts_of(vllm[1])
    assert facts == EngineFacts("vllm 0.32.0", "m", "here", 1024, 16, 256, 97, 32, prefix_caching=True)
    assert facts.kv_tokens == 96 * 32


async def test_a_model_that_is_not_served_is_named_beside_those_that_are(vllm: tuple[Vllm, str]) -> None:
    with pytest.raises(EndpointError, match="serves m, not 'other'"):
        await facts_of(vllm[1], "other")


async def test_a_port_without_an_engine_is_told(unused_tcp_port: int) -> None:
    with pytest.raises(EndpointError, match="is the engine up"):
        await facts_of(f"http://127.0.0.1:{unused_tcp_port}")


def test_a_page_without_the_size_of_the_cache_is_refused() -> None:
    with pytest.raises(EndpointError, match="size of the KV cache"):
        kv_cache('vllm:cache_config_info{num_gpu_blocks="None",block_size="16"} 1.0\n')


LOAD = Load("l", ((Request(0, 5, 3), Request(0, 7, 2)), (Request(0, 9, 4),)))


async def test_each_request_is_sent_once_and_stages_wait_for_each_other(vllm: tuple[Vllm, str]) -> None:
    engine, url = vllm
    facts, ended = await facts_of(url), []
    async with session(url) as http:
        recording = await record(http, facts, LOAD, 2, seed=1, on_request=lambda: ended.append(1))
    assert sorted(recording.trace.prompt_tokens.tolist()) == [5, 7, 9]
    assert sorted(map(len, engine.prompts)) == [5, 7, 9]
    assert recording.trace.output_tokens.sum() == 9
    assert (recording.load, recording.run, recording.preemptions, len(ended)) == ("l", 2, 3, 3)
    last = recording.offsets[2]
    assert recording.trace.arrival_us[2] >= recording.token_us[:last].max()  # the second stage came after the first


async def test_a_message_of_several_tokens_counts_as_many(vllm: tuple[Vllm, str]) -> None:
    engine, url = vllm
    engine.tokens_per_message = 3
    facts = await facts_of(url)
    async with session(url) as http:
        recording = await record(http, facts, Load("l", ((Request(0, 4, 7),),)), 1, seed=1)
    assert len(recording.token_us) == 7
    assert len(set(recording.token_us.tolist())) <= 3


async def test_two_runs_send_prompts_of_equal_lengths_and_other_tokens(vllm: tuple[Vllm, str]) -> None:
    engine, url = vllm
    facts = await facts_of(url)
    async with session(url) as http:
        for run in (1, 2):
            await record(http, facts, Load("l", ((Request(0, 50, 1),),)), run, seed=1)
    first, second = engine.prompts
    assert len(first) == len(second) == 50
    assert first != second  # else the second run would find the first one's prefixes in the cache


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        pytest.param(lambda e: setattr(e, "refuse", lambda _: "too long"), "answered 400 .*too long", id="refusal"),
        pytest.param(lambda e: setattr(e, "short_by", 1), "got 2 tokens: .*ignore_eos", id="an answer cut short"),
    ],
)
async def test_an_engine_that_does_not_do_as_asked_ends_the_run(
    vllm: tuple[Vllm, str], break_it: Callable[[Vllm], None], said: str
) -> None:
    engine, url = vllm
    facts = await facts_of(url)
    break_it(engine)
    async with session(url) as http:
        with pytest.raises(EndpointError, match=said):
            await record(http, facts, Load("l", ((Request(0, 4, 3),),)), 1, seed=1)


class Told:
    def __init__(self) -> None:
        self.planned = self.done = 0.0
        self.loads: list[tuple[str, int]] = []

    def plan(self, seconds: float) -> None:
        self.planned = seconds

    def begin(self, load: str, run: int) -> None:
        self.loads.append((load, run))

    def advance(self, seconds: float) -> None:
        self.done += seconds


async def test_a_whole_calibration_leaves_a_recording_of_each_run(
    vllm: tuple[Vllm, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server answers at once, so the loads are cut down to what it can be asked in a second."""
    url, facts, told = vllm[1], await facts_of(vllm[1]), Told()
    module = "forebay.sim.calibrate.engine_run"
    monkeypatch.setattr(f"{module}.sweep", lambda *_: Load("sweep", LOAD.stages))
    monkeypatch.setattr(f"{module}.service", lambda *_: [Load("mixed", LOAD.stages[:1])])
    monkeypatch.setattr(f"{module}.fit", lambda *_: type("Fit", (), {"times": None}))
    async with session(url) as http:
        made = await record_all(http, facts, seconds=10, runs=2, seed=1, folder=tmp_path, tell=told)
    assert told.loads == [("probe", 1), ("sweep", 1), ("mixed", 1), ("mixed", 2)]
    read = {(recording.load, recording.run): recording for recording in read_folder(tmp_path)}
    assert set(read) == {("sweep", 1), ("mixed", 1), ("mixed", 2)}
    for recording in made:
        again = read[recording.load, recording.run]
        assert again.token_us.tolist() == recording.token_us.tolist()
        assert again.facts == recording.facts
