"""Real vLLM on this machine's CPU, kept by the real supervisor. `python -m e2e.vllm env` installs it (about 6 GB)."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from openai import AsyncOpenAI

from e2e.vllm.environment import FAST_ON_CPU, FAST_ON_CPU_ARGUMENTS, provision
from e2e.vllm.tiny_model import tiny_model
from forebay.wire.engine_metrics import sample_names
from forebay.wire.replica_config import ENV_CONFIG, ENV_POD_UID, ReplicaConfig
from forebay.wire.signals import MAX_STATE_BYTES, ReplicaSignals
from forebay_replica.engine_client import EngineClient
from forebay_replica.engine_guard import ENV_TOKEN, HEADER_TOKEN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

RECORDED = Path(__file__).resolve().parents[1] / "data" / "vllm-0.32-metrics.txt"
START_S = 300  # 15 s on an idle machine, several times that beside other work
STREAM_TOKENS = 1500  # some 5 s: enough to be in the middle of
CLOSED = ["/sleep", "/wake_up", "/is_sleeping", "/collective_rpc", "/reset_prefix_cache", "/update_weights"]
CLOSED += ["/server_info", "/pause", "/resume", "/tokenize", "/v1/load_lora_adapter", "/docs", "/openapi.json"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def own_address() -> str:
    """Return an address of this machine that is not loopback: who connects to it comes from it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing; picks the interface
        return str(probe.getsockname()[0])


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def token_of(pid: int) -> str:
    """Return the token that the supervisor made for this engine; only root and the pod's own user can read it."""
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(line.decode().split("=", 1) for line in variables if b"=" in line)[ENV_TOKEN]


