"""The chart on a real cluster: it works with the rights that it gives, survives an upgrade, and goes quietly."""

from __future__ import annotations

import json
import secrets
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e.cluster.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300, func_only=True)]

ROOT = Path(__file__).parents[2]
CHART = str(ROOT / "charts" / "forebay")
SUFFIX = secrets.token_hex(3)
HOME, SERVED = f"chart-{SUFFIX}", f"chart-fleet-{SUFFIX}"
MODEL = f"tiny-{SUFFIX}"
KIND = "inferenceservices.forebay.dev"
READY_S = 120
# Rights for one namespace are the narrowest; the policies may belong to another release of the same cluster.
SETTINGS = (
    f"namespaces={{{SERVED}}}",
    "policies.install=false",
    "gateway.replicas=1",
    "gateway.drainSeconds=30",
    "images.envoy.repository=docker.io/forebay/envoy",
    *(f"images.{image}.tag=dev" for image in ("operator", "envoy", "vllm", "emulated")),
)
SERVICE: dict[str, Any] = {
    "apiVersion": "forebay.dev/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": "tiny", "namespace": SERVED},
    "spec": {
        "model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct", "servedName": MODEL},
        "engine": {"type": "Emulated", "emulated": {"coldStartSeconds": 1}},
        "accelerators": [{"name": "l40s", "type": "L40S"}],
        "drain": {"deadlineSeconds": 5},
        "scaling": {"mode": "Manual"},  # one replica, whatever the test asks of it
    },
}


@dataclass
class Release:
    """Forebay as installed, and a port of this machine that leads to its gateway."""

    cluster: Cluster
    port: int = field(init=False)

    def install(self, *settings: str) -> None:
        chosen = [part for setting in (*SETTINGS, *settings) for part in ("--set", setting)]
        self.cluster.helm("upgrade", "--install", "forebay", CHART, "-n", HOME, "--wait", "--timeout=120s", *chosen)
        self.port = self.cluster.relay_service(HOME, "forebay-gateway", 80)  # a new Service has a new address

    def get(self, *what: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.cluster.kubectl("get", "-n", SERVED, "-o", "json", *what))
        return found

    def ready(self) -> bool:
        conditions = self.get(KIND, "tiny").get("status", {}).get("conditions", [])
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def replicas(self) -> list[dict[str, Any]]:
        pods = self.get("pods", "-l", "app.kubernetes.io/component=replica")["items"]
        return [pod["metadata"] for pod in pods if pod["metadata"]["labels"]["forebay.dev/state"] == "serving"]

    def serving(self) -> set[str]:
        return {meta["uid"] for meta in self.replicas()}

    def revisions(self) -> set[str]:
        return {meta["annotations"]["forebay.dev/revision"] for meta in self.replicas()}

    def ask(self) -> str:
        """Ask for a completion; the answer's status, or what went wrong in its own words."""
        body = json.dumps({"model": MODEL, "prompt": "hello", "max_tokens": 2}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions", body, {"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return str(answer.status)
        except urllib.error.HTTPError as error:
            return f"{error.code} {error.read().decode()}"
        except OSError as error:
            return repr(error)


@pytest.fixture(scope="module")
def release(cluster: Cluster) -> Iterator[Release]:
    for namespace in (HOME, SERVED):
        cluster.kubectl("create", "namespace", namespace)
    installed = Release(cluster)
    installed.install()
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(SERVICE))
    until(installed.ready, "the first replica serves", READY_S)
    yield installed
    cluster.helm("uninstall", "forebay", "-n", HOME, "--ignore-not-found")
    for namespace in (HOME, SERVED):
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")


def test_a_service_is_served_with_rights_in_one_namespace_only(release: Release):
    assert release.ask() == "200"


def test_an_upgrade_keeps_the_fleet_serving(release: Release):
    before = release.revisions()
    stop, told = threading.Event(), list[str]()

    def keep_asking() -> None:
        while not stop.is_set():
            told.append(release.ask())

    client = threading.Thread(target=keep_asking)
    client.start()
    release.install("operator.podAnnotations.round=two", "gateway.podAnnotations.round=two")
    stop.set()
    client.join()
    assert set(told) == {"200"}
    assert release.revisions() == before


def test_an_uninstall_leaves_services_replicas_and_definitions(release: Release):
    serving, before = release.serving(), release.revisions()
    release.cluster.helm("uninstall", "forebay", "-n", HOME, "--wait", "--timeout=120s")
    assert serving
    assert release.serving() == serving
    assert release.get(KIND, "tiny")["spec"]["model"]["servedName"] == MODEL
    assert len(release.cluster.kubectl("get", "crd", "-o", "name").split("forebay.dev")) > 4
    release.install()
    assert release.ask() == "200"
    assert release.revisions() == before
