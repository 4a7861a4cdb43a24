"""The service table, fed by hand: no Envoy, no network."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from forebay.gateway.desk import Desk
from forebay.gateway.endpoints import EndpointsFile
from forebay.gateway.metrics import Metrics
from forebay.gateway.settings import Ports
from forebay.gateway.table import SETTLE_MS, Table, prune_pod, prune_policy, prune_service
from forebay.observe.cluster import Change
from forebay.routing.book import Book
from forebay.routing.service import Limits

from .fleet import a_pod, a_service, until

if TYPE_CHECKING:
    from pathlib import Path

LIMITS = Limits(queue_requests_max=10, queue_bytes_max=1 << 20, start_wait_ms=1_000, busy_wait_ms=1_000)


class Bench:
    def __init__(self, folder: Path) -> None:
        self.now_ms = 1_000
        self.file = folder / "eds" / "pool.json"
        self.book = Book(LIMITS)
        self.desk = Desk(self.book, self._now, Metrics(self.book, self._now), lambda: None)
        self.table = Table(self.desk, EndpointsFile(self.file), Ports(), self._now)

    def _now(self) -> int:
        return self.now_ms

    def service(self, name: str, change: Change = Change.CHANGED, **options: Any) -> None:
        self.table.on_service(change, prune_service(a_service(name, **options)))

    def pod(self, uid: str, ip: str, service: str, change: Change = Change.CHANGED, **options: Any) -> None:
        self.table.on_pod(change, prune_pod(a_pod(uid, ip, service, **options)))

    def policy(self, name: str, priority: int, change: Change = Change.CHANGED) -> None:
        self.table.on_policy(change, prune_policy({"metadata": {"name": name}, "spec": {"priority": priority}}))

    def routable(self, key: str = "chat/a") -> list[str]:
        return sorted(uid for uid, r in self.book.services[key].replicas.items() if r.routable)

    async def hosts(self) -> dict[str, str | None]:
        """Addresses in the endpoints file to the service they may be reached by without the picker."""
        await asyncio.sleep(0)
        [assignment] = orjson.loads(self.file.read_bytes())["resources"]
        rows = assignment["endpoints"][0]["lb_endpoints"]
        return {
            row["endpoint"]["address"]["socket_address"]["address"]: row.get("metadata", {})
            .get("filter_metadata", {})
            .get("envoy.lb", {})
            .get("service")
            for row in rows
        }


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def test_envoy_knows_a_replica_long_before_it_serves_so_that_promotion_is_instant(bench: Bench) -> None:
    bench.service("a")
    bench.pod("r1", "10.0.0.1", "a", state="starting", ready=False)
    assert await bench.hosts() == {"10.0.0.1": None}
    bench.now_ms += SETTLE_MS
    bench.pod("r1", "10.0.0.1", "a", state="warm")
    assert bench.routable() == []
    bench.pod("r1", "10.0.0.1", "a", state="serving")
    assert bench.routable() == ["r1"]
    assert await bench.hosts() == {"10.0.0.1": "a"}


async def test_a_replica_that_serves_at_first_sight_waits_until_envoy_has_read_of_it(bench: Bench) -> None:
    bench.service("a")
    bench.pod("r1", "10.0.0.1", "a")
    assert bench.routable() == []
    bench.now_ms += SETTLE_MS
    await until(lambda: bench.routable() == ["r1"])


@pytest.mark.parametrize(
    "why", [{"ready": False}, {"state": "warm"}, {"state": "draining"}, {"state": "starting"}, {"leaving": True}]
)
async def test_only_a_ready_serving_staying_pod_is_picked(bench: Bench, why: dict[str, Any]) -> None:
    bench.service("a")
    bench.pod("r1", "10.0.0.1", "a", state="warm")
    bench.now_ms += SETTLE_MS
    bench.pod("r1", "10.0.0.1", "a")
    assert bench.routable() == ["r1"]
    bench.pod("r1", "10.0.0.1", "a", **why)
    assert bench.routable() == []
    assert await bench.hosts() == {"10.0.0.1": None}  # its streams go on


async def test_a_pod_that_is_gone_leaves_the_file_and_the_book(bench: Bench) -> None:
    bench.service("a")
    bench.pod("r1", "10.0.0.1", "a")
    bench.pod("r2", "10.0.0.2", "a")
    bench.pod("r1", "10.0.0.1", "a", Change.DELETED)
    assert await bench.hosts() == {"10.0.0.2": "a"}
    assert list(bench.book.services["chat/a"].replicas) == ["r2"]


async def test_pods_that_are_seen_before_their_service_are_not_lost(bench: Bench) -> None:
    bench.pod("r1", "10.0.0.1", "a")
    bench.now_ms += SETTLE_MS
    bench.service("a")
    assert bench.routable() == ["r1"]


async def test_of_two_pods_with_one_address_the_living_one_counts(bench: Bench) -> None:
    bench.service("a")
    bench.service("b")
    bench.pod("old", "10.0.0.1", "a", leaving=True)
    bench.pod("new", "10.0.0.1", "b")
    assert await bench.hosts() == {"10.0.0.1": "b"}


async def test_namesakes_in_two_namespaces_share_no_path_and_the_oldest_has_it(bench: Bench) -> None:
    bench.service("a", created="2026-02-01T00:00:00Z")
    bench.pod("r1", "10.0.0.1", "a")
    assert await bench.hosts() == {"10.0.0.1": "a"}
    bench.service("a", namespace="older", created="2026-01-01T00:00:00Z")
    assert await bench.hosts() == {"10.0.0.1": None}
    found = bench.table.of_path("a")
    assert found is not None
    assert found.key == "older/a"
    bench.service("a", Change.DELETED, namespace="older")
    assert await bench.hosts() == {"10.0.0.1": "a"}


async def test_the_rank_comes_from_the_policy_and_without_one_from_the_class(bench: Bench) -> None:
    def priority(name: str) -> int:
        return bench.book.services[f"chat/{name}"].spec.priority

    bench.service("a", sloPolicyRef={"name": "mine"})
    bench.service("batch", **{"class": "Batch"})
    assert (priority("a"), priority("batch")) == (100, 10)
    bench.policy("mine", 7)
    bench.policy("batch", 3)
    assert (priority("a"), priority("batch")) == (7, 3)
    bench.policy("mine", 7, Change.DELETED)
    assert priority("a") == 100


async def test_a_deleted_service_answers_who_waits_for_it(bench: Bench) -> None:
    bench.service("a")
    asking = asyncio.create_task(bench.desk.route("chat/a", "q", tenant="", priority=None, body_bytes=1))
    await until(lambda: bool(bench.book.holding))
    bench.service("a", Change.DELETED)
    assert await asking == "service_gone"
    assert bench.table.of_model("a") is None


async def test_a_batch_size_that_changes_holds_for_replicas_that_are_there(bench: Bench) -> None:
    bench.service("a")
    bench.pod("r1", "10.0.0.1", "a")
    bench.service("a", engine={"maxNumSeqs": 64})
    assert bench.book.services["chat/a"].replicas["r1"].batch_max == 64


async def test_a_thousand_services_with_four_replicas_each_are_read_in_seconds(bench: Bench) -> None:
    for i in range(1_000):
        bench.service(f"s{i}")
        for r in range(4):
            bench.pod(f"s{i}-{r}", f"10.{i // 250}.{i % 250}.{r}", f"s{i}")
    assert len(await bench.hosts()) == 4_000
    found = bench.table.of_model("s999")
    assert found is not None
    assert found.key == "chat/s999"
