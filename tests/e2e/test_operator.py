"""The operator against a real API server, kubelet and replicas: what it does, leaves alone and survives."""

from __future__ import annotations

import json
import secrets
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e.cluster.errors import CommandFailed
from e2e.cluster.wait import until
from forebay.report.journal import replay
from tests.e2e.operator_process import OperatorProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster.cluster import Cluster

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
SUFFIX = secrets.token_hex(3)
HOME = f"operator-{SUFFIX}"  # where the operator lives
WATCHED = f"fleet-{SUFFIX}"  # whose services it drives
POLICY = f"no-burst-{SUFFIX}"  # no warm pool, so that the number of replicas is the number that serves
KIND = "inferenceservices.forebay.dev"
QUIET_S = 12  # longer than the status' own 10 s, so that a write which only waited would be seen
# A replica of an emulated engine with a cold start of a second is ready within about ten on a busy machine.
READY_S = 90
# Starting the process takes 2 s of CPU, which on a machine that builds something else beside took half a minute.
START_S = 90


def spec(name: str, **more: Any) -> dict[str, Any]:
    engine = {"type": "Emulated", "maxNumSeqs": 8, "emulated": {"coldStartSeconds": 1}} | more.pop("engine", {})
    return {
        "apiVersion": "forebay.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name, "namespace": WATCHED, "annotations": {"example.com/team": "chat"}},
        "spec": {
            "model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct", "servedName": f"{name}-{SUFFIX}"},
            "engine": engine,
            "accelerators": [{"name": "l40s", "type": "L40S", "resource": "nvidia.com/gpu"}],
            "drain": {"deadlineSeconds": 5},
            "sloPolicyRef": {"name": POLICY},
        } | more,
    }  # fmt: skip


