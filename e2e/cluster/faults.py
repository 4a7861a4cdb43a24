"""Break a cluster on purpose, and mend it. Everything here is what happens to real clusters, done by the same means.

What takes something away has a counterpart that brings it back, and returns when its own act is done; what Kubernetes
makes of it is for the test to wait for.
"""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

from e2e.cluster import config
from e2e.cluster.command import run
from e2e.cluster.errors import ClusterError
from e2e.cluster.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster.cluster import Cluster

_BACK_WITHIN_S = 60.0


class Faults:
    """What can be broken in one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def kill_containers(self, namespace: str, pod: str) -> None:
        """SIGKILL the containers of a pod, as the kernel does when memory runs out; the kubelet restarts them."""
        found = self._cluster.api.get(f"/api/v1/namespaces/{namespace}/pods/{pod}")
        if not found:
            raise ClusterError(f"No pod {pod} in namespace {namespace}.")
        enter = self._cluster.node(found["spec"]["nodeName"]).enter()
        for status in found["status"].get("containerStatuses", []):
            if "running" in status["state"]:
                container = status["containerID"].removeprefix("containerd://")
                run([*enter, "ctr", "--namespace=k8s.io", "task", "kill", "--signal=SIGKILL", container])

    def delete_pod_at_once(self, namespace: str, pod: str) -> None:
        """Delete a pod without grace: no SIGTERM, no preStop, its object gone at once."""
        self._cluster.kubectl("--namespace", namespace, "delete", "pod", pod, "--grace-period=0", "--force")

    def kill_kubelet(self, node: str) -> None:
        """Silence a node; its pods run on."""
        self._cluster.node(node).signal("kubelet", signal.SIGKILL)

    def start_kubelet(self, node: str) -> None:
        """Bring the kubelet back."""
        found = self._cluster.node(node)
        found.spawn("kubelet", config.kubelet(self._cluster.layout, found.node, self._cluster.labels))

    def kill_node(self, node: str) -> None:
        """Cut a node's power: every process of it ends at once, its network is gone."""
        if node == self._cluster.nodes[0].node.name:
            raise ClusterError(f"{node} carries the control plane; start the cluster with more nodes and kill another.")
        self._cluster.keeper.ask("kill_node", node=node)

    def start_node(self, node: str) -> None:
        """Boot a node again, with the disk that it had."""
        found = self._cluster.node(node)
        self._cluster.boot(found)
        found.start_agents(self._cluster.labels)

    def kill_api_server(self) -> None:
        """Take the cluster's state away from readers and writers; what runs keeps running."""
        self._cluster.nodes[0].signal("kube-apiserver", signal.SIGKILL)

    def start_api_server(self) -> None:
        """Bring the API server back; it answers when this returns."""
        self._cluster.nodes[0].spawn("kube-apiserver", config.api_server(self._cluster.layout))
        until(self._cluster.api.ready, "API server ready again", _BACK_WITHIN_S, self._cluster.layout.logs)

    @contextmanager
    def without_api_server(self) -> Iterator[None]:
        """Run a block without API server."""
        self.kill_api_server()
        try:
            yield
        finally:
            self.start_api_server()

    def set_unhealthy_gpus(self, node: str, *numbers: int) -> None:
        """Make these GPUs of the node unhealthy, and no others; without numbers, all are well."""
        file = self._cluster.layout.unhealthy(self._cluster.node(node).node)
        draft = file.with_suffix(".new")
        draft.write_text("".join(f"GPU-{node}-{number}\n" for number in numbers))
        # The plugin reads at any moment: it finds the old list or the new one, never half of it.
        draft.rename(file)
