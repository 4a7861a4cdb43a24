"""Bring up one node: its network, its container runtime, the images it must have, and its agents."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from e2e.cluster import config
from e2e.cluster.command import run
from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import BRIDGE, POD_NETWORK_BITS, UPLINK, Layout, Node
from e2e.cluster.wait import until

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.cluster.keeper_client import KeeperClient

_RUNTIME_WITHIN_S = 30.0


class RunningNode:
    """A node whose namespaces stand."""

    def __init__(self, layout: Layout, node: Node, keeper: KeeperClient, path: str, pid: int) -> None:
        self.node = node
        self.pid = pid
        self._layout = layout
        self._keeper = keeper
        self._path = path

    def enter(self, cwd: str = "/") -> list[str]:
        """Say what to put before a command to run it in all of the node's namespaces."""
        return ["nsenter", f"--target={self.pid}", "--mount", "--net", "--pid", "--uts", "--ipc", f"--wd={cwd}", "--"]

    def enter_network(self) -> list[str]:
        """Say what to put before a command to run it in the node's network and otherwise on the machine."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", "--"]

    def connect(self, first: RunningNode | None) -> None:
        """Give the node its bridge, and a cable to the first node's bridge where that is another."""
        lines = [f"link add {BRIDGE} type bridge", f"addr add {self.node.address}/{POD_NETWORK_BITS} dev {BRIDGE}"]
        if first is not None:
            end = f"to-{self.node.name}"
            cable = [
                f"link add {end} type veth peer name {UPLINK} netns {self.pid}",
                f"link set {end} master {BRIDGE} up",
            ]
            first.drop_interface(end)
            run([*first.enter_network(), "ip", "-batch", "-"], stdin="\n".join(cable) + "\n")
            lines.append(f"link set {UPLINK} master {BRIDGE} up")
        # Without a default route a ClusterIP is "unreachable" from the node before any rule could rewrite it.
        lines += [f"link set {BRIDGE} up", f"route add default dev {BRIDGE}"]
        run([*self.enter_network(), "ip", "-batch", "-"], stdin="\n".join(lines) + "\n")

    def drop_interface(self, name: str) -> None:
        """Remove an interface if the node's network still has it.

        The kernel takes the namespaces of a crashed node away one after another; that took over 10 s after a session
        with many pods, so the old cable is cut rather than waited for.
        """
        with suppress(ClusterError):
            run([*self.enter_network(), "ip", "link", "delete", name])

    def spawn(self, service: str, argv: list[str]) -> None:
        """Start a daemon of the node, under its own log."""
        log = self._layout.logs / f"{self.node.name}-{service}.log"
        self._keeper.ask(
            "spawn", node=self.node.name, service=service, argv=argv, env={"PATH": self._path}, log=str(log)
        )

    def signal(self, service: str, number: int) -> None:
        """Signal a daemon; SIGKILL returns when it is gone."""
        self._keeper.ask("signal", node=self.node.name, service=service, number=number)

    def start_runtime(self) -> None:
        """Start containerd; it needs nobody."""
        self.spawn("containerd", config.containerd(self._layout.of(self.node), self.node))

    def load(self, archive: Path) -> None:
        """Import an image archive, once containerd answers."""
        until(self._runtime_answers, f"containerd on {self.node.name}", _RUNTIME_WITHIN_S, self._layout.logs)
        run([*self.enter(), "ctr", "--namespace=k8s.io", "images", "import", str(archive)])

    def start_agents(self, labels: dict[str, str]) -> None:
        """Start kubelet, kube-proxy and the GPU plugin; they need the API server."""
        self.spawn("kubelet", config.kubelet(self._layout, self.node, labels))
        self.spawn("kube-proxy", config.kube_proxy(self._layout, self.node))
        if self.node.gpus:
            self.spawn("fakegpu", config.fake_gpus(self._layout, self.node))

    def _runtime_answers(self) -> bool:
        try:
            run([*self.enter(), "ctr", "version"])
        except ClusterError:
            return False
        return True