class Fleet:
    """What a test asks of the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def apply(self, raw: dict[str, Any]) -> None:
        self.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(raw))

    def patch(self, name: str, patch: dict[str, Any]) -> None:
        self.cluster.kubectl("patch", KIND, name, "-n", WATCHED, "--type=merge", "-p", json.dumps(patch))

    def delete(self, name: str) -> None:
        self.cluster.kubectl("delete", KIND, name, "-n", WATCHED, "--wait=false")
        until(lambda: not self.pods(name), f"the replicas of {name} are gone", READY_S)

    def service(self, name: str) -> dict[str, Any]:
        raw: dict[str, Any] = json.loads(
            self.cluster.kubectl("get", KIND, name, "-n", WATCHED, "-o", "json", "--show-managed-fields")
        )
        return raw

    def condition(self, name: str, kind: str) -> tuple[str, str]:
        told = self.service(name).get("status", {}).get("conditions", [])
        return next(((c["status"], c["reason"]) for c in told if c["type"] == kind), ("", ""))

    def pods(self, name: str) -> list[dict[str, Any]]:
        selector = f"forebay.dev/inferenceservice={name}"
        path = f"/api/v1/namespaces/{WATCHED}/pods?labelSelector={selector}"
        listed: dict[str, Any] = {}

        def answered() -> bool:
            listed.update(self.cluster.api.get(path) or {})
            return "items" in listed  # no answer is not the answer that there are none

        until(answered, "the pods are listed", START_S)
        return sorted(listed["items"], key=lambda pod: pod["metadata"]["name"])

    def serving(self, name: str) -> list[str]:
        return [
            pod["metadata"]["uid"]
            for pod in self.pods(name)
            if pod["metadata"]["labels"]["forebay.dev/state"] == "serving"
            and "deletionTimestamp" not in pod["metadata"]
            and any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
        ]

    def until_serving(self, name: str, count: int) -> list[str]:
        until(lambda: len(self.serving(name)) == count, f"{count} replicas of {name} serve", READY_S)
        return self.serving(name)

    def versions(self, name: str) -> list[str]:
        """Return what changes with every write to the service or its pods."""
        return [raw["metadata"]["resourceVersion"] for raw in (self.service(name), *self.pods(name))]


@pytest.fixture(scope="module")
def fleet(cluster: Cluster) -> Iterator[Fleet]:
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(ROOT / "crds"))
    for name in (HOME, WATCHED):
        cluster.kubectl("create", "namespace", name)
    policy = {"apiVersion": "forebay.dev/v1alpha1", "kind": "SLOPolicy", "metadata": {"name": POLICY}}
    fleet = Fleet(cluster)
    promise = {"ttft": {"targetMilliseconds": 500}, "itl": {"meanMilliseconds": 50}}
    fleet.apply(policy | {"spec": promise | {"burst": {"multiplier": 1, "withinSeconds": 30}, "maxIdleGPUs": 0}})
    yield fleet
    for name in (WATCHED, HOME):
        cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="module")
def operator(cluster: Cluster, fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    assert fleet.cluster is cluster
    process = OperatorProcess(cluster, tmp_path_factory.mktemp("operator"), namespace=HOME, watch=WATCHED, port=18081)
    process.start()
    yield process
    process.stop()
    # Everything that was decided in all the tests above, over restarts and faults, is decided again to the same bytes.
    replayed = replay(process.journal)
    assert replayed.ticks > 0
    assert replayed.differences == ()


@pytest.fixture(scope="module")
def chat(fleet: Fleet, operator: OperatorProcess) -> str:
    assert operator is not None
    fleet.apply(spec("chat"))
    fleet.until_serving("chat", 1)
    return "chat"


def test_a_service_becomes_ready_and_says_so(fleet: Fleet, chat: str) -> None:
    until(lambda: fleet.condition(chat, "Ready") == ("True", "ReplicasReady"), "Ready", READY_S)
    until(lambda: fleet.condition(chat, "MetricsAvailable")[0] == "True", "metrics", READY_S)
    status = fleet.service(chat)["status"]
    assert (status["replicas"], status["readyReplicas"], status["desiredReplicas"]) == (1, 1, 1)
    assert status["selector"] == "forebay.dev/inferenceservice=chat"
    assert next(step["stage"] for step in status["lastDecision"]["steps"]) == "signals"
    budget = json.loads(fleet.cluster.kubectl("get", "pdb", chat, "-n", WATCHED, "-o", "json"))
    assert budget["spec"]["maxUnavailable"] == 1
    (pod,) = fleet.pods(chat)
    assert pod["metadata"]["ownerReferences"][0]["controller"] is True


def test_users_objects_bear_no_trace_but_status(fleet: Fleet, chat: str) -> None:
    raw = fleet.service(chat)
    assert raw["metadata"].get("finalizers") is None
    assert set(raw["metadata"]["annotations"]) == {
        "example.com/team", "kubectl.kubernetes.io/last-applied-configuration",
    }  # fmt: skip
    managers = {(m["manager"].partition("-")[0], m.get("subresource", "")) for m in raw["metadata"]["managedFields"]}
    assert managers <= {("kubectl", ""), ("forebay", "status"), ("forebay", "scale")}
    by_us = [m for m in raw["metadata"]["managedFields"] if m["manager"] == "forebay-status"]
    assert [set(m["fieldsV1"]) for m in by_us] == [{"f:status"}]


def test_nothing_is_written_while_nothing_changes(fleet: Fleet, operator: OperatorProcess, chat: str) -> None:
    def writes() -> tuple[object, ...]:
        counted = [operator.metric(f"forebay_{what}_total") for what in ("status_writes", "actions", "decisions")]
        return fleet.versions(chat), counted

    # The windows fill for a minute, and what is said of them changes with that: until then words are still written.
    quiet_since, last = time.monotonic(), writes()
    while time.monotonic() - quiet_since < QUIET_S:
        time.sleep(1)
        if writes() != last:
            quiet_since, last = time.monotonic(), writes()
    ticks = operator.metric("forebay_tick_seconds_count")
    before = writes()
    time.sleep(QUIET_S)
    after = writes()
    assert operator.metric("forebay_tick_seconds_count") >= ticks + QUIET_S - 3
    assert after == before
    assert operator.metric("forebay_ticks_failed_total") == 0


def test_a_killed_operator_resumes_and_makes_nothing_twice(fleet: Fleet, operator: OperatorProcess, chat: str) -> None:
    before = [pod["metadata"]["uid"] for pod in fleet.pods(chat)]
    operator.kill()
    operator.start()
    until(lambda: operator.metric("forebay_leading") == 1, "it leads again", START_S)
    until(lambda: operator.metric("forebay_replicas_ready", service=chat) == 1, "it sees its replica", START_S)
    assert [pod["metadata"]["uid"] for pod in fleet.pods(chat)] == before
    assert operator.metric("forebay_actions_total") == 0


def test_a_stopped_operator_hands_over_at_once(
    fleet: Fleet, operator: OperatorProcess, chat: str, tmp_path: Path
) -> None:
    successor = OperatorProcess(
        fleet.cluster, tmp_path, namespace=HOME, watch=WATCHED, port=18082, identity="successor"
    )
    successor.start()
    try:
        until(lambda: successor.get("/readyz")[0] == 200, "the successor waits", START_S)
        assert successor.metric("forebay_leading") == 0
        operator.signal(signal.SIGSTOP)
        until(lambda: successor.metric("forebay_leading") == 1, "the successor leads", START_S)
        operator.signal(signal.SIGCONT)
        until(lambda: operator.metric("forebay_leading") == 0, "the sleeper noticed", 30)
        assert len(fleet.pods(chat)) == 1
    finally:
        successor.stop()
    until(lambda: operator.metric("forebay_leading") == 1, "the first leads again", START_S)


def test_a_second_forebay_over_the_same_services_waits_and_says_so(
    fleet: Fleet, operator: OperatorProcess, tmp_path: Path
) -> None:
    assert operator.metric("forebay_leading") == 1
    elsewhere = f"second-{SUFFIX}"
    fleet.cluster.kubectl("create", "namespace", elsewhere)
    second = OperatorProcess(fleet.cluster, tmp_path, namespace=elsewhere, watch="", port=18083, identity="second")
    second.start()
    try:
        until(lambda: "overlapping scope" in second.get("/readyz")[1], "the second one says why it waits", START_S)
        assert f"{HOME}/forebay" in second.get("/readyz")[1]
        assert second.metric("forebay_leading") == 0
    finally:
        second.stop()
        fleet.cluster.kubectl("delete", "namespace", elsewhere, "--wait=false")


def test_manual_replicas_are_obeyed_and_drained(fleet: Fleet, operator: OperatorProcess) -> None:
    fleet.apply(spec("manual", scaling={"mode": "Manual"}, replicas=2))
    fleet.until_serving("manual", 2)
    fleet.cluster.kubectl("scale", KIND, "manual", "-n", WATCHED, "--replicas=1")
    fleet.until_serving("manual", 1)
    until(lambda: len(fleet.pods("manual")) == 1, "the other is gone", 60)
    assert operator.metric("forebay_gpu_seconds_total", service="manual", state="serving") > 0
    fleet.delete("manual")


def test_a_rollout_never_leaves_nobody_serving(fleet: Fleet, chat: str) -> None:
    (old,) = fleet.until_serving(chat, 1)
    fleet.patch(chat, {"spec": {"engine": {"maxNumSeqs": 9}}})
    seen: set[int] = set()

    def replaced() -> bool:
        serving = fleet.serving(chat)
        seen.add(len(serving))
        return len(serving) == 1 and old not in serving and len(fleet.pods(chat)) == 1

    until(replaced, "the replica is replaced", READY_S)
    assert 0 not in seen


def test_a_wrong_image_is_a_condition_with_a_next_step(fleet: Fleet, operator: OperatorProcess, chat: str) -> None:
    assert operator.metric("forebay_leading") == 1
    fleet.apply(spec("broken", engine={"image": "registry.invalid/nothing:1"}))
    until(lambda: fleet.condition("broken", "Ready") == ("False", "ImagePullFailed"), "it says why", READY_S)
    (condition,) = [c for c in fleet.service("broken")["status"]["conditions"] if c["type"] == "Ready"]
    assert "check engine.image" in condition["message"]
    assert fleet.condition(chat, "Ready")[0] == "True"
    fleet.delete("broken")


def test_a_policy_that_does_not_exist_blocks_its_service_only(fleet: Fleet, operator: OperatorProcess) -> None:
    assert operator.metric("forebay_leading") == 1
    fleet.apply(spec("lost", sloPolicyRef={"name": f"nowhere-{SUFFIX}"}))
    until(lambda: fleet.condition("lost", "Ready") == ("False", "PolicyNotFound"), "it says why", START_S)
    assert fleet.pods("lost") == []
    fleet.delete("lost")


def test_a_foreign_autoscaler_makes_it_stand_back(fleet: Fleet, chat: str) -> None:
    autoscaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "foreign", "namespace": WATCHED},
        "spec": {
            "scaleTargetRef": {"apiVersion": "forebay.dev/v1alpha1", "kind": "InferenceService", "name": chat},
            "maxReplicas": 3,
        },
    }
    fleet.apply(autoscaler)
    until(lambda: fleet.condition(chat, "ScalingActive") == ("False", "ForeignAutoscaler"), "it stands back", START_S)
    fleet.cluster.kubectl("delete", "hpa", "foreign", "-n", WATCHED)
    until(lambda: fleet.condition(chat, "ScalingActive")[0] == "True", "it drives again", START_S)


def test_a_paused_service_keeps_what_it_has(fleet: Fleet, chat: str) -> None:
    fleet.patch(chat, {"metadata": {"annotations": {"forebay.dev/paused": "true"}}})
    until(lambda: fleet.condition(chat, "ScalingActive")[0] == "False", "it says so", START_S)
    assert len(fleet.serving(chat)) == 1
    fleet.patch(chat, {"metadata": {"annotations": {"forebay.dev/paused": None}}})
    until(lambda: fleet.condition(chat, "ScalingActive")[0] == "True", "it drives again", START_S)


def test_a_replica_that_dies_is_replaced(fleet: Fleet, chat: str) -> None:
    (before,) = fleet.until_serving(chat, 1)
    (pod,) = fleet.pods(chat)
    fleet.cluster.faults.kill_containers(WATCHED, pod["metadata"]["name"])
    until(lambda: before not in fleet.serving(chat) and len(fleet.serving(chat)) == 1, "another serves", READY_S)


def test_an_api_server_that_goes_away_changes_nothing(fleet: Fleet, operator: OperatorProcess, chat: str) -> None:
    before = fleet.until_serving(chat, 1)
    with fleet.cluster.faults.without_api_server():
        until(lambda: operator.metric("forebay_leading") == 0, "it stops leading when its lease ends", 30)
    until(lambda: operator.metric("forebay_leading") == 1, "it leads again", START_S)
    assert fleet.until_serving(chat, 1) == before
    fleet.apply(spec("after"))
    fleet.until_serving("after", 1)
    fleet.delete("after")


def test_a_service_that_is_deleted_takes_its_replicas_along(fleet: Fleet, chat: str) -> None:
    fleet.delete(chat)
    with pytest.raises(CommandFailed):
        fleet.service(chat)
