"""A replica under test: the supervisor's process, its stage, and words to ask and wait with."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from forebay.wire.replica_config import ReplicaConfig
from forebay.wire.signals import ReplicaSignals

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

PROGRAM = Path(__file__).with_name("scripted_replica.py")
OPERATOR = "system:serviceaccount:forebay:forebay-operator"
PATIENCE_S = 60.0  # for a state to come about on a machine that has other things to do


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def children(pid: int) -> list[int]:
    with suppress(FileNotFoundError, ProcessLookupError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


class Replica:
    def __init__(
        self, process: asyncio.subprocess.Process, port: int, stage: Path, http: aiohttp.ClientSession
    ) -> None:
        self.process = process
        self.stage = stage
        self.url = f"http://127.0.0.1:{port}"
        self._http = http

    async def status(self, path: str, method: str = "GET", token: str | None = None) -> int:
        """HTTP status of an answer, 0 when there is none."""
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        try:
            async with self._http.request(method, self.url + path, headers=headers) as response:
                await response.read()
                return response.status
        except (aiohttp.ClientError, OSError):
            return 0

    async def state(self) -> ReplicaSignals:
        async with self._http.get(self.url + "/v1/state") as response:
            return ReplicaSignals.from_json(await response.read())

    async def until(self, holds: Callable[[], Awaitable[bool] | bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            result = holds()
            if result if isinstance(result, bool) else await result:
                return
            if time.monotonic() > deadline:
                raise TimeoutError
            await asyncio.sleep(0.02)

    async def until_ready(self) -> None:
        async def ready() -> bool:
            return await self.status("/readyz") == 200

        await self.until(ready)

    async def until_phase(self, phase: str) -> None:
        async def reached() -> bool:
            with suppress(aiohttp.ClientError):
                return (await self.state()).phase == phase
            return False

        await self.until(reached)

    def lines(self, name: str) -> list[str]:
        file = self.stage / name
        return file.read_text().split() if file.exists() else []

    def tell(self, name: str, text: str = "1") -> None:
        (self.stage / f".{name}").write_text(text)
        (self.stage / f".{name}").rename(self.stage / name)

    def untell(self, name: str) -> None:
        (self.stage / name).unlink()

    async def ended(self) -> int:
        return await asyncio.wait_for(self.process.wait(), PATIENCE_S)


@asynccontextmanager
async def replica(stage: Path, api_url: str = "", pace: str = "quick", **settings: Any) -> AsyncIterator[Replica]:
    """Run a supervisor with a scripted engine; whatever is left of both afterwards is killed."""
    port, engine_port = free_port(), free_port()
    config = ReplicaConfig("Scripted", "file:///m", ("m",), operator_username=OPERATOR, **settings)
    arguments = (str(port), str(engine_port), str(stage), api_url, config.to_json(), pace)
    process = await asyncio.create_subprocess_exec(sys.executable, str(PROGRAM), *arguments)
    async with aiohttp.ClientSession() as http:
        running = Replica(process, port, stage, http)
        try:
            yield running
        finally:
            # Outside of a container nothing ends the engine's group with its supervisor: name it before it is orphaned.
            left = (*children(process.pid), *map(int, running.lines("child")))
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
