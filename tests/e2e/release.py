"""Forebay as the chart installs it, for one namespace of the shared cluster, and what a test asks it."""

from __future__ import annotations

import json
import secrets
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from e2e.cluster.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster.cluster import Cluster

CHART = str(Path(__file__).parents[2] / "charts" / "forebay")
SERVICES = "inferenceservices.forebay.dev"
REPLICAS = "app.kubernetes.io/component=replica"
STATE = "forebay.dev/state"
READY_S = 120


@dataclass
class Release:
    """One installation: its own namespace, the namespace that it serves, and a port that leads to its gateway."""

    cluster: Cluster
    home: str
    served: str
    port: int = field(init=False, default=0)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def install(self, *settings: str) -> None:
        """Install or upgrade, with rights for one namespace only: the narrowest that the chart can give."""
        narrow = (
            f"namespaces={{{self.served}}}",
            "policies.install=false",  # they belong to the whole cluster, which other tests share
            "gateway.replicas=1",
            "gateway.drainSeconds=30",
            "images.envoy.repository=docker.io/forebay/envoy",
            *(f"images.{image}.tag=dev" for image in ("operator", "envoy", "vllm", "emulated")),
        )
        chosen = [part for setting in (*narrow, *settings) for part in ("--set", setting)]
        self.cluster.helm(
            "upgrade", "--install", "forebay", CHART, "-n", self.home, "--wait", "--timeout=120s", *chosen
        )
        self.port = self.cluster.relay_service(self.home, "forebay-gateway", 80)  # a new Service has a new address

    def apply(self, *documents: dict[str, Any]) -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
        self.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(listed))

    def get(self, *what: str, namespace: str | None = None) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            self.cluster.kubectl("get", "-n", namespace or self.served, "-o", "json", *what)
        )
        return found

    def condition(self, service: str, kind: str) -> dict[str, str]:
        status = self.get(SERVICES, service).get("status", {})
        return next((c for c in status.get("conditions", ()) if c["type"] == kind), {})

    def until_ready(self, service: str, within_s: float = READY_S) -> None:
        until(lambda: self.condition(service, "Ready").get("status") == "True", f"{service} is ready", within_s)

    def pods(self, state: str | None = None) -> list[dict[str, Any]]:
        """The replicas' pods, those that leave left out."""
        found = self.get("pods", "-l", REPLICAS)["items"]
        there = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
        return [pod for pod in there if state is None or pod["metadata"]["labels"][STATE] == state]

    def until_states(self, within_s: float = READY_S, **counts: int) -> None:
        def reached() -> bool:
            return all(len(self.pods(state)) == count for state, count in counts.items())

        until(reached, f"replicas {counts}", within_s)

    def pod_of(self, component: str) -> str:
        """Name of the one pod of operator or gateway."""
        found = self.get("pods", "-l", f"app.kubernetes.io/component={component}", namespace=self.home)["items"]
        (pod,) = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
        return str(pod["metadata"]["name"])

    def metrics(self, component: str, port: int) -> str:
        path = f"/api/v1/namespaces/{self.home}/pods/{self.pod_of(component)}:{port}/proxy/metrics"
        return str(self.cluster.kubectl("get", "--raw", path))


def no_pool(release: Release) -> dict[str, Any]:
    """A policy without a warm pool, so that the number of replicas is the number that serves."""
    return {
        "apiVersion": "forebay.dev/v1alpha1",
        "kind": "SLOPolicy",
        "metadata": {"name": f"{release.served}-no-pool"},
        "spec": {
            "ttft": {"targetMilliseconds": 1000},
            "itl": {"meanMilliseconds": 100},
            "burst": {"multiplier": 1, "withinSeconds": 30},
            "maxIdleGPUs": 0,
        },
    }


@contextmanager
def installed(cluster: Cluster, name: str) -> Iterator[Release]:
    """Install Forebay under names of its own, and take it away with everything that it served."""
    suffix = secrets.token_hex(3)
    release = Release(cluster, f"{name}-{suffix}", f"{name}-fleet-{suffix}")
    for namespace in (release.home, release.served):
        cluster.kubectl("create", "namespace", namespace)
    try:
        release.install()
        yield release
    finally:
        cluster.helm("uninstall", "forebay", "-n", release.home, "--ignore-not-found")
        for namespace in (release.home, release.served):
            cluster.kubectl("delete", "namespace", namespace, "--wait=false")
