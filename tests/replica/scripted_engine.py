"""An engine that does what files tell it; started by the tests of the supervisor with a port and a stage folder.

    health, rehearsal, page   a file of that name makes that route answer 503
    running, queued           what the gauges say
    embeds                    there are embeddings and no completions
    lies                      /sleep answers 200 and nothing happens
    hangs                     /metrics does not answer
    exit                      the process ends with the code in it
    deaf                      SIGTERM is ignored
Written by it: pages (a line each look at its metrics), rehearsals, ended (on SIGTERM), child (pid of a deaf child).
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

from aiohttp import web

STAGE = Path(sys.argv[2])
awake = True


def told(name: str, default: str = "") -> str:
    file = STAGE / name
    return file.read_text() if file.exists() else default


def note(name: str, text: str) -> None:
    with (STAGE / name).open("a") as file:
        file.write(text + "\n")


def unless(name: str) -> web.Response:
    return web.Response(status=503 if (STAGE / name).exists() else 200)


async def health(_: web.Request) -> web.Response:
    return unless("health")


async def complete(request: web.Request) -> web.Response:
    if (STAGE / "embeds").exists():
        return web.Response(status=404)
    note("rehearsals", (await request.json())["model"])
    return unless("rehearsal")


async def embed(request: web.Request) -> web.Response:
    note("embedded", (await request.json())["input"])
    return web.Response()


async def metrics(_: web.Request) -> web.Response:
    note("pages", "page")
    while (STAGE / "hangs").exists():  # noqa: ASYNC110 - a file tells of no event
        await asyncio.sleep(0.05)
    if (STAGE / "page").exists():
        return web.Response(status=503)
    lines = [
        f'vllm:num_requests_running{{engine="0",model_name="m"}} {told("running", "0")}',
        f'vllm:num_requests_waiting{{engine="0",model_name="m"}} {told("queued", "0")}',
        f'vllm:engine_sleep_state{{engine="0",model_name="m",sleep_state="awake"}} {int(awake)}',
    ]
    return web.Response(text="\n".join(lines) + "\n")


async def sleep(request: web.Request) -> web.Response:
    global awake  # noqa: PLW0603 - one engine a process
    note("orders", f"{request.path_qs} {request.headers.get('x-forebay-engine-token')}")
    awake = (STAGE / "lies").exists()
    return web.Response()


async def wake_up(_: web.Request) -> web.Response:
    global awake  # noqa: PLW0603 - one engine a process
    awake = True
    return web.Response()


def have_children() -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    note("child", str(subprocess.Popen([sys.executable, "-c", deaf]).pid))
    # A grandchild whose parent is gone at once: an orphan that ends some time later and that somebody has to reap.
    subprocess.run(["/bin/sh", "-c", "sleep 0.2 & echo $!"], check=True, stdout=(STAGE / "orphan").open("w"))


async def main() -> int:
    if code := told("exit"):
        return int(code)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None if told("deaf") else ended.set())
    have_children()
    app = web.Application()
    app.add_routes([web.get("/health", health), web.get("/metrics", metrics), web.post("/v1/completions", complete)])
    app.add_routes([web.post("/sleep", sleep), web.post("/wake_up", wake_up), web.post("/v1/embeddings", embed)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", int(sys.argv[1])).start()
    while not ended.is_set() and not told("exit"):  # noqa: ASYNC110 - a file tells of no event
        await asyncio.sleep(0.02)
    note("ended", "SIGTERM" if ended.is_set() else "by itself")
    return int(told("exit", "0"))


sys.exit(asyncio.run(main()))
