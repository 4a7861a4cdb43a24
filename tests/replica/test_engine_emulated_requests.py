"""What becomes tokens, what becomes an error, and that the routes of the supervisor exist for nobody else."""

import asyncio
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from forebay.engine_model.engine import Engine, EngineSettings
from forebay.engine_model.step_time import StepTimes
from forebay.wire.replica_config import ReplicaConfig
from forebay_replica.engine_emulated.ask import ApiError, Ask, read_ask
from forebay_replica.engine_emulated.chunks import Chunks
from forebay_replica.engine_emulated.metrics import EngineMetrics
from forebay_replica.engine_emulated.pace import FRONT_END_PS, Pacer
from forebay_replica.engine_emulated.server import EngineServer, Phase
from forebay_replica.engine_emulated.text import Answer, chat_prompt, plain_prompt, token_prompt

STEP_PS = 2_000_000_000
CONFIG = ReplicaConfig("Emulated", "hf://meta-llama/Llama-3.1-8B", ("m",))


def read(body: bytes, *, chat: bool = False) -> Ask:
    return read_ask(body, chat=chat, served_names=("m", "alias"), max_model_len=100)


def test_four_bytes_are_a_token_and_a_token_number_is_one_too() -> None:
    assert [plain_prompt(text).tokens for text in ("a", "abcd", "abcde", "é" * 4)] == [1, 1, 2, 2]
    assert token_prompt([1, 2, 70_000, -1]).tokens == 4
    assert chat_prompt([("user", "abcde"), ("assistant", "")]).tokens == (4 + 2 + 1) + (4 + 0 + 1) + 4


def test_an_answer_is_always_the_same_and_differs_between_prompts() -> None:
    answers = [Answer(plain_prompt(f"question {number}"), 4_000, ends_by_itself=True) for number in range(50)]
    again = Answer(plain_prompt("question 7"), 4_000, ends_by_itself=True)
    assert (again.tokens, again.word(5), again.block_hashes) == (
        answers[7].tokens,
        answers[7].word(5),
        answers[7].block_hashes,
    )
    assert len({answer.tokens for answer in answers}) > 30
    assert all(64 <= answer.tokens < 512 for answer in answers)
    words = {answer.word(index) for answer in answers for index in range(64)}
    assert len(words) > 60
    assert all(len(word) == 4 and word.isascii() for word in words)


def test_prompts_with_a_common_beginning_have_a_common_chain() -> None:
    system = "s" * 640
    first, second = (Answer(plain_prompt(system + rest), 1, ends_by_itself=False) for rest in ("one" * 90, "two" * 90))
    assert first.block_hashes[:10] == second.block_hashes[:10]
    assert not set(first.block_hashes[10:]) & set(second.block_hashes[10:])


