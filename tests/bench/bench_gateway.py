"""What the picker costs: its CPU time a request, and the latency that it adds to an Envoy without it, in one run."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import yaml

from forebay.gateway import envoy
from forebay.gateway.main import render_envoy
from forebay.gateway.settings import Ports, Settings
from tests.gateway.fleet import Client, Envoy, a_pod, a_service, free_port, some_network
from tests.observe.kube_api import KubeApi

AIM_CPU_MS = 0.4
AIM_ADDED_MS = 1.0
BLOCKS, REQUESTS = 6, 300  # alternating, so that a busy machine slows both alike
CONCURRENT, CONCURRENT_REQUESTS = 16, 3_000
PICKER = str(Path(__file__).resolve().parents[1] / "gateway" / "picker_process.py")
BODY = json.dumps({"model": "a", "messages": [{"role": "user", "content": "Why is the sky blue? " * 5}]}).encode()
REPLY = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
PATHS = ("/api/v1/pods", "/apis/forebay.dev/v1alpha1/inferenceservices", "/apis/forebay.dev/v1alpha1/slopolicies")


class Backend(asyncio.Protocol):
    """The least that answers: once for every body's end."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        # Through the picker bodies come chunked, without it with a length.
        if data.endswith((b"0\r\n\r\n", BODY)):
            self.transport.write(REPLY)


async def serve_backend(ip: str, port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Backend, ip, port)
    await server.serve_forever()


class Connection:
    """One connection that asks again and again."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(BODY)}\r\n\r\n"
        self.request = head.encode() + BODY

    def ask(self) -> float:
        """Return the milliseconds of one request."""
        start = time.perf_counter()
        self.socket.sendall(self.request)
        reply = b""
        while not reply.endswith(b"{}"):
            reply += self.socket.recv(65_536)
        if not reply.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(reply.decode())
        return (time.perf_counter() - start) * 1_000


def cpu_ms(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1_000 / os.sysconf("SC_CLK_TCK")


def start(*command: str) -> subprocess.Popen[bytes]:
    """Start a Python program of this folder's neighbours."""
    return subprocess.Popen([sys.executable, *command])


def plain(backend: tuple[str, int], folder: Path) -> Settings:
    """Write the bootstrap of an Envoy that only forwards: no picker, no access log, one backend."""
    ports = Ports(free_port(), free_port(), free_port(), free_port())
    without = Settings("plain", directory=folder / "plain", listen="127.0.0.1", ports=ports)
    document = json.loads(json.dumps(envoy.bootstrap(without)))
    resources = document["static_resources"]
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    manager["http_filters"] = manager["http_filters"][-1:]
    manager["access_log"] = []
    for route in manager["route_config"]["virtual_hosts"][0]["routes"]:
        route.pop("typed_per_filter_config", None)
    pool = envoy.endpoints([envoy.Host(*backend, None)])["resources"][0]
    pool.pop("@type")
    resources["clusters"] = [{"name": "pool", "type": "STATIC", "connect_timeout": "1s", "load_assignment": pool}]
    without.bootstrap_file.parent.mkdir(parents=True)
    without.bootstrap_file.write_text(yaml.safe_dump(document))
    return without


def alternate(with_picker: int, without: int) -> tuple[list[float], list[float]]:
    """Ask both in turn; return their latencies."""
    first, second = Connection(with_picker), Connection(without)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(BLOCKS):
        for connection, into in ((first, times[0]), (second, times[1])):
            into += [connection.ask() for _ in range(REQUESTS)]
    return times


def many(port: int) -> float:
    """Ask on many connections at once; return the seconds."""
    connections = [Connection(port) for _ in range(CONCURRENT)]

    def work(connection: Connection) -> None:
        for _ in range(CONCURRENT_REQUESTS // CONCURRENT):
            connection.ask()

    threads = [threading.Thread(target=work, args=(c,)) for c in connections]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


async def measure(folder: Path) -> list[tuple[str, float, str, str]]:
    """Start everything, measure, end everything."""
    ports = Ports(*(free_port() for _ in range(6)))
    settings = Settings("bench", directory=folder / "run", listen="127.0.0.1", ports=ports)
    render_envoy(settings)
    backend = (f"{some_network()}.1", ports.engine)
    without = plain(backend, folder)
    kube = await KubeApi(*PATHS).start()
    await kube.collections[PATHS[1]].put_object(a_service("a", engine={"maxNumSeqs": 256}))
    await kube.collections[PATHS[0]].put_object(a_pod("r1", backend[0], "a"))
    fields = asdict(settings) | {"directory": str(settings.directory), "api_url": kube.url}
    client = Client(settings)
    processes = [start(__file__, "--backend", backend[0], str(backend[1])), start(PICKER, json.dumps(fields))]
    envoys = [Envoy(settings, folder / "envoy.log"), Envoy(without, folder / "plain.log")]
    picker = processes[1].pid
    try:
        await client.until_ready()
        while (await client.ask()).status != 200:  # noqa: ASYNC110 - the backend is another process
            await asyncio.sleep(0.1)
        await asyncio.to_thread(alternate, ports.gateway, without.ports.gateway)  # warm up
        before = cpu_ms(picker)
        picked, direct = await asyncio.to_thread(alternate, ports.gateway, without.ports.gateway)
        alone = (cpu_ms(picker) - before) / len(picked)
        before = cpu_ms(picker)
        seconds = await asyncio.to_thread(many, ports.gateway)
        crowd = (cpu_ms(picker) - before) / CONCURRENT_REQUESTS
    finally:
        for running in envoys:
            running.stop()
        for process in processes:
            process.kill()
            process.wait()
        await client.close()
        await kube.stop()
    return [
        ("gateway: picker CPU a request, concurrency 1", alone, "ms", f"<= {AIM_CPU_MS}"),
        (f"gateway: picker CPU a request, concurrency {CONCURRENT}", crowd, "ms", f"<= {AIM_CPU_MS}"),
        ("gateway: p50 of Envoy alone, concurrency 1", median(direct), "ms", "-"),
        ("gateway: p50 with the picker, concurrency 1", median(picked), "ms", "-"),
        ("gateway: p50 added by the picker", median(picked) - median(direct), "ms", f"<= {AIM_ADDED_MS}"),
        (f"gateway: requests/s, concurrency {CONCURRENT}", CONCURRENT_REQUESTS / seconds, "1/s", "-"),
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--backend"]:
        asyncio.run(serve_backend(sys.argv[2], int(sys.argv[3])))
    with tempfile.TemporaryDirectory() as name:
        for row in asyncio.run(measure(Path(name))):
            print(f"{row[0]}\t{row[1]:.3f}\t{row[2]}\t{row[3]}")  # noqa: T201 - make bench reads it
