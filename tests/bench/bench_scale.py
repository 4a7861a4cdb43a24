"""Ten thousand InferenceServices on a real API server, in Manual mode and without replicas: one operator starts, tells
of all of them, falls silent, and is started again.

No pods are needed, so no kwok and no kubelet's work either: what is measured is the operator and its API server. It
fails for one thing only: a write in a minute in which nothing changed.
"""

# ruff: noqa: E402, T201 - a program that prints its rows and must find what stands beside it before it imports that

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from kubernetes.aio import client, config

from e2e.cluster.cluster import Cluster
from e2e.cluster.wait import until
from forebay.actuate.client import Kube
from forebay.actuate.errors import AlreadyThereError, GoneError, UnreachableError
from tests.e2e.operator_process import OperatorProcess

SERVICES = int(os.environ.get("FOREBAY_BENCH_SERVICES", "10000"))
HOME, FLEET = "forebay", "fleet"
START_AIM_S = 60
QUIET_S = 60
SILENT_S = 15  # longer than the 10 s for which a status may have to wait for its turn
AT_ONCE = 32  # creations
PATIENCE_S = 600
WRITES = ("POST", "PUT", "PATCH", "APPLY", "DELETE")
# Leases are renewed for ever, by the operator and by Kubernetes itself; Kubernetes writes of its nodes as well, and its
# controllers their events in the older API group, which the operator does not use.
OF_KUBERNETES = ("coordination.k8s.io/leases", "/nodes", "/events")
TOLD = ("forebay.dev/inferenceservices", "policy/poddisruptionbudgets", "events.k8s.io/events")
COUNTED = re.compile(
    r'^apiserver_request_total\{[^}]*,group="([a-z0-9.]*)",resource="([a-z]+)"[^}]*verb="([A-Z]+)"[^}]*\} (\S+)$',
    re.MULTILINE,
)


def tell(what: str, value: float, unit: str, aim: str = "") -> None:
    """Print one row of `make bench`."""
    print(f"{SERVICES:,} services: {what}\t{value:,.1f}\t{unit}\t{aim}", flush=True)


def service(number: int) -> dict[str, Any]:
    """A service of which a person said that it has no replicas."""
    return {
        "apiVersion": "forebay.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": f"s{number:05}", "namespace": FLEET},
        "spec": {
            "model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct", "servedName": f"s{number:05}"},
            "engine": {"type": "Emulated", "maxNumSeqs": 8},
            "accelerators": [{"name": "l40s", "type": "L40S", "resource": "nvidia.com/gpu"}],
            "class": "Batch",
            "replicas": 0,
            "scaling": {"mode": "Manual", "minReplicas": 0},
        },
    }


async def create_all(cluster: Cluster) -> None:
    """Create the services, some at a time."""
    loaded = client.Configuration()
    await config.load_kube_config(str(cluster.host_kubeconfig), client_configuration=loaded)  # type: ignore[no-untyped-call]
    async with client.ApiClient(configuration=loaded) as api:
        kube, slots = Kube(api, lambda: float("inf")), asyncio.Semaphore(AT_ONCE)

        async def create(number: int) -> None:
            path = f"/apis/forebay.dev/v1alpha1/namespaces/{FLEET}/inferenceservices"
            async with slots:
                # A busy server may answer too late, and have done it nevertheless.
                while True:
                    with suppress(UnreachableError, AlreadyThereError):
                        await kube.write("POST", path, service(number))
                        return
                    with suppress(UnreachableError, GoneError):
                        await kube.read(f"{path}/s{number:05}")
                        return

        await asyncio.gather(*(create(number) for number in range(SERVICES)))


class Server:
    """What the API server counts."""

    def __init__(self, cluster: Cluster) -> None:
        self._api = cluster.api

    def writes(self) -> Counter[str]:
        """Return the writes since its start, by API group and resource."""
        page = ""

        def answered() -> bool:
            nonlocal page
            page = self._api.get("/metrics") or ""
            return bool(page)

        until(answered, "the API server tells its metrics", PATIENCE_S)
        found: Counter[str] = Counter()
        for group, resource, verb, count in COUNTED.findall(page):
            if verb in WRITES:
                found[f"{group}/{resource}"] += int(float(count))
        return found

    def told(self) -> int:
        """Count the writes of what an operator tells."""
        writes = self.writes()
        return sum(writes[resource] for resource in TOLD)


