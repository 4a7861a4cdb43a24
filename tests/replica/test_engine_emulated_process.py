"""The real process on loopback, driven by the real `openai` client and by hand where the client hides what matters."""

import asyncio
import dataclasses
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import openai
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from forebay.wire.replica_config import ENV_CONFIG, ENV_POD_NAME, Emulation, ReplicaConfig

# One step takes 2 ms and the prompt next to nothing: hundreds of tokens a second, so that no test waits.
FAST = Emulation(
    step_c0_ps=2_000_000_000,
    step_c1_ps=10_000_000,
    step_c2_ps=1_000,
    step_p1_ps=1_000_000,
    step_p2_fs=1_000,
    kv_tokens_total=16_000,
    cold_start_ms=50,
    wake_ms=20,
    model_error_permille=0,
    step_noise_permille=0,
    seed=1,
)
CONFIG = ReplicaConfig(
    engine="Emulated",
    model_uri="hf://meta-llama/Llama-3.1-8B-Instruct",
    served_names=("chat-8b", "alias"),
    max_model_len=4_096,
    max_num_seqs=4,
    emulation=FAST,
)
LONG = {"prompt": "Tell me a long story.", "max_tokens": 4_000, "ignore_eos": True, "stream": True}


class Process:
    """One running engine."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, http: aiohttp.ClientSession) -> None:
        self.process = process
        self.url = url
        self.http = http

    async def get(self, path: str) -> tuple[int, bytes]:
        async with self.http.get(self.url + path) as response:
            return response.status, await response.read()

    async def post(self, path: str, body: object = None) -> tuple[int, bytes]:
        async with self.http.post(self.url + path, data=orjson.dumps(body)) as response:
            return response.status, await response.read()

    async def metric(self, name: str, **labels: str) -> float:
        _, page = await self.get("/metrics")
        for family in text_string_to_metric_families(page.decode()):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return sample.value
        raise AssertionError(f"{name} is not on the page")


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await holds():  # noqa: ASYNC110 - another process holds the state
            await asyncio.sleep(0.01)


@asynccontextmanager
async def started(config: ReplicaConfig, *, wait: bool = True) -> AsyncIterator[Process]:
    env = {**os.environ, ENV_CONFIG: config.to_json(), ENV_POD_NAME: "chat-8b-abcde-0"}
    program = (sys.executable, "-m", "forebay_replica.engine_emulated", "--host", "127.0.0.1", "--port", "0")
    process = await asyncio.create_subprocess_exec(*program, env=env, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    address = re.search(r"address=(\S+)", (await process.stderr.readline()).decode())
    assert address is not None
    async with aiohttp.ClientSession() as http:
        engine = Process(process, f"http://{address[1]}", http)
        try:
            if wait:
                await until(lambda: healthy(engine))
            yield engine
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def healthy(engine: Process) -> bool:
    return (await engine.get("/health"))[0] == 200


@pytest.fixture
async def engine() -> AsyncIterator[Process]:
    async with started(CONFIG) as running:
        yield running


@pytest.fixture
async def client(engine: Process) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0) as made:
        yield made


async def test_a_chat_streams_one_event_a_token_and_counts_last(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="chat-8b",
        messages=[{"role": "user", "content": "Twelve bytes"}],
        max_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    chunks = [chunk async for chunk in stream]
    first, *tokens, last = chunks
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert [len(chunk.choices[0].delta.content or "") for chunk in tokens] == [4] * 20
    assert [chunk.choices[0].finish_reason for chunk in tokens] == [None] * 19 + ["length"]
    assert last.choices == []
    assert last.usage is not None
    # Four tokens open the message and four the answer, one ends the message, three are what was said.
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (12, 20, 32)
    assert {(chunk.id, chunk.model, chunk.object) for chunk in chunks} == {
        (first.id, "chat-8b", "chat.completion.chunk")
    }


async def test_the_whole_answer_is_the_same_text_as_the_stream(client: openai.AsyncOpenAI) -> None:
    prompt = "Say something."
    stream = await client.completions.create(model="alias", prompt=prompt, max_tokens=30, stream=True)
    streamed = [chunk.choices[0].text async for chunk in stream]
    whole = await client.completions.create(model="alias", prompt=prompt, max_tokens=30)
    assert "".join(streamed) == whole.choices[0].text
    assert (whole.model, whole.choices[0].finish_reason) == ("alias", "length")
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (4, 30)


async def test_an_answer_ends_by_itself_where_nothing_forbids_it(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="chat-8b", messages=[{"role": "user", "content": "Hello"}])
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert 64 <= answer.usage.completion_tokens < 512


async def test_every_served_name_is_listed(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["chat-8b", "alias"]


async def test_errors_are_those_that_openais_client_knows(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="The model `gpt-5` does not exist") as unknown:
        await client.completions.create(model="gpt-5", prompt="hello")
    assert unknown.value.param == "model"
    with pytest.raises(openai.BadRequestError, match="maximum context length is 4096 tokens"):
        await client.completions.create(model="chat-8b", prompt="hello", max_tokens=4_095)


async def test_a_path_that_does_not_exist_is_answered_in_the_same_shape(engine: Process) -> None:
    status, body = await engine.get("/v1/nothing")
    assert (status, orjson.loads(body)["error"]["code"]) == (404, 404)


async def test_the_next_turn_of_a_conversation_finds_the_last_answer_in_the_cache(
    engine: Process, client: openai.AsyncOpenAI
) -> None:
    messages: list[dict[str, str]] = [{"role": "user", "content": "A question of some length, to fill a block or two."}]
    ask = {"model": "chat-8b", "max_tokens": 100, "extra_body": {"ignore_eos": True}}
    first = await client.chat.completions.create(messages=messages, **ask)  # type: ignore[call-overload]
    messages += [
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "And then?"},
    ]
    second = await client.chat.completions.create(messages=messages, **ask)  # type: ignore[call-overload]
    turn_tokens = first.usage.total_tokens - 1  # the last token was returned, but never computed
    assert await engine.metric("vllm:prefix_cache_hits_total") == turn_tokens // 16 * 16
    assert await engine.metric("vllm:prompt_tokens_total") == first.usage.prompt_tokens + second.usage.prompt_tokens


async def test_a_client_that_leaves_frees_what_it_held(engine: Process) -> None:
    async with engine.http.post(f"{engine.url}/v1/completions", data=orjson.dumps(LONG)) as response:
        await response.content.readline()
        assert await engine.metric("vllm:num_requests_running") == 1
        response.close()

    async def gone() -> bool:
        return await engine.metric("vllm:request_success_total", finished_reason="abort") == 1

    await until(gone)
    assert await engine.metric("vllm:num_requests_running") == 0
    assert await engine.metric("vllm:kv_cache_usage_perc") == 0


async def test_while_it_loads_nothing_answers() -> None:
    loading = dataclasses.replace(CONFIG, emulation=dataclasses.replace(FAST, cold_start_ms=3_600_000))
    async with started(loading, wait=False) as engine:
        assert (await engine.get("/health"))[0] == 503
        assert (await engine.post("/v1/completions", LONG))[0] == 503
        engine.process.send_signal(signal.SIGTERM)
        assert await engine.process.wait() == 0


async def test_a_drain_finishes_what_runs_and_refuses_what_is_new(engine: Process) -> None:
    body = {**LONG, "max_tokens": 300}
    async with engine.http.post(f"{engine.url}/v1/completions", data=orjson.dumps(body)) as response:
        await response.content.readline()
        engine.process.send_signal(signal.SIGTERM)

        async def refused() -> bool:
            return (await engine.post("/v1/completions", {"prompt": "hello", "max_tokens": 1}))[0] == 503

        await until(refused)
        assert await healthy(engine)  # as vLLM: readiness is withdrawn by whoever sends the signal
        rest = await response.read()
    assert rest.count(b'"text":') == 299
    assert rest.endswith(b"data: [DONE]\n\n")
    assert await engine.process.wait() == 0


async def test_a_drain_gives_up_at_its_deadline_and_says_so_in_the_stream() -> None:
    async with started(dataclasses.replace(CONFIG, drain_deadline_ms=100)) as engine:
        async with engine.http.post(f"{engine.url}/v1/completions", data=orjson.dumps(LONG)) as response:
            await response.content.readline()
            engine.process.send_signal(signal.SIGTERM)
            rest = await response.read()
        *_, error, done = rest.rstrip().split(b"\n\n")
        assert orjson.loads(error.removeprefix(b"data: "))["error"]["code"] == 500
        assert done == b"data: [DONE]"
        assert await engine.process.wait() == 0


async def test_asleep_it_gives_up_what_runs_and_keeps_what_arrives_until_it_wakes(engine: Process) -> None:
    async with engine.http.post(f"{engine.url}/v1/completions", data=orjson.dumps(LONG)) as response:
        await response.content.readline()
        assert (await engine.post("/sleep?level=1"))[0] == 200
        assert b'"finish_reason":"abort"' in await response.read()
    assert await engine.get("/is_sleeping") == (200, b'{"is_sleeping":true}')
    assert await engine.metric("vllm:engine_sleep_state", sleep_state="awake") == 0
    late = asyncio.create_task(engine.post("/v1/completions", {"prompt": "hello", "max_tokens": 2}))
    done, _ = await asyncio.wait({late}, timeout=0.2)
    assert not done
    assert (await engine.post("/wake_up"))[0] == 200
    assert (await late)[0] == 200
    assert await engine.metric("vllm:engine_sleep_state", sleep_state="awake") == 1
    assert (await engine.post("/sleep?level=2"))[0] == 400


BROKEN = {
    "no configuration": ("", "is not a replica configuration"),
    "no emulation": (dataclasses.replace(CONFIG, emulation=None).to_json(), "not an emulated engine's pod"),
    "a request of the greatest length does not fit the cache": (
        dataclasses.replace(CONFIG, max_model_len=16_000).to_json(),
        "does not fit the KV cache of 15984 tokens",
    ),
}


@pytest.mark.parametrize(("config", "message"), BROKEN.values(), ids=BROKEN)
async def test_an_engine_that_cannot_work_ends_with_a_reason(config: str, message: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "forebay_replica.engine_emulated",
        env={**os.environ, ENV_CONFIG: config},
        stderr=asyncio.subprocess.PIPE,
    )
    _, told = await process.communicate()
    assert (process.returncode, message in told.decode()) == (2, True)