ACCEPTED: dict[str, tuple[dict[str, Any], bool, int, int]] = {
    "a completion has 16 tokens by default": ({"prompt": "hello"}, False, 2, 16),
    "a list of one text": ({"prompt": ["hello"]}, False, 2, 16),
    "a list of token numbers": ({"prompt": [1, 2, 3]}, False, 3, 16),
    "a list of one list of token numbers": ({"prompt": [[1, 2, 3]]}, False, 3, 16),
    "a chat may fill the model's length": ({"messages": [{"role": "user", "content": "hello"}]}, True, 11, 89),
    "text parts": ({"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]}, True, 11, 89),
    "no content": ({"messages": [{"role": "assistant", "content": None}]}, True, 9, 91),
    "the newer name of max_tokens wins": ({"prompt": "a", "max_tokens": 5, "max_completion_tokens": 7}, False, 1, 7),
    "exactly the model's length": ({"prompt": "a", "max_tokens": 99}, False, 1, 99),
    "fields that mean nothing here": ({"prompt": "a", "temperature": 0.5, "n": 1, "seed": 3}, False, 1, 16),
}


@pytest.mark.parametrize(("fields", "chat", "prompt_tokens", "limit"), ACCEPTED.values(), ids=ACCEPTED)
def test_a_good_body_is_understood(fields: dict[str, Any], chat: bool, prompt_tokens: int, limit: int) -> None:
    ask = read(orjson.dumps({"model": "alias", "ignore_eos": True, **fields}), chat=chat)
    assert (ask.prompt.tokens, ask.max_tokens, ask.answer.tokens, ask.model) == (prompt_tokens, limit, limit, "alias")


REFUSED: dict[str, tuple[bytes, bool, int, str]] = {
    "not JSON": (b"{", False, 400, "not JSON"),
    "not an object": (b"[]", False, 400, "must be a JSON object"),
    "another model": (b'{"model":"x","prompt":"a"}', False, 404, "`x` does not exist"),
    "no prompt": (b"{}", False, 400, "prompt must be"),
    "an empty prompt": (b'{"prompt":""}', False, 400, "prompt is empty"),
    "two prompts": (b'{"prompt":["a","b"]}', False, 400, "prompt must be one text"),
    "two answers": (b'{"prompt":"a","n":2}', False, 400, "one answer a request"),
    "no messages": (b"{}", True, 400, "at least one message"),
    "an empty chat": (b'{"messages":[]}', True, 400, "at least one message"),
    "a message without a role": (b'{"messages":[{"content":"a"}]}', True, 400, "with a role"),
    "a message that is no object": (b'{"messages":["a"]}', True, 400, "with a role"),
    "a picture": (b'{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}', True, 400, "text parts"),
    "content of another kind": (b'{"messages":[{"role":"user","content":5}]}', True, 400, "text parts"),
    "no tokens": (b'{"prompt":"a","max_tokens":0}', False, 400, "max_tokens must be a whole number"),
    "half a token": (b'{"prompt":"a","max_tokens":1.5}', False, 400, "whole number"),
    "a truth for a number": (b'{"prompt":"a","max_tokens":true}', False, 400, "whole number"),
    "more than the model's length": (b'{"prompt":"a","max_tokens":100}', False, 400, "maximum context length is 100"),
    "a chat that leaves no room": (
        orjson.dumps({"messages": [{"role": "user", "content": "a" * 400}]}),
        True,
        400,
        "maximum context length",
    ),
    "stream options of another kind": (b'{"prompt":"a","stream_options":1}', False, 400, "must be an object"),
}


@pytest.mark.parametrize(("body", "chat", "status", "message"), REFUSED.values(), ids=REFUSED)
def test_a_bad_body_is_refused_in_openais_words(body: bytes, chat: bool, status: int, message: str) -> None:
    with pytest.raises(ApiError, match=message) as refusal:
        read(body, chat=chat)
    error = orjson.loads(refusal.value.to_json())["error"]
    assert (error["code"], error["message"]) == (status, str(refusal.value))
    assert error["type"] == {400: "BadRequestError", 404: "NotFoundError"}[status]


def test_tokens_that_were_made_together_are_still_one_event_each() -> None:
    chunks = Chunks(read(b'{"prompt":"a","stream":true,"max_tokens":9}'), "cmpl-1", 5)
    events = [chunks.tokens(4, None), chunks.tokens(5, "length")]
    documents = [orjson.loads(event.removeprefix(b"data: ")) for event in b"".join(events).split(b"\n\n")[:-2]]
    assert len(documents) == 9
    assert documents[8]["choices"][0]["finish_reason"] == "length"
    assert documents[0].keys() == {"id", "object", "created", "model", "choices"}


def test_an_id_with_quotes_cannot_break_out_of_its_event() -> None:
    event = Chunks(read(b'{"prompt":"a"}'), 'cmpl-"},\n', 5).tokens(1, None)
    assert orjson.loads(event.removeprefix(b"data: "))["id"] == 'cmpl-"},\n'


def paced(step_ps: int = STEP_PS) -> tuple[Engine, Pacer, EngineMetrics]:
    engine = Engine(EngineSettings(StepTimes(step_ps, 0, 0, 0, 0), 700, CONFIG.max_model_len, 8, 2_048))
    metrics = EngineMetrics(
        CONFIG, 700, running=lambda: 0, waiting=lambda: 0, kv_usage=lambda: 0, awake=lambda: not pacer.asleep
    )
    pacer = Pacer(engine, lambda duration_ps: duration_ps, metrics)
    return engine, pacer, metrics


async def finish(pacer: Pacer, name: str, tokens: int) -> list[int]:
    """Submit, read to the end, and return the model's times of arrival, first and last token."""
    stream = pacer.submit(name, read(orjson.dumps({"prompt": name, "max_tokens": tokens, "ignore_eos": True})))
    got, reason = 0, None
    while reason is None:
        count, reason = await stream.take()
        got += count
    assert (got, reason, stream.running is not None) == (tokens, "length", True)
    assert stream.running is not None
    return [stream.arrived_ps, stream.running.first_token_ps or 0, stream.running.last_token_ps or 0]


async def test_a_stalled_machine_makes_tokens_late_and_the_engine_not_slower() -> None:
    _, pacer, _ = paced()
    asyncio.get_running_loop().call_later(0.03, time.sleep, 0.2)  # a hundred steps that nobody could take
    arrived_ps, first_ps, last_ps = await finish(pacer, "a", 80)
    assert first_ps - arrived_ps == FRONT_END_PS + STEP_PS
    assert last_ps - first_ps == 79 * STEP_PS


@pytest.mark.looptime
async def test_who_arrives_in_mid_step_waits_for_the_next_one() -> None:
    _, pacer, _ = paced(50_000_000_000)
    first = asyncio.create_task(finish(pacer, "a", 3))
    await asyncio.sleep(0.03)
    second = await finish(pacer, "b", 1)
    arrived_ps, first_ps, _ = await first
    assert second[0] > arrived_ps
    assert second[1] == first_ps + 50_000_000_000


@pytest.mark.looptime
async def test_an_idle_engine_starts_when_work_arrives() -> None:
    _, pacer, _ = paced()
    times = [await finish(pacer, name, 2) for name in ("a", "b")]
    for (_, _, last_ps), (arrived_ps, first_ps, _) in pairwise(times):
        assert arrived_ps >= last_ps
        assert first_ps - arrived_ps == FRONT_END_PS + STEP_PS
    assert await pacer.idle(1)


@pytest.mark.looptime
async def test_a_request_given_up_before_it_reached_the_engine_leaves_nothing() -> None:
    engine, pacer, _ = paced(50_000_000_000)
    running = asyncio.create_task(finish(pacer, "a", 1))
    await asyncio.sleep(0.02)
    early = pacer.submit("b", read(b'{"prompt":"b"}'))
    assert pacer.requests_waiting == 1
    pacer.abort(early)
    pacer.abort(early)
    assert await early.take() == (0, "abort")
    await running
    assert await pacer.idle(1)
    assert (pacer.requests_waiting, engine.kv_blocks_used) == (0, 0)


@pytest.mark.looptime
async def test_an_engine_that_is_busy_is_not_idle_in_time() -> None:
    _, pacer, _ = paced()
    stream = pacer.submit("a", read(b'{"prompt":"a"}'))
    assert not await pacer.idle(0)
    pacer.abort(stream)
    assert await pacer.idle(0)


@pytest.mark.parametrize("path", ["/sleep", "/wake_up", "/is_sleeping"])
async def test_sleep_does_not_exist_for_a_peer_that_is_not_on_loopback(path: str, tmp_path: Path) -> None:
    _, pacer, metrics = paced()
    server = EngineServer(CONFIG, pacer, metrics)
    server.phase = Phase.READY
    runner = web.AppRunner(server.application())
    await runner.setup()
    socket = str(tmp_path / "s")
    await web.UnixSite(runner, socket).start()
    method = "GET" if path == "/is_sleeping" else "POST"
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(socket)) as http,
        http.request(method, f"http://engine{path}") as response,
    ):
        assert response.status == 404
        assert (await response.json())["error"]["code"] == 404
    assert not pacer.asleep
    await runner.cleanup()
