"""The emulated engine kept by the command that a replica's container runs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
from openai import AsyncOpenAI

from forebay.wire.replica_config import ENV_CONFIG, ENV_POD_NAME, ENV_POD_UID, Emulation, ReplicaConfig
from forebay.wire.signals import ReplicaSignals

sys.path.insert(0, str(Path(__file__).parent))
from replica import PATIENCE_S, free_port

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

# A decode step of 20 ms; no model error, so that the test knows how long a stream takes.
EMULATION = Emulation(
    step_c0_ps=20_000_000_000,
    step_c1_ps=0,
    step_c2_ps=0,
    step_p1_ps=1_000_000,
    step_p2_fs=0,
    kv_tokens_total=32_000,
    cold_start_ms=300,
    wake_ms=50,
    model_error_permille=0,
    step_noise_permille=0,
    seed=1,
)
STREAM_TOKENS = 150  # 3 s


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with suppress(aiohttp.ClientError):
            if await holds():
                return
        await asyncio.sleep(0.02)
    raise TimeoutError


async def test_an_emulated_replica_gets_ready_reports_and_drains_in_mid_stream() -> None:
    config = ReplicaConfig("Emulated", "hf://meta-llama/Llama-3.1-8B-Instruct", ("llama",), emulation=EMULATION)
    environment = os.environ | {ENV_CONFIG: config.to_json(), ENV_POD_UID: "uid-1", ENV_POD_NAME: "chat-abcde-0"}
    port, engine_port = free_port(), free_port()
    program = Path(sys.executable).with_name("forebay-replica")
    arguments = ["--port", str(port), "--engine-port", str(engine_port)]
    process = subprocess.Popen([program, *arguments], env=environment)  # noqa: ASYNC220 - starts at once
    client = AsyncOpenAI(base_url=f"http://127.0.0.1:{engine_port}/v1", api_key="none", max_retries=0)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
            await ready_reports_and_drains(http, client, process)
        assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        await client.close()


async def ready_reports_and_drains(
    http: aiohttp.ClientSession, client: AsyncOpenAI, process: subprocess.Popen[bytes]
) -> None:
    async def readiness() -> int:
        async with http.get("/readyz") as response:
            return response.status

    async def state() -> ReplicaSignals:
        async with http.get("/v1/state") as response:
            return ReplicaSignals.from_json(await response.read())

    async def is_ready() -> bool:
        return await readiness() == 200

    async def is_running() -> bool:
        return (await state()).requests_running == 1

    await until(is_ready)
    now = await state()
    assert (now.pod_uid, now.phase, now.model) == ("uid-1", "ready", "llama")
    assert now.start_ms is not None
    assert now.start_ms >= EMULATION.cold_start_ms
    unknown = {name for name in ReplicaSignals.__slots__ if getattr(now, name) is None}
    assert unknown == set()
    answer = await client.completions.create(model="llama", prompt="x", max_tokens=STREAM_TOKENS, stream=True)
    await until(is_running)
    process.terminate()
    reasons = [chunk.choices[0].finish_reason async for chunk in answer if chunk.choices]
    assert reasons[-1] == "length"
    assert await readiness() == 503
    assert (await state()).phase == "draining"
