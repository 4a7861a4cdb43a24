"""The one process of a cluster on the machine's side: it holds the namespaces, relays ports, and cleans up.

It lives in a session of its own, so Ctrl-C in a terminal does not reach it. Its standard input is a pipe from whoever
started it: when that closes, however the other end died, the keeper takes the whole cluster down, unless it was
told to `detach` before (`python -m e2e.cluster up` does). When the keeper itself is killed, the kernel kills the
nodes' first processes, and with them all the rest; only empty control groups stay, which the next start removes.

Requests are lines of JSON on a Unix socket, each with one line in answer. `KeeperClient` speaks for the other side.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from e2e.cluster import cgroups
from e2e.cluster.command import DIES_WITH_US
from e2e.cluster.layout import Layout
from e2e.cluster.paths import ROOT, SOURCES, cache
from e2e.cluster.relay import Relay

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_NAMESPACES = ("--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc")
SOCKET = "keeper.sock"
LOCK = "keeper.lock"
# The kubelet's log lines and JSON answers fit; the default of 64 KiB would not hold a long argv with certificates.
_LINE_LIMIT = 1 << 20


def _prepared(layout: Layout, node: str) -> dict[str, Any]:
    """Make what must exist outside before the node's first process starts, and say what that is to do."""
    cgroups.create(layout.identity, node)
    for source in layout.binds(node).values():
        Path(source).mkdir(parents=True, exist_ok=True)
    return {
        "hostname": node,
        "cgroups": cgroups.entrances(layout.identity, node),
        "keep": [str(ROOT), str(cache())],
        "binds": layout.binds(node),
    }


def _child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


class NodeSpace:
    """The namespaces of one node, by way of its first process (node_init.py)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pid = 0
        self.running: dict[str, int] = {}
        self._changed = asyncio.Condition()
        self._failures: dict[str, str] = {}
        self._ready = False

    async def start(self, layout: Layout) -> None:
        """Make the namespaces and wait until their mounts stand."""
        settings = _prepared(layout, self.name)
        # -S and -E: no site packages and no environment of the project, which node_init does not need.
        init = (sys.executable, "-S", "-E", str(SOURCES / "node_init.py"), json.dumps(settings))
        log = (layout.logs / f"{self.name}-init.log").open("ab")
        with log:
            self._process = await asyncio.create_subprocess_exec(
                *DIES_WITH_US, "unshare", *_NAMESPACES, "--propagation", "private", *init,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log, cwd="/",
            )  # fmt: skip
        self._listener = asyncio.create_task(self._listen())
        await self._until(lambda: self._ready)
        self.pid = _child(self._process.pid)

    async def spawn(self, service: str, argv: list[str], env: dict[str, str], log: str) -> None:
        """Start a daemon in the node; its pid is known when this returns."""
        self._failures.pop(service, None)
        self._order({"spawn": service, "argv": argv, "env": env, "log": log})
        await self._until(lambda: service in self.running or service in self._failures)
        if service in self._failures:
            raise RuntimeError(f"{service}: {self._failures[service]}")

    async def signal(self, service: str, number: int) -> None:
        """Send a signal; with SIGKILL, wait until the daemon is gone."""
        self._order({"signal": service, "number": number})
        if number == signal.SIGKILL:
            await self._until(lambda: service not in self.running)

    async def kill(self) -> None:
        """End all of the node at once, as a power cut does."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        elif self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        self._listener.cancel()

    def _order(self, order: dict[str, Any]) -> None:
        cast("asyncio.StreamWriter", self._process.stdin).write(json.dumps(order).encode() + b"\n")

    async def _until(self, predicate: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: predicate() or self._process.returncode is not None)
        if not predicate():
            raise RuntimeError(f"{self.name} has ended")

    async def _listen(self) -> None:
        async for line in cast("asyncio.StreamReader", self._process.stdout):
            async with self._changed:
                self._note(json.loads(line))
                self._changed.notify_all()
        await self._process.wait()
        async with self._changed:
            self.running.clear()
            self._changed.notify_all()

    def _note(self, message: dict[str, Any]) -> None:
        match message:
            case {"ready": True}:
                self._ready = True
            case {"spawned": name, "pid": pid}:
                self.running[name] = pid
            case {"failed": name, "error": error}:
                self._failures[name] = error
            case {"exited": name, "status": status}:
                self.running.pop(name, None)
                _log(f"{self.name}: {name} ended with {status}")
            case _:
                _log(f"{self.name}: not understood: {message}")