class Replica:
    """The supervisor as the pod runs it."""

    def __init__(self, log: Path) -> None:
        self.port, self.engine_port = free_port(), free_port()
        self.address = own_address()
        config = ReplicaConfig(
            engine="VLLM",
            model_uri=f"file://{tiny_model()}",
            served_names=("tiny", "tiny-alias"),
            max_model_len=2048,
            max_num_seqs=16,
            max_num_batched_tokens=256,
            start_deadline_ms=START_S * 1000,
            drain_deadline_ms=120_000,
            extra_args=FAST_ON_CPU_ARGUMENTS,
        )
        environment = os.environ | provision().variables() | FAST_ON_CPU
        environment |= {ENV_CONFIG: config.to_json(), ENV_POD_UID: "uid-1"}
        program = Path(sys.executable).with_name("forebay-replica")
        arguments = ["--port", str(self.port), "--engine-port", str(self.engine_port)]
        self.log = log
        with log.open("w") as output:
            self.process = subprocess.Popen(
                [program, *arguments], env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def engine_processes(self) -> dict[int, str]:
        """Processes of the engine's group, which has the supervisor's child as its leader."""
        found = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                text = stat.read_text()
                parent, group = map(int, text.rpartition(")")[2].split()[1:3])
                found[int(stat.parent.name)] = (parent, group, text[text.index("(") + 1 : text.rindex(")")])
        leaders = {pid for pid, (parent, group, _) in found.items() if parent == self.process.pid and group == pid}
        return {pid: name for pid, (_, group, name) in found.items() if group in leaders}

    async def get(self, http: aiohttp.ClientSession, path: str) -> tuple[int, bytes]:
        async with http.get(f"http://127.0.0.1:{self.port}{path}") as response:
            return response.status, await response.read()

    async def until_ready(self, http: aiohttp.ClientSession) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            with suppress(aiohttp.ClientError):
                status, _ = await self.get(http, "/readyz")
                if status == 200:
                    return
            await asyncio.sleep(0.2)
        raise TimeoutError(self.log.read_text()[-3000:])

    def close(self, group: dict[int, str]) -> None:
        for pid in [self.process.pid, *group]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def stream(client: AsyncOpenAI, begun: asyncio.Event) -> tuple[int, str | None]:
    """Stream a completion; return the number of events with text, and the reason of its end."""
    events, reason = 0, None
    answer = await client.completions.create(
        model="tiny-alias", prompt="Once upon a time", max_tokens=STREAM_TOKENS, stream=True, temperature=0.5
    )
    async for chunk in answer:
        events += bool(chunk.choices[0].text)
        reason = chunk.choices[0].finish_reason or reason
        begun.set()
    return events, reason


async def test_real_vllm_lives_and_ends_as_a_replica(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    replica = Replica(tmp_path / "replica.log")
    group: dict[int, str] = {}
    client = AsyncOpenAI(base_url=f"http://{replica.address}:{replica.engine_port}/v1", api_key="none", max_retries=0)
    try:
        await replica.until_ready(http)
        group = replica.engine_processes()
        assert len(group) >= 2, group  # the API server and its EngineCore
        await reports_every_signal(replica, http)
        await speaks_to_clients(client)
        await page_has_the_names_of_the_recorded_one(replica, http)
        await keeps_its_development_routes_from_the_network(replica, http)
        await sleeps_and_wakes_for_its_supervisor(replica, http, token_of(min(group)))
        await drains_in_mid_stream(replica, http, client)
        assert replica.process.returncode == 0
        assert not [pid for pid in group if exists(pid)]
    finally:
        await client.close()
        replica.close(group)


async def reports_every_signal(replica: Replica, http: aiohttp.ClientSession) -> None:
    status, document = await replica.get(http, "/v1/state")
    state = ReplicaSignals.from_json(document)
    assert status == 200
    assert len(document) <= MAX_STATE_BYTES
    assert [f.name for f in fields(state) if getattr(state, f.name) is None] == []
    assert (state.pod_uid, state.phase, state.model) == ("uid-1", "ready", "tiny")
    assert (state.kv_block_tokens, state.requests_running, state.requests_waiting) == (32, 0, 0)
    assert state.prompt_tokens_total == len("Hello")  # the rehearsal: one token a byte
    assert state.generation_tokens_total == 2


async def speaks_to_clients(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=8
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    assert answer.usage.prompt_tokens_details is not None
    assert [model.id async for model in client.models.list()] == ["tiny", "tiny-alias"]


async def page_has_the_names_of_the_recorded_one(replica: Replica, http: aiohttp.ClientSession) -> None:
    async with http.get(f"http://{replica.address}:{replica.engine_port}/metrics") as response:
        page = await response.text()
    recorded = names_of(RECORDED.read_text())
    # Series with labels appear when first used; what we read is there from the start.
    assert names_of(page) & sample_names() == recorded & sample_names()
    assert {name for name in recorded if name.startswith("vllm:")} - names_of(page) == set()


def names_of(page: str) -> set[str]:
    return set(re.findall(r"^([a-z_:]+)[{ ]", page, re.MULTILINE))


async def keeps_its_development_routes_from_the_network(replica: Replica, http: aiohttp.ClientSession) -> None:
    forged: dict[str, Any] = {"headers": {"X-Forwarded-For": "127.0.0.1", "x-forebay-engine-token": "guess"}}
    for host in (replica.address, "127.0.0.1"):
        for path in CLOSED:
            for method in ("GET", "POST"):
                async with http.request(method, f"http://{host}:{replica.engine_port}{path}", **forged) as response:
                    assert response.status == 404, (host, method, path)
                    assert "Not served on this port." in await response.text()
    async with http.get(f"http://{replica.address}:{replica.engine_port}/health") as response:
        assert response.status == 200


async def sleeps_and_wakes_for_its_supervisor(replica: Replica, http: aiohttp.ClientSession, token: str) -> None:
    """On a CPU vLLM frees no memory, but routes, gauge and the guard are those of a GPU."""
    supervisor = EngineClient(replica.engine_port, token)
    try:
        assert (await supervisor.page()).awake is True
        await supervisor.sleep()
        assert (await supervisor.page()).awake is False
        await supervisor.wake()
        assert (await supervisor.page()).awake is True
        await supervisor.rehearse("tiny", 60)
    finally:
        await supervisor.close()
    headers = {HEADER_TOKEN: token}
    async with http.post(f"http://{replica.address}:{replica.engine_port}/sleep", headers=headers) as response:
        assert response.status == 404


async def drains_in_mid_stream(replica: Replica, http: aiohttp.ClientSession, client: AsyncOpenAI) -> None:
    begun = asyncio.Event()
    streaming = asyncio.create_task(stream(client, begun))
    await begun.wait()
    replica.process.terminate()
    readiness: list[int] = []
    while not streaming.done():
        status, _ = await replica.get(http, "/readyz")
        readiness.append(status)
        # While it drains the engine is whole: what a late gateway still sends is answered.
        if readiness.count(503) == 1 and status == 503:
            await client.completions.create(model="tiny", prompt="late", max_tokens=1)
        await asyncio.sleep(0.05)
    events, reason = await streaming
    assert reason == "length"
    assert events > STREAM_TOKENS / 2
    assert readiness.count(503) > 2
    assert 200 not in readiness[readiness.index(503) :]
    assert readiness.index(503) <= 2
    await asyncio.to_thread(replica.process.wait, 60)
