"""How long a request that finds everything full waits for a warm replica to be promoted for it: 200 trials, one by one.
On a local Kubernetes, which this program starts and takes down again: Linux, root, what e2e/cluster asks for, and
about 12 minutes on two cores, Kubernetes and images not counted.

The whole path is real: the chart's operator, gateway and Envoy, and emulated engines. Eight services with one serving
and one warm replica each take turns. A trial fills the serving replica and sends one request more. The gateway holds it
and tells so, the operator's early tick promotes the warm replica by its label, the gateway sees the label and sends the
request on. Once all have ended, the operator takes the replica back into the pool by its own rules, which takes about
half a minute: hence the eight.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from e2e.cluster import images
from e2e.cluster.cluster import Cluster
from forebay.wire.names import GATEWAY_SIGNALS_PORT, LABEL_SERVICE, LABEL_STATE, PATH_METRICS
from tests.e2e.release import REPLICAS, Release, installed

if TYPE_CHECKING:
    from collections.abc import Sequence

AIM_MS = 1_000
TRIALS, SERVICES = 200, 8
BATCH = 2
FULL = BATCH + 1  # the gateway sends one request over the batch, see ALLOWANCE_SHARE
# 3 s of an emulated L40S, for all requests alike and to their end: the operator promotes for one that waits only if it
# has learned that answers are too long for a slot to fall free in time.
ANSWER_TOKENS = 100
# A burst that comes sooner is the same burst for the operator: the promoted replica would stay.
REST_S = 25.0
PATIENCE_S, TRIAL_S = 300.0, 30.0


@dataclass(frozen=True)
class Trial:
    """One request that was held and sent on."""

    waited_ms: float  # by the gateway's clock: from its admission until it was sent to the replica
    answered_ms: float  # by the client's clock: from sending the request to the first byte of the answer


@dataclass
class Bench:
    """The services under test and what was measured."""

    release: Release
    http: aiohttp.ClientSession
    metrics_url: str
    rested_s: dict[str, float] = field(default_factory=dict)  # service to since when it may be asked again
    trials: list[Trial] = field(default_factory=list)
    not_held: int = 0
    resting: list[asyncio.Task[None]] = field(default_factory=list)

    def states(self) -> dict[str, dict[str, str]]:
        """Service to its replicas that are ready, pod to state."""
        path = f"/api/v1/namespaces/{self.release.served}/pods?labelSelector={REPLICAS}"
        found: dict[str, dict[str, str]] = {}
        for pod in (self.release.cluster.api.get(path) or {"items": []})["items"]:
            ready = any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))
            if ready and "deletionTimestamp" not in pod["metadata"]:
                labels = pod["metadata"]["labels"]
                found.setdefault(labels[LABEL_SERVICE], {})[pod["metadata"]["name"]] = labels[LABEL_STATE]
        return found

    async def rested(self, count: int = 1) -> list[tuple[str, str]]:
        """Wait for so many services with a serving and a warm replica that have rested; return them and the warm pod.

        The one that has rested longest comes first.
        """
        async with asyncio.timeout(PATIENCE_S):
            while True:
                states, now_s = await asyncio.to_thread(self.states), time.monotonic()
                ready = [
                    (name, next(pod for pod, state in states[name].items() if state == "warm"))
                    for name, since_s in sorted(self.rested_s.items(), key=lambda row: row[1])
                    if since_s <= now_s and sorted(states.get(name, {}).values()) == ["serving", "warm"]
                ]
                if len(ready) >= count:
                    return ready
                await asyncio.sleep(0.5)

    async def gateway(self, service: str) -> tuple[float, float, float]:
        """Return requests with replicas, requests ever sent, and the milliseconds that those waited before."""
        async with self.http.get(self.metrics_url) as response:
            page = await response.text()
        key, found = f"{self.release.served}/{service}", dict.fromkeys(("in_flight_requests", "count", "sum"), 0.0)
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if sample.labels.get("service") == key:
                    name = sample.name.removeprefix("forebay_gateway_").removeprefix("queue_seconds_")
                    found[name] = sample.value
        return found["in_flight_requests"], found["count"], found["sum"] * 1_000

    async def ask(self, service: str, told: asyncio.Event | None = None) -> None:
        """Stream an answer to its end."""
        model = f"{self.release.served}-{service}"
        body = {"model": model, "prompt": "hello", "max_tokens": ANSWER_TOKENS, "stream": True}
        async with self.http.post(f"{self.release.url}/v1/completions", json=body) as response:
            response.raise_for_status()
            async for _ in response.content.iter_any():
                if told is not None:
                    told.set()

    async def trial(self, service: str, warm: str) -> None:
        """Fill the serving replica, send one request more, and measure it."""
        del self.rested_s[service]
        asked = [asyncio.create_task(self.ask(service)) for _ in range(FULL)]
        async with asyncio.timeout(TRIAL_S):
            while (before := await self.gateway(service))[0] < FULL:  # noqa: ASYNC110 - another process's state
                await asyncio.sleep(0.005)
            told, start_s = asyncio.Event(), time.monotonic()
            asked.append(asyncio.create_task(self.ask(service, told)))
            await told.wait()
            answered_ms = (time.monotonic() - start_s) * 1_000
        _, sent, waited_ms = await self.gateway(service)
        states = (await asyncio.to_thread(self.states)).get(service, {})
        if waited_ms - before[2] < 1 or sent - before[1] != 1 or states.get(warm) != "serving":
            self.not_held += 1  # the operator had promoted for the others already, or one of them had ended
        else:
            self.trials.append(Trial(waited_ms - before[2], answered_ms))
        self.resting.append(asyncio.create_task(self.rest(service, asked)))

    async def rest(self, service: str, asked: list[asyncio.Task[None]]) -> None:
        """Let all requests of a trial end; some time later the service may be asked again."""
        await asyncio.gather(*asked)
        self.rested_s[service] = time.monotonic() + REST_S

    async def run(self) -> None:
        """Run all trials."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as progress:
            bar = progress.add_task("promotions", total=TRIALS)
            await self.rested(SERVICES)  # nothing starts any more
            while len(self.trials) < TRIALS:
                await self.trial(*(await self.rested())[0])
                progress.update(bar, completed=len(self.trials))
            await asyncio.gather(*self.resting)