class Keeper:
    """All nodes and doors of one cluster."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._nodes: dict[str, NodeSpace] = {}
        self._relay: Relay | None = None
        self._detached = False
        self._end = asyncio.Event()
        self._keep_logs = True

    async def run(self) -> None:
        """Serve until told to end or left alone, then leave nothing behind."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._end.set)
        # The folder may be deeper than the 108 bytes that an address of a Unix socket can hold; its handle is not.
        folder = os.open(self._layout.folder, os.O_PATH)
        path = f"/proc/self/fd/{folder}/{SOCKET}"
        server = await asyncio.start_unix_server(self._answer, path, limit=_LINE_LIMIT)
        watch = asyncio.create_task(self._watch_owner())
        # Standard output was for this one line; whoever read it closes it. Everything later goes to the log.
        print("ready", flush=True)
        try:
            await self._end.wait()
        finally:
            watch.cancel()
            server.close()
            await self._clean_up()

    async def _watch_owner(self) -> None:
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        await reader.read()
        if not self._detached:
            _log("the owner is gone")
            self._end.set()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            async for line in reader:
                try:
                    answer = {"result": await self._do(**json.loads(line))}
                except Exception as error:  # noqa: BLE001 - whatever it was belongs to the one who asked
                    answer = {"error": f"{type(error).__name__}: {error}"}
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        writer.close()

    async def _do(self, do: str, **arguments: Any) -> Any:
        requests: dict[str, Callable[..., Awaitable[Any]]] = {
            "start_node": self._start_node,
            "kill_node": lambda node: self._nodes.pop(node).kill(),
            "spawn": lambda node, **order: self._nodes[node].spawn(**order),
            "signal": lambda node, **order: self._nodes[node].signal(**order),
            "running": self._running,
            "relay": lambda host, port: self._door().open(host, port),
            "answers": lambda host, port: self._door().answers(host, port),
            "detach": self._detach,
            "down": self._down,
        }
        return await requests[do](**arguments)

    async def _start_node(self, node: str) -> int:
        space = self._nodes[node] = NodeSpace(node)
        await space.start(self._layout)
        if self._relay is None:
            # The first node is the way in: it carries the control plane, and its bridge reaches all pods.
            self._relay = Relay(space.pid)
        return space.pid

    async def _running(self) -> dict[str, list[str]]:
        return {name: sorted(space.running) for name, space in self._nodes.items()}

    async def _detach(self) -> None:
        self._detached = True

    async def _down(self, *, keep_logs: bool) -> None:
        self._keep_logs = keep_logs
        self._end.set()

    def _door(self) -> Relay:
        if self._relay is None:
            raise RuntimeError("no node runs yet")
        return self._relay

    async def _clean_up(self) -> None:
        if self._relay:
            self._relay.close()
        await asyncio.gather(*(space.kill() for space in self._nodes.values()), return_exceptions=True)
        left = await asyncio.to_thread(cgroups.remove, self._layout.identity)
        if left:
            _log(f"could not remove {left}")
        sweep(self._layout, keep_logs=self._keep_logs)


def sweep(layout: Layout, *, keep_logs: bool) -> None:
    """Remove the cluster's files; nothing of it may run any more."""
    if not keep_logs:
        shutil.rmtree(layout.folder, ignore_errors=True)
        return
    for path in layout.folder.iterdir():
        if path.name == LOCK or path == layout.logs:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Run the keeper of the cluster that the one argument names."""
    layout = Layout(sys.argv[1])
    # Held as long as this process lives: the sign, safe against crashes, that the cluster stands.
    lock = (layout.folder / LOCK).open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    lock.write(str(os.getpid()))
    lock.flush()
    asyncio.run(Keeper(layout).run())


if __name__ == "__main__":
    main()
