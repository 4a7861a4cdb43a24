"""A local Kubernetes cluster as an object: start, use, break, take down.

For example:

    with Cluster.start(nodes=2, gpus_per_node=8) as cluster:
        cluster.kubectl("apply", "-f", "fleet.yaml")
        cluster.faults.kill_node("node-2")
"""

from __future__ import annotations

import json
import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from e2e.cluster import build, config, debian, image_store, keeper_client, machine, oci, pki
from e2e.cluster.api import Api
from e2e.cluster.command import run
from e2e.cluster.errors import ClusterError
from e2e.cluster.faults import Faults
from e2e.cluster.keeper_client import KeeperClient
from e2e.cluster.layout import API_ADDRESS, API_PORT, API_URL, DNS_ADDRESS, Layout, Node
from e2e.cluster.node import RunningNode
from e2e.cluster.paths import CLUSTERS, locked
from e2e.cluster.wait import until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

# 8 s on two free cores; the rest is for cores that others use as well.
_READY_WITHIN_S = 120.0
# As NVIDIA's feature discovery labels a node, for pools that select by it.
_GPU_LABELS = {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": "NVIDIA-L40S"}


class Cluster:
    """One cluster that stands."""

    def __init__(self, layout: Layout, keeper: KeeperClient, state: dict[str, Any]) -> None:
        self.name = layout.name
        self.layout = layout
        self.keeper = keeper
        self._state = state
        self._programs = build.Programs(*(Path(path) for path in state["programs"]))
        self.nodes = [
            RunningNode(layout, Node(number, gpus), keeper, self.path, pid)
            for number, (gpus, pid) in enumerate(zip(state["gpus"], state["pids"], strict=True))
        ]

    @classmethod
    def start(
        cls,
        name: str | None = None,
        nodes: int = 1,
        gpus_per_node: int = 8,
        images: Sequence[Path] = (),
        labels: Mapping[str, str] | None = None,
    ) -> Self:
        """Build what is missing, start everything, and return when it is usable.

        The cluster lives as long as the returned object's process, at most; `detach` frees it from that.
        """
        machine.check()
        debian.ensure(debian.NODE)
        programs = build.programs()
        store = image_store.filled([oci.pause_archive(programs.kubernetes), *images])
        layout = Layout(name or f"{os.getpid()}-{secrets.token_hex(2)}")
        with locked("clusters"):
            if keeper_client.stands(layout):
                raise ClusterError(f"A cluster of the name {layout.name} stands already (python -m e2e.cluster down).")
            keeper_client.clear(layout)
            keeper = keeper_client.start(layout)
        try:
            for number in range(nodes):
                image_store.copy(store, Path(layout.binds(Node(number, 0).name)["/var/lib/containerd"]))
            identities = pki.make(layout.folder / "pki", [Node(number, gpus_per_node) for number in range(nodes)])
            state = {
                "programs": [str(programs.kubernetes), str(programs.coredns), str(programs.helm)],
                "gpus": [gpus_per_node] * nodes,
                "pids": [keeper.ask("start_node", node=Node(number, 0).name) for number in range(nodes)],
                "api_port": keeper.ask("relay", host=API_ADDRESS, port=API_PORT),
                "token": identities.tokens["admin"],
                "labels": {**_GPU_LABELS, **(labels or {})},
            }
            cluster = cls(layout, keeper, state)
            cluster._bring_up(identities)
        except BaseException:
            keeper.down(keep_logs=True)
            raise
        return cluster

    @classmethod
    def attach(cls, name: str) -> Self:
        """Find a cluster that another process started."""
        layout = Layout(name)
        if not keeper_client.stands(layout) or not layout.state.exists():
            raise ClusterError(f"No cluster of the name {name} stands.")
        return cls(layout, KeeperClient(layout), json.loads(layout.state.read_text()))

    @property
    def path(self) -> str:
        """PATH with the cluster's programs in front."""
        return f"{self._programs.path}:{os.environ['PATH']}"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig inside the cluster's network."""
        return self.layout.kubeconfig

    @property
    def host_kubeconfig(self) -> Path:
        """The administrator's kubeconfig on the machine."""
        return self.layout.host_kubeconfig

    @property
    def api(self) -> Api:
        """Reads of the API server."""
        return Api(self._state["api_port"], self._state["token"], self.layout.folder / "pki" / "ca.crt")

    @property
    def labels(self) -> dict[str, str]:
        """The labels of every node."""
        return dict(self._state["labels"])

    @property
    def env(self) -> dict[str, str]:
        """What a program on the machine needs to talk to the cluster."""
        return {"KUBECONFIG": str(self.host_kubeconfig), "PATH": self.path}

    @property
    def faults(self) -> Faults:
        """Break things on purpose."""
        return Faults(self)

    def node(self, name: str) -> RunningNode:
        """Return the node of this name."""
        for node in self.nodes:
            if node.node.name == name:
                return node
        raise ClusterError(f"No node {name}; there are {', '.join(node.node.name for node in self.nodes)}.")

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl as the administrator and return what it prints."""
        return run([f"{self._programs.kubernetes}/kubectl", *arguments], env=self.env, stdin=stdin)

    def helm(self, *arguments: str) -> str:
        """Run helm as the administrator and return what it prints.

        Its caches lie with the cluster, so that no repository of the user's plays a part.
        """
        homes = {f"HELM_{kind}_HOME": str(self.layout.folder / "helm" / kind) for kind in ("CACHE", "CONFIG", "DATA")}
        return run([f"{self._programs.helm}/helm", *arguments], env={**self.env, **homes})

    def run(self, argv: Sequence[str], node: str | None = None) -> str:
        """Run a program inside the namespaces of a node (the first, unless told), where pod and service IPs answer."""
        prefix = self.enter_prefix(node=node)
        return run([*prefix, *argv], env={"KUBECONFIG": str(self.kubeconfig), "PATH": self.path})

    def enter_prefix(self, *, node: str | None = None, network_only: bool = False) -> list[str]:
        """Say what to put before a command to run it in the cluster's network only, or in all namespaces of a node."""
        where = self.node(node) if node else self.nodes[0]
        return where.enter_network() if network_only else where.enter(str(Path.cwd()))

    def relay(self, host: str, port: int) -> int:
        """Open a port on 127.0.0.1 that leads to an address inside, for as long as the cluster stands."""
        return int(self.keeper.ask("relay", host=host, port=port))

    def relay_service(self, namespace: str, name: str, port: int) -> int:
        """Open a port on 127.0.0.1 that leads to a Service's ClusterIP."""
        service = self.api.get(f"/api/v1/namespaces/{namespace}/services/{name}")
        if not service:
            raise ClusterError(f"No service {name} in namespace {namespace}.")
        return self.relay(service["spec"]["clusterIP"], port)

    def load_image(self, archive: Path) -> None:
        """Give an image to every node."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(lambda node: node.load(archive), self.nodes))

    def detach(self) -> None:
        """Let the cluster outlive this process, until `python -m e2e.cluster down`."""
        self.keeper.detach()

    def down(self, *, keep_logs: bool = False) -> None:
        """Take everything down; nothing is left, except the logs when they are asked for."""
        self.keeper.down(keep_logs=keep_logs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down(keep_logs=kind is not None)

    def _bring_up(self, identities: pki.Identities) -> None:
        first = self.nodes[0]
        for node in self.nodes:
            node.connect(None if node is first else first)
        first.spawn("etcd", config.etcd(self.layout))
        first.spawn("kube-apiserver", config.api_server(self.layout))
        for node in self.nodes:
            node.start_runtime()
        self._write_kubeconfigs(identities)
        until(self.api.ready, "API server ready", _READY_WITHIN_S, self.layout.logs)
        first.spawn("kube-controller-manager", config.controller_manager(self.layout))
        first.spawn("kube-scheduler", config.scheduler(self.layout))
        for node in self.nodes:
            node.start_agents(self.labels)
        first.spawn("coredns", config.coredns(self.layout))
        self.wait_ready()
        self.layout.state.write_text(json.dumps(self._state))

    def boot(self, node: RunningNode) -> None:
        """Give a node that has lost everything but its disk namespaces, network and runtime again."""
        node.pid = self.keeper.ask("start_node", node=node.node.name)
        self._state["pids"][node.node.number] = node.pid
        node.connect(self.nodes[0])
        node.start_runtime()
        self.layout.state.write_text(json.dumps(self._state))

    def wait_ready(self) -> None:
        """Wait until nodes, GPUs, the default service account and DNS are there."""
        api, logs = self.api, self.layout.logs
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        nodes = [running.node for running in self.nodes]
        until(lambda: all(api.node_ready(node.name) for node in nodes), "all nodes Ready", _READY_WITHIN_S, logs)
        equipped = [node for node in nodes if node.gpus]
        until(lambda: all(api.gpus(node.name) == node.gpus for node in equipped), "all GPUs", _READY_WITHIN_S, logs)
        until(lambda: api.get(account), "the default service account", _READY_WITHIN_S, logs)
        until(lambda: self.keeper.ask("answers", host=DNS_ADDRESS, port=53), "DNS", _READY_WITHIN_S, logs)

    def _write_kubeconfigs(self, identities: pki.Identities) -> None:
        folder = self.layout.folder
        files = {
            self.kubeconfig: ("admin", API_URL),
            self.host_kubeconfig: ("admin", f"https://127.0.0.1:{self._state['api_port']}"),
            **{
                folder / f"{user}.kubeconfig": (user, API_URL)
                for user in ("system:kube-controller-manager", "system:kube-scheduler", "system:kube-proxy")
            },
            **{
                self.layout.of(node.node) / "kubelet.kubeconfig": (f"system:node:{node.node.name}", API_URL)
                for node in self.nodes
            },
        }
        for file, (user, server) in files.items():
            file.touch(mode=0o600)
            file.write_text(identities.kubeconfig(user, server))


def standing() -> list[str]:
    """List the clusters of this checkout that stand."""
    if not CLUSTERS.is_dir():
        return []
    return sorted(path.name for path in CLUSTERS.iterdir() if keeper_client.stands(Layout(path.name)))
