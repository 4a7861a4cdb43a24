"""Names, addresses and files of one cluster.

All addresses exist only inside the cluster's own network namespace, so every cluster on a machine may use the same.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from e2e.cluster.paths import CLUSTERS

if TYPE_CHECKING:
    from pathlib import Path

POD_NETWORK_BITS = 16
SERVICE_NETWORK = "10.89.0.0/16"
SERVICE_ADDRESS = "10.89.0.1"
# The first node carries the control plane; its bridge address is where everybody finds API server and DNS.
API_ADDRESS = "10.88.0.1"
API_PORT = 6443
API_URL = f"https://{API_ADDRESS}:{API_PORT}"
DNS_ADDRESS = API_ADDRESS
BRIDGE = "pods"
UPLINK = "uplink"


@dataclass(frozen=True)
class Node:
    """One node: its number (from 0), and what follows from it."""

    number: int
    gpus: int

    @property
    def name(self) -> str:
        """The node's name in Kubernetes."""
        return f"node-{self.number + 1}"

    @property
    def address(self) -> str:
        """The address of its bridge, which is also the node's own."""
        return f"10.88.{self.number}.1"

    @property
    def pod_range(self) -> tuple[str, str]:
        """First and last address that its pods may get, out of the one network of all pods."""
        return f"10.88.{self.number}.10", f"10.88.{self.number}.250"


@dataclass(frozen=True)
class Layout:
    """Where one cluster keeps its files."""

    name: str

    @property
    def folder(self) -> Path:
        """All that the cluster writes."""
        return CLUSTERS / self.name

    @property
    def identity(self) -> str:
        """A name that is unique on the machine, since another checkout may run a cluster of the same name."""
        return f"forebay-{self.name}-{hashlib.sha256(str(self.folder).encode()).hexdigest()[:6]}"

    @property
    def logs(self) -> Path:
        """One file for each process."""
        return self.folder / "logs"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's, for use inside the cluster's network."""
        return self.folder / "kubeconfig"

    @property
    def host_kubeconfig(self) -> Path:
        """The administrator's, for use on the machine, through the relay."""
        return self.folder / "host.kubeconfig"

    @property
    def state(self) -> Path:
        """What a second process must know to talk about the cluster."""
        return self.folder / "state.json"

    def of(self, node: Node) -> Path:
        """Return the folder of one node."""
        return self.folder / node.name

    def binds(self, node: str) -> dict[str, str]:
        """Map fixed paths of kubelet and containerd to the folders of ours that they see there.

        Their defaults are short. A Unix socket's address holds 108 bytes, and a checkout may lie deeper than that.
        """
        return {
            "/var/lib/kubelet": str(self.folder / node / "kubelet"),
            "/var/lib/containerd": str(self.folder / node / "containerd"),
            "/var/log/pods": str(self.logs / f"{node}-pods"),
        }

    def unhealthy(self, node: Node) -> Path:
        """Return the file that names the node's unhealthy GPUs."""
        return self.of(node) / "unhealthy"
