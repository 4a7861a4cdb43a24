"""The API on a real API server: it refuses what the Python twins refuse, in the same words, and explains itself."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e.cluster.errors import CommandFailed
from e2e.cluster.wait import until
from tests.api.cases import ACCEPTED, ALLOWED_CHANGES, OUT_OF_BOUNDS, REFUSED, SERVICE, Case, merged
from tests.api.test_rules import found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster.cluster import Cluster

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
NAMESPACE = f"api-test-{secrets.token_hex(3)}"
EXPLAIN_SECONDS = 30  # a new CRD is explained a second or two after it is made
# Nobody starts anything for these objects, also where an operator runs in the same cluster.
AT_REST = {"metadata": {"namespace": NAMESPACE, "annotations": {"forebay.dev/paused": "true"}}}


@pytest.fixture(scope="module", autouse=True)
def definitions(cluster: Cluster) -> Iterator[None]:
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(ROOT / "crds"))
    cluster.kubectl("create", "namespace", NAMESPACE)
    yield
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def placed(raw: dict[str, Any]) -> dict[str, Any]:
    return merged(raw, AT_REST) if raw["kind"] == "InferenceService" else raw


def send(cluster: Cluster, raw: dict[str, Any], *verb: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(cluster.kubectl(*verb, "-o", "json", "-f", "-", stdin=json.dumps(placed(raw))))
    return answer


def refusal(cluster: Cluster, raw: dict[str, Any], *verb: str) -> str:
    with pytest.raises(CommandFailed) as caught:
        send(cluster, raw, *verb)
    return caught.value.output


@pytest.fixture
def service(cluster: Cluster) -> Iterator[dict[str, Any]]:
    yield send(cluster, SERVICE, "create")
    cluster.kubectl("delete", "inferenceservices.forebay.dev", "-n", NAMESPACE, SERVICE["metadata"]["name"])


CREATIONS = {name: case for name, case in REFUSED.items() if case.before is None}
UPDATES = {name: case for name, case in REFUSED.items() if case.before is not None}


@pytest.mark.parametrize("case", CREATIONS.values(), ids=CREATIONS)
def test_the_server_refuses_in_the_words_of_the_twin(cluster: Cluster, case: Case):
    (violation,) = found(case.object())
    said = refusal(cluster, case.object(), "create", "--dry-run=server")
    assert f"{violation.field or '<nil>'}: Invalid value: {violation.message}" in said


@pytest.mark.parametrize("case", UPDATES.values(), ids=UPDATES)
@pytest.mark.usefixtures("service")
def test_the_server_refuses_a_change_in_the_words_of_the_twin(cluster: Cluster, case: Case):
    (violation,) = found(case.object(), case.old())
    said = refusal(cluster, case.object(), "replace", "--dry-run=server")
    assert f"{violation.field}: Invalid value: {violation.message}" in said


@pytest.mark.parametrize(("_", "new"), ALLOWED_CHANGES.values(), ids=ALLOWED_CHANGES)
@pytest.mark.usefixtures("service")
def test_the_server_takes_a_change(cluster: Cluster, _: dict[str, Any], new: dict[str, Any]):
    send(cluster, new, "replace", "--dry-run=server")


@pytest.mark.parametrize(("raw", "field"), OUT_OF_BOUNDS.values(), ids=OUT_OF_BOUNDS)
def test_the_server_refuses_what_is_out_of_bounds(cluster: Cluster, raw: dict[str, Any], field: str):
    assert f"{field}: " in refusal(cluster, raw, "create", "--dry-run=server")


@pytest.mark.parametrize("raw", ACCEPTED.values(), ids=ACCEPTED)
def test_the_server_takes_what_is_sound(cluster: Cluster, raw: dict[str, Any]):
    send(cluster, raw, "create", "--dry-run=server")


def test_a_typing_error_is_refused(cluster: Cluster):
    said = refusal(cluster, merged(SERVICE, {"spec": {"modell": {}}}), "create", "--dry-run=server")
    assert 'unknown field "spec.modell"' in said


@pytest.mark.parametrize("file", sorted((ROOT / "policies").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_policies_that_ship_are_taken(cluster: Cluster, file: Path):
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", str(file))


def test_defaults_apply_where_whole_objects_are_left_out(cluster: Cluster):
    spec = send(cluster, SERVICE, "create", "--dry-run=server")["spec"]
    assert spec["replicas"] == 1
    assert spec["class"] == "Interactive"
    assert spec["scaling"] == {
        "mode": "Auto", "minReplicas": 1, "maxReplicas": 10, "idleSeconds": 300, "scaleDownDelaySeconds": 60,
    }  # fmt: skip
    assert spec["engine"]["maxNumBatchedTokens"] == 2048
    assert spec["parallelism"] == {"tensor": 1}
    assert spec["drain"] == {"deadlineSeconds": 600}
    assert "emulated" not in spec["engine"]


def test_a_template_is_kept_as_written(cluster: Cluster):
    raw = ACCEPTED["an opaque template"]
    assert send(cluster, raw, "create", "--dry-run=server")["spec"]["template"] == raw["spec"]["template"]


def explained(cluster: Cluster, path: str) -> str:
    return " ".join(cluster.kubectl("explain", f"inferenceservices.forebay.dev.{path}").split())


EXPLAINED = {
    "spec": "What to serve, on what, and how it may scale.",
    "spec.model.uri": "hf://meta-llama/Llama-3.1-8B-Instruct",
    "spec.engine.maxNumBatchedTokens": "Token budget of one engine step (chunked prefill).",
    "spec.scaling": "enum: Auto, Manual, Paused",
    "spec.scaling.idleSeconds": "Default: 300.",
    "status.conditions.reason": "as one CamelCase word",
}


@pytest.mark.parametrize(("path", "says"), EXPLAINED.items(), ids=EXPLAINED)
def test_kubectl_explains(cluster: Cluster, path: str, says: str):
    def answers() -> bool:
        try:
            return says in explained(cluster, path)
        except CommandFailed:
            return False

    until(answers, f"kubectl explain {path} says: {says}", EXPLAIN_SECONDS)


def scale(cluster: Cluster, replicas: int) -> str:
    name = SERVICE["metadata"]["name"]
    return cluster.kubectl("scale", "-n", NAMESPACE, "inferenceservices.forebay.dev", name, f"--replicas={replicas}")


@pytest.mark.usefixtures("service")
def test_kubectl_scales(cluster: Cluster):
    scale(cluster, 3)
    path = f"/apis/forebay.dev/v1alpha1/namespaces/{NAMESPACE}/inferenceservices/{SERVICE['metadata']['name']}/scale"
    assert json.loads(cluster.kubectl("get", "--raw", path))["spec"]["replicas"] == 3


@pytest.mark.usefixtures("service")
def test_kubectl_does_not_scale_an_interactive_service_to_zero(cluster: Cluster):
    with pytest.raises(CommandFailed, match="write replicas 1 or more, or class: Batch"):
        scale(cluster, 0)


@pytest.mark.usefixtures("service")
def test_kubectl_lists_in_columns(cluster: Cluster):
    head, row = cluster.kubectl("get", "fbsvc", "-n", NAMESPACE).strip().split("\n")
    assert head.split() == ["NAME", "MODEL", "READY", "REPLICAS", "DESIRED", "WARM", "SLO", "REASON", "AGE"]
    assert "hf://meta-llama/Llama-3.1-8B-Instruct" in row


@pytest.mark.usefixtures("service")
def test_the_category_lists_every_kind(cluster: Cluster):
    assert "inferenceservice.forebay.dev/chat-8b" in cluster.kubectl("get", "forebay", "-n", NAMESPACE, "-o", "name")


STATUS: dict[str, Any] = {
    "observedGeneration": 1,
    "replicas": 3,
    "readyReplicas": 2,
    "warmReplicas": 1,
    "desiredReplicas": 2,
    "selector": "forebay.dev/inferenceservice=chat-8b",
    "lastScaleTime": "2026-01-01T00:00:00Z",
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "reason": "ReplicasReady",
            "message": "2 of 2 serve",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "observedGeneration": 1,
        }
    ],
    "lastDecision": {
        "desired": 2,
        "steps": [{"stage": "demand", "replicas": 2, "reason": "PrefillDemand", "message": "two are needed"}],
    },
    "memory": "v1:AAAA",
}


@pytest.mark.usefixtures("service")
def test_a_status_is_kept_whole_and_shows_in_the_columns_and_in_scale(cluster: Cluster):
    name = SERVICE["metadata"]["name"]
    patch = json.dumps({"status": STATUS})
    path = ("inferenceservices.forebay.dev", "-n", NAMESPACE, name)
    cluster.kubectl("patch", *path, "--subresource=status", "--type=merge", "-p", patch)
    assert json.loads(cluster.kubectl("get", *path, "-o", "json"))["status"] == STATUS
    assert {"True", "ReplicasReady", "3", "2", "1"} <= set(cluster.kubectl("get", *path, "--no-headers").split())
    shown = json.loads(cluster.kubectl("get", *path, "--subresource=scale", "-o", "json"))["status"]
    assert shown == {"replicas": 3, "selector": STATUS["selector"]}


CHART_SETTINGS = {"as it comes": "gateway.replicas=1", "one namespace": f"namespaces={{{NAMESPACE}}}"}


@pytest.mark.parametrize("setting", CHART_SETTINGS.values(), ids=CHART_SETTINGS)
def test_the_server_takes_what_the_chart_renders(cluster: Cluster, setting: str):
    where = ("--namespace", NAMESPACE)
    rendered = cluster.helm("template", "forebay", str(ROOT / "charts" / "forebay"), *where, "--set", setting)
    flags = ("--dry-run=server", "--server-side", "--force-conflicts", "--validate=strict")
    cluster.kubectl("apply", *flags, *where, "-f", "-", stdin=rendered)
