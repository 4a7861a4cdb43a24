"""What is killed in mid-load: the operator, and a replica that serves. Requests are counted one by one."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from e2e.demo.load import Generator
from e2e.demo.records import Outcome
from e2e.demo.score import judge_all
from e2e.demo.traffic import Request
from forebay.core.goodness import Targets
from forebay.wire.names import COMPONENT_GATEWAY, COMPONENT_OPERATOR, GATEWAY_SIGNALS_PORT
from tests.e2e.release import Release, installed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300, func_only=True)]

SERVICE = "steady"
SERVING, WARM = 2, 2
BACK_WITHIN_MS = 15_000
TRAFFIC_MS = 60_000
GAP_MS = 400  # 2.5 requests a second of 60 tokens: two replicas carry it, with some room
KILL_OPERATOR_MS, KILL_REPLICA_MS = 10_000, 30_000
LONGEST_MS = 4000  # of one stream: what is under way when the replica dies belongs to that fault


def documents(release: Release) -> tuple[dict[str, Any], ...]:
    policy = f"{release.served}-slo"
    return (
        {
            "apiVersion": "forebay.dev/v1alpha1",
            "kind": "SLOPolicy",
            "metadata": {"name": policy},
            "spec": {
                # Loose enough that two shared cores, and not a promise of 50 ms, are no part of what is tested.
                "ttft": {"targetMilliseconds": 3000, "perThousandPromptTokensMilliseconds": 500},
                "itl": {"meanMilliseconds": 200, "worstSecondMilliseconds": 1500},
                "burst": {"multiplier": 2, "withinSeconds": 10},
                "maxIdleGPUs": WARM,
            },
        },
        {
            "apiVersion": "forebay.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": SERVICE, "namespace": release.served},
            "spec": {
                "model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct", "servedName": release.served},
                "engine": {"type": "Emulated", "maxNumSeqs": 8, "emulated": {"coldStartSeconds": 5}},
                "accelerators": [{"name": "l40s", "type": "L40S", "resource": "nvidia.com/gpu"}],
                "scaling": {"minReplicas": SERVING, "maxReplicas": SERVING + WARM},
                "sloPolicyRef": {"name": policy},
                "drain": {"deadlineSeconds": 10},
            },
        },
    )


@pytest.fixture(scope="module")
def release(cluster: Cluster) -> Iterator[Release]:
    with installed(cluster, "faults") as forebay:
        forebay.apply(*documents(forebay))
        forebay.until_ready(SERVICE)
        forebay.until_states(serving=SERVING)
        yield forebay


class Watch:
    """Counts the replicas that exist, all the time."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self.most = 0
        self.names: set[str] = set()

    async def run(self) -> None:
        while True:
            pods = await asyncio.to_thread(self.release.pods)
            living = [pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") != "Failed"]
            self.most = max(self.most, len(living))
            self.names |= set(living)
            await asyncio.sleep(0.3)


def gateway_counts(release: Release) -> Counter[str]:
    page = release.metrics(COMPONENT_GATEWAY, GATEWAY_SIGNALS_PORT)
    counted: Counter[str] = Counter()
    line = re.compile(r'^forebay_gateway_requests_total\{.*outcome="(\w+)".*\} (\S+)$', re.MULTILINE)
    for outcome, value in line.findall(page):
        counted[outcome] += round(float(value))
    return counted


async def test_load_survives_the_loss_of_the_operator_and_of_a_serving_replica(release: Release) -> None:
    before = await asyncio.to_thread(gateway_counts, release)
    requests = tuple(
        Request(number, at_ms, SERVICE, release.served, prompt_tokens=200, output_tokens=60)
        for number, at_ms in enumerate(range(0, TRAFFIC_MS, GAP_MS))
    )
    generator = Generator(release.url, requests, seed=1)
    watch = Watch(release)
    watching = asyncio.create_task(watch.run())

    async def faults() -> None:
        await asyncio.sleep(KILL_OPERATOR_MS / 1000)
        operator = await asyncio.to_thread(release.pod_of, COMPONENT_OPERATOR)
        await asyncio.to_thread(release.cluster.faults.kill_containers, release.home, operator)
        await asyncio.sleep((KILL_REPLICA_MS - KILL_OPERATOR_MS) / 1000)
        serving = await asyncio.to_thread(release.pods, "serving")
        victim = serving[0]["metadata"]["name"]
        await asyncio.to_thread(release.cluster.faults.kill_containers, release.served, victim)

    await asyncio.gather(generator.run(), faults())
    watching.cancel()
    records = generator.records

    # Nothing is lost: each request ended one way, and the gateway counted the same ends.
    assert len(records) == len(requests)
    ends = Counter(str(record.outcome) for record in records)
    assert sum(ends[str(outcome)] for outcome in Outcome) == len(requests), ends
    counted = await asyncio.to_thread(gateway_counts, release)
    counted.subtract(before)
    assert sum(counted.values()) == len(requests), counted
    # Only streams of the killed replica may break, and it held no more than its batch.
    broken = [record for record in records if record.outcome is not Outcome.ANSWERED]
    assert len(broken) <= 8, [(r.outcome, r.error) for r in broken]
    assert all(abs(r.sent_at_ms - KILL_REPLICA_MS) < BACK_WITHIN_MS for r in broken), [r.sent_at_ms for r in broken]

    # No double scaling: the replica that died was replaced once, and nothing else was made.
    assert watch.most <= SERVING + WARM

    # The promise holds again within 15 s of each loss.
    slo = Targets(ttft_ms=3000, ttft_per_1k_prompt_tokens_ms=500, itl_mean_ms=200, itl_worst_second_ms=1500)
    judged = judge_all(records, {SERVICE: slo})
    for since, until_ms in ((KILL_OPERATOR_MS, KILL_REPLICA_MS - LONGEST_MS), (KILL_REPLICA_MS, TRAFFIC_MS)):
        later = [j for j in judged if since + BACK_WITHIN_MS <= j.record.sent_at_ms < until_ms]
        assert later
        bad = [(j.record.sent_at_ms, j.record.outcome, j.record.token_ms[:1]) for j in later if not j.good]
        assert not bad