def policy(release: Release) -> dict[str, Any]:
    """A policy that keeps one warm replica, however little traffic there is."""
    return {
        "apiVersion": "forebay.dev/v1alpha1",
        "kind": "SLOPolicy",
        "metadata": {"name": f"{release.served}-one-warm"},
        "spec": {
            "ttft": {"targetMilliseconds": 1_000},
            "itl": {"meanMilliseconds": 100},
            "burst": {"multiplier": 100, "withinSeconds": 1},
            "headroomPercent": 0,
            "maxIdleGPUs": 1,
        },
    }


def service(release: Release, name: str) -> dict[str, Any]:
    """A service with at most one replica beside the one that serves."""
    return {
        "apiVersion": "forebay.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name, "namespace": release.served},
        "spec": {
            "model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct", "servedName": f"{release.served}-{name}"},
            "engine": {"type": "Emulated", "maxNumSeqs": BATCH, "emulated": {"coldStartSeconds": 1}},
            "accelerators": [{"name": "l40s", "type": "L40S", "resource": "nvidia.com/gpu"}],
            "drain": {"deadlineSeconds": 5},
            "scaling": {"maxReplicas": 2, "scaleDownDelaySeconds": 0},
            "sloPolicyRef": {"name": f"{release.served}-one-warm"},
        },
    }


def at(share: float, values: Sequence[float]) -> float:
    """Return the smallest value that at least this share does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


async def measure(release: Release) -> list[tuple[str, float, str, str]]:
    """Apply the services, run the trials, and tell what they took."""
    names = [f"promote-{number:02}" for number in range(SERVICES)]
    release.apply(policy(release), *(service(release, name) for name in names))
    gateway = release.get("pods", release.pod_of("gateway"), namespace=release.home)["status"]["podIP"]
    port = release.cluster.relay(gateway, GATEWAY_SIGNALS_PORT)
    async with AsyncExitStack() as stack:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        bench = Bench(release, http, f"http://127.0.0.1:{port}{PATH_METRICS}", dict.fromkeys(names, 0.0))
        await bench.run()
    rows = []
    for what, values in (
        ("admission to sent to the promoted replica", [trial.waited_ms for trial in bench.trials]),
        ("request to first byte of its answer", [trial.answered_ms for trial in bench.trials]),
    ):
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0)):
            aim = f"<= {AIM_MS}" if name == "p99" else "-"
            rows.append((f"promote: {what}, {name} of {len(values)}", at(share, values), "ms", aim))
    rows.append(("promote: further trials that found a replica promoted already", bench.not_held, "", "-"))
    return rows


def main() -> None:
    """Start the cluster, measure, take it down."""
    with (
        Cluster.start(nodes=2, gpus_per_node=SERVICES, images=images.build_all()) as cluster,
        installed(cluster, "promote") as release,
    ):
        for row in asyncio.run(measure(release)):
            print(f"{row[0]}\t{row[1]:.0f}\t{row[2]}\t{row[3]}")  # noqa: T201 - make bench reads it


if __name__ == "__main__":
    main()