class Watched:
    """An operator under observation."""

    def __init__(self, operator: OperatorProcess) -> None:
        self.operator, self.begun_s = operator, time.monotonic()
        operator.start()

    def since_start_s(self) -> float:
        """Return the seconds since it was started."""
        return time.monotonic() - self.begun_s

    def first_tick_s(self) -> float:
        """Wait for its first verdict on all services: the journal has it at once, and reading that disturbs nobody."""
        journal = self.operator.journal
        size = sum(file.stat().st_size for file in journal.glob("*")) if journal.is_dir() else 0

        def written() -> bool:
            return journal.is_dir() and sum(file.stat().st_size for file in journal.glob("*")) > size

        until(written, "the operator judges", PATIENCE_S)
        return self.since_start_s()

    def memory_mb(self, which: str) -> float:
        """Return VmRSS or VmHWM of the process."""
        status = Path(f"/proc/{self.operator.pid}/status").read_text()
        return int(status.split(f"{which}:")[1].split()[0]) * 1024 / 1e6

    def cpu_s(self) -> float:
        """Return the processor time that it has used."""
        fields = Path(f"/proc/{self.operator.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def until_silent(server: Server, at_least: int) -> tuple[int, float]:
    """Wait until so much is told and nothing more is; returns the writes, and when the last was seen."""
    last, last_s = server.told(), time.monotonic()
    while last < at_least or time.monotonic() - last_s < SILENT_S:
        time.sleep(1)
        if (now := server.told()) != last:
            last, last_s = now, time.monotonic()
    return last, last_s


def start(watched: Watched, server: Server, before: int, at_least: int, name: str) -> None:
    """Print what a start takes."""
    tell(f"{name}, until all are listed and judged", watched.first_tick_s(), "s", f"<= {START_AIM_S}")
    writes, last_s = until_silent(server, before + at_least)
    told_s = max(last_s - watched.begun_s, 1)
    tell(f"{name}, writes to the API server", writes - before, "writes")
    if writes > before:
        tell(f"{name}, until all are told", told_s, "s")
        tell(f"{name}, writes while telling", (writes - before) / told_s, "writes/s")
    tell(f"{name}, peak memory", watched.memory_mb("VmHWM"), "MB")


def quiet_minute(watched: Watched, server: Server) -> int:
    """Print what a minute costs in which nothing changes; returns the writes in it."""
    before, cpu_s = server.writes(), watched.cpu_s()
    time.sleep(QUIET_S)
    after = server.writes()
    tell("a quiet minute, CPU", 100 * (watched.cpu_s() - cpu_s) / QUIET_S, "% of a core")
    tell("a quiet minute, memory", watched.memory_mb("VmRSS"), "MB")
    changed = {name: count - before[name] for name, count in after.items() if count != before[name]}
    tell("a quiet minute, renewals of leases, Kubernetes' own included", changed.get(OF_KUBERNETES[0], 0), "writes")
    others = {name: count for name, count in changed.items() if name not in OF_KUBERNETES}
    tell("a quiet minute, other writes", sum(others.values()), "writes", "0")
    if others:
        print(f"written while nothing changed: {others}", file=sys.stderr)
    return sum(others.values())


def measure(cluster: Cluster, folder: Path) -> int:
    """Run it all; returns the number of writes that nothing called for."""
    cluster.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", str(ROOT / "crds"))
    for name in (HOME, FLEET):
        cluster.kubectl("create", "namespace", name)
    begun_s = time.monotonic()
    asyncio.run(create_all(cluster))
    tell("created by this program", SERVICES / (time.monotonic() - begun_s), "objects/s")
    server = Server(cluster)
    operator = OperatorProcess(cluster, folder, namespace=HOME, watch=FLEET, port=18080)
    unasked = 0
    try:
        for name, at_least in (("the first start", SERVICES), ("a restart", 0)):
            before = server.told()
            watched = Watched(operator)
            start(watched, server, before, at_least, name)
            unasked += quiet_minute(watched, server)
            operator.stop()
    except BaseException:
        print(operator.log()[-4000:], file=sys.stderr)
        raise
    finally:
        operator.stop()
    return unasked


def main() -> int:
    """Return 1 if there was a write without a reason."""
    with Cluster.start(nodes=1, gpus_per_node=0) as cluster, tempfile.TemporaryDirectory() as folder:
        return min(1, measure(cluster, Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
