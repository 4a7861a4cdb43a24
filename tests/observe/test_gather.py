"""From raw pods, nodes and readings to one Snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from forebay.core.reasons import Reason
from forebay.core.snapshot import Snapshot, State
from forebay.core.units import UNKNOWN
from forebay.observe.cluster import Change
from forebay.observe.gateways import GatewayReading
from forebay.observe.gather import NODE_LOST_MS, gather, replicas, signal_row
from forebay.observe.pods import ForeignPod, ReplicaPod, read_node, read_pod, wall_ms
from forebay.observe.scrape import Reading
from forebay.observe.world import UNSEEN_MS, World
from forebay.resolve.defaults import ReplicaDefaults
from forebay.resolve.fleet import Fleet, Resolver
from forebay.wire.signals import ITL_BOUNDS_MS, TTFT_BOUNDS_MS, GatewayService, GatewaySignals, ReplicaSignals

if TYPE_CHECKING:
    from collections.abc import Sequence

CREATED = "2026-11-30T12:00:00Z"
WALL = wall_ms(CREATED) + 5_000
NOW = 1_000_000
RUNNING = {"phase": "Running", "podIP": "10.0.0.9", "conditions": [{"type": "Ready", "status": "True"}]}


def service(name: str, pool: str | None = None) -> dict[str, Any]:
    accelerator: dict[str, Any] = {"name": "l40s", "type": "L40S", "resource": "nvidia.com/gpu"}
    if pool:
        accelerator["gpuPoolRef"] = {"name": pool}
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}", "generation": 1},
        "spec": {
            "model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct", "servedName": name},
            "engine": {"type": "Emulated"},
            "accelerators": [accelerator],
        },
    }


def fleet(*services: dict[str, Any], pools: Sequence[dict[str, Any]] = ()) -> Fleet:
    resolver = Resolver(ReplicaDefaults("vllm:1", "emulated:1", "system:serviceaccount:forebay:forebay"))
    return resolver.resolve(services, [], pools, {})


def pod(uid: str, of: str = "a", *, state: str = "serving", node: str = "n1", **status: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "uid": uid, "name": f"{of}-{uid}", "namespace": "ns", "resourceVersion": "10", "creationTimestamp": CREATED,
            "labels": {
                "app.kubernetes.io/managed-by": "forebay", "forebay.dev/inferenceservice": of,
                "forebay.dev/state": state,
            },
            "annotations": {"forebay.dev/revision": "old"},
        },
        "spec": {
            "nodeName": node,
            "containers": [{"name": "engine", "resources": {"requests": {"nvidia.com/gpu": "1", "cpu": "2"}}}],
        },
        "status": RUNNING | status,
    }  # fmt: skip


def foreign(uid: str, node: str, gpus: str, phase: str = "Running") -> dict[str, Any]:
    return {
        "metadata": {"uid": uid, "name": uid, "namespace": "other"},
        "spec": {"nodeName": node, "containers": [{"resources": {"requests": {"nvidia.com/gpu": gpus}}}]},
        "status": {"phase": phase},
    }


def node(
    name: str, gpus: str = "8", *, ready: str = "True", cordoned: bool = False, zone: str = "z", since: str = CREATED
) -> dict[str, Any]:
    return {
        "metadata": {"uid": f"uid-{name}", "name": name, "labels": {"zone": zone}},
        "spec": {"unschedulable": cordoned} if cordoned else {},
        "status": {
            "allocatable": {"nvidia.com/gpu": gpus, "cpu": "7500m"},
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": since}],
        },
    }


def world(pods: Sequence[dict[str, Any]] = (), nodes: Sequence[dict[str, Any]] = ()) -> World:
    made = World("forebay")
    for raw in pods:
        made.on_pod(Change.CHANGED, made.prune_pod(raw))
    for raw in nodes:
        made.on_node(Change.CHANGED, made.prune_node(raw))
    return made


def look(
    of: Fleet, at: World, readings: dict[str, Reading] | None = None, *, nodes_known: bool = True, wall: int = WALL
) -> Snapshot:
    seen = replicas(at, readings or {}, nodes_known=nodes_known, wall_ms=wall)
    return gather(of, at, seen, readings or {}, {}, nodes_known=nodes_known, now_ms=NOW, wall_ms=wall)


def reading(uid: str, **more: Any) -> Reading:
    given: dict[str, Any] = {"pod_uid": uid, "phase": "ready", "sample_age_ms": 100} | more
    signals = ReplicaSignals(**given)
    return Reading(signals, signal_row(signals), NOW - 400)


def test_what_was_never_read_is_unknown_and_never_zero() -> None:
    snapshot = look(fleet(service("a")), world([pod("u1")], [node("n1")]))
    rows = snapshot.replicas
    assert rows.age_ms.tolist() == [UNKNOWN]
    for name in ("requests_running", "kv_tokens_used", "start_ms", "ttft_sum_ms"):
        assert getattr(rows, name).tolist() == [UNKNOWN], name
    assert (rows.ttft_buckets == UNKNOWN).all()
    assert rows.since_created_ms.tolist() == [5000]


def test_a_reading_fills_its_row_and_only_its_row() -> None:
    buckets = tuple(range(len(TTFT_BOUNDS_MS) + 1))
    heard = reading("u2", requests_running=3, kv_blocks_total=10, kv_block_tokens=16, kv_used_permille=500,
                    ttft_buckets=buckets)  # fmt: skip
    rows = look(fleet(service("a")), world([pod("u2"), pod("u1")], [node("n1")]), {"u2": heard}).replicas
    assert rows.uid == ("u1", "u2")
    assert rows.requests_running.tolist() == [UNKNOWN, 3]
    assert rows.kv_tokens_total.tolist() == [UNKNOWN, 160]
    assert rows.kv_tokens_used.tolist() == [UNKNOWN, 80]
    assert rows.age_ms.tolist() == [UNKNOWN, 500]
    assert rows.ttft_buckets[1].tolist() == list(buckets)
    assert rows.itl_buckets.shape == (2, len(ITL_BOUNDS_MS) + 1)
    assert rows.requests_waiting.tolist() == [UNKNOWN, UNKNOWN]


def test_a_supervisor_that_never_read_its_engine_has_no_age() -> None:
    rows = look(
        fleet(service("a")), world([pod("u1")], [node("n1")]), {"u1": reading("u1", sample_age_ms=None)}
    ).replicas
    assert rows.age_ms.tolist() == [UNKNOWN]


STATES: dict[str, tuple[dict[str, Any], int, bool, bool]] = {
    "serving and ready": (pod("u"), State.SERVING, True, False),
    "a label that nobody knows is a start": (pod("u", state="odd"), State.STARTING, True, False),
    "a deleted pod drains, whatever its label": (
        pod("u") | {"metadata": pod("u")["metadata"] | {"deletionTimestamp": CREATED}}, State.DRAINING, False, False,
    ),
    "a pod that ended has failed": (pod("u", phase="Failed"), State.SERVING, True, True),
    "an image that cannot be pulled": (
        pod("u", state="starting", phase="Pending", conditions=[],
            containerStatuses=[{"name": "engine", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]),
        State.STARTING, False, True,
    ),
    "on a node that is not there any more": (pod("u", node="gone"), State.SERVING, True, True),
}  # fmt: skip


@pytest.mark.parametrize("sentence", STATES)
def test_state(sentence: str) -> None:
    raw, state, ready, failed = STATES[sentence]
    rows = look(fleet(service("a")), world([raw], [node("n1")])).replicas
    assert (rows.state[0], rows.ready[0], rows.failed[0]) == (state, ready, failed)


def test_nodes_that_could_not_be_read_are_no_reason_to_call_replicas_failed() -> None:
    snapshot = look(fleet(service("a")), world([pod("u1", node="n9")]), nodes_known=False)
    assert snapshot.replicas.failed.tolist() == [False]
    assert snapshot.gpus_allocatable.tolist() == [UNKNOWN]


def test_a_lost_node_fails_its_replicas_after_a_while() -> None:
    at = world([pod("u1")], [node("n1", ready="Unknown")])
    since = wall_ms(CREATED)
    assert look(fleet(service("a")), at, wall=since + NODE_LOST_MS - 1).replicas.failed.tolist() == [False]
    assert look(fleet(service("a")), at, wall=since + NODE_LOST_MS).replicas.failed.tolist() == [True]


def test_an_engine_that_says_so_has_failed_and_the_reason_tells_when() -> None:
    heard = {"u1": reading("u1", phase="failed"), "u2": reading("u2", phase="failed")}
    at = world([pod("u1", state="starting"), pod("u2")], [node("n1")])
    reasons = [p.failure for p in replicas(at, heard, nodes_known=True, wall_ms=WALL)["ns/a"]]
    assert reasons == [Reason.ENGINE_NEVER_READY, Reason.ENGINE_FAILED]


def test_devices_are_counted_per_pool() -> None:
    pools = [{"metadata": {"name": "west"}, "spec": {"resource": "nvidia.com/gpu", "nodeSelector": {"zone": "w"}}}]
    of = fleet(service("a"), service("b", "west"), pools=pools)
    at = world(
        [
            pod("u1", "a", node="n1"),
            pod("u2", "b", node="n2"),
            foreign("f1", "n2", "2"),
            foreign("f2", "n2", "4", "Succeeded"),
        ],
        [node("n1"), node("n2", zone="w"), node("n3", cordoned=True), node("n4", ready="False"), node("n5", "0")],
    )
    snapshot = look(of, at)
    assert of.spec.pools == ("default/nvidia.com/gpu", "west")
    assert snapshot.gpus_allocatable.tolist() == [16, 8]
    # In the implicit pool, which spans all nodes, west's replica is as foreign as the stranger is.
    assert snapshot.gpus_foreign.tolist() == [3, 2]


def test_a_replica_on_a_cordoned_node_neither_adds_nor_takes_room() -> None:
    snapshot = look(fleet(service("a")), world([pod("u1")], [node("n1", cordoned=True), node("n2")]))
    assert snapshot.gpus_allocatable.tolist() == [9]
    assert snapshot.gpus_foreign.tolist() == [0]


def test_replicas_of_a_service_that_is_gone_are_foreign() -> None:
    snapshot = look(fleet(service("b")), world([pod("u1", "a")], [node("n1")]))
    assert snapshot.replicas.uid == ()
    assert snapshot.gpus_foreign.tolist() == [1]


def test_gateways_are_rows_of_known_services() -> None:
    counts = GatewayService(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
    heard = {"g1": GatewayReading(GatewaySignals("g1", 1, {"ns/a": counts, "ns/unknown": counts}), NOW - 300)}
    snapshot = gather(
        fleet(service("a")), world(), {}, {}, heard, nodes_known=True, now_ms=NOW, wall_ms=WALL
    )  # fmt: skip
    assert snapshot.gateways.uid == ("g1",)
    assert snapshot.gateways.age_ms.tolist() == [300]
    assert snapshot.gateways.failed_total.tolist() == [11]
    assert snapshot.gateways_expected == 0


# --- the world -------------------------------------------------------------------------------------------------------


def relabelled(raw: dict[str, Any], state: str, version: str) -> dict[str, Any]:
    meta = raw["metadata"]
    return raw | {
        "metadata": meta | {"labels": meta["labels"] | {"forebay.dev/state": state}, "resourceVersion": version}
    }


def test_what_a_write_answered_is_believed_until_the_watch_knows_more() -> None:
    at = world([pod("u1", state="warm")])
    at.note(relabelled(pod("u1"), "serving", "12"), NOW)
    at.on_pod(Change.CHANGED, at.prune_pod(relabelled(pod("u1"), "warm", "11")))
    assert at.pods_of("ns/a")["u1"].state == "serving"
    at.on_pod(Change.CHANGED, at.prune_pod(relabelled(pod("u1"), "draining", "13")))
    assert at.pods_of("ns/a")["u1"].state == "draining"
    at.on_pod(Change.DELETED, at.prune_pod(pod("u1")))
    assert at.replicas == {}


def test_a_created_pod_that_the_watch_never_shows_is_forgotten() -> None:
    at = world()
    at.note(pod("u1"), NOW)
    at.forget_unseen(NOW + UNSEEN_MS - 1, ())
    assert "u1" in at.pods_of("ns/a")
    at.forget_unseen(NOW + UNSEEN_MS, ())
    assert at.replicas == {}


def test_a_gateway_is_found_by_its_label_in_our_namespace_only() -> None:
    labels = {"app.kubernetes.io/component": "gateway"}
    raw: dict[str, Any] = {
        "metadata": {"uid": "g", "name": "g", "namespace": "forebay", "labels": labels},
        "spec": {"containers": []},
        "status": {"podIP": "10.1.1.1"},
    }
    at = world([raw, raw | {"metadata": raw["metadata"] | {"uid": "h", "namespace": "other"}}])
    assert at.gateway_targets() == {"g": "10.1.1.1"}


def test_reading_a_pod() -> None:
    read = read_pod(pod("u1"), "forebay")
    assert isinstance(read, ReplicaPod)
    assert (read.resource, read.gpus, read.service, read.revision) == ("nvidia.com/gpu", 1, "ns/a", "old")
    assert isinstance(read_pod(foreign("f", "n1", "2"), "forebay"), ForeignPod)
    assert read_pod(foreign("f", "", "2"), "forebay") is None
    evicted = read_pod(pod("u", phase="Failed", reason="Evicted", message="disk"), "forebay")
    assert isinstance(evicted, ReplicaPod)
    assert evicted.failure_message == "Evicted: disk"


def test_the_replicas_of_a_forebay_elsewhere_are_foreign() -> None:
    assert isinstance(read_pod(pod("u1"), "forebay", "ns"), ReplicaPod)
    assert read_pod(pod("u1"), "forebay", "elsewhere") == ForeignPod("n1", "nvidia.com/gpu", 1)


def test_a_node_of_unreadable_shape_is_an_error_and_not_a_node_without_devices() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        read_node(node("n1", "many"))


def test_columns_are_int64_and_bool() -> None:
    rows = look(fleet(service("a")), world([pod("u1")], [node("n1")])).replicas
    assert rows.service.dtype == np.int64
    assert rows.ready.dtype == np.bool_
