"""Where the demo plays: a cluster of its own on this machine, or the one of the present kubeconfig."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from e2e.cluster.cluster import Cluster
from e2e.cluster.command import DIES_WITH_US, run
from e2e.cluster.errors import ClusterError
from e2e.cluster.images import build_all
from e2e.cluster.progress import say
from e2e.cluster.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

RELEASE = NAMESPACE = "forebay"
GATEWAY_SERVICE = f"{RELEASE}-gateway"
GATEWAY_PORT = 80
GPU = "nvidia.com/gpu"
# Offered by a node's status alone: no device stands behind it, which is all that an emulated engine needs.
EMULATED_GPU = "forebay.dev/emulated-gpu"
EMULATED_GPUS = 16
_NODES, _GPUS_PER_NODE = 2, 8
_DOOR_WITHIN_S = 30


@dataclass(frozen=True)
class Target:
    """A cluster that can be played on."""

    name: str
    resource: str  # what a replica requests as its GPU
    env: dict[str, str]  # for kubectl and helm on this machine
    play_env: dict[str, str]  # for the play, which may run in another network
    play_prefix: Sequence[str]  # what to put before its command to have it there

    @property
    def is_ours(self) -> bool:
        """Whether it was made for the demo and goes with it."""
        return bool(self.play_prefix)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl and return what it prints."""
        return run(["kubectl", *arguments], env=self.env, stdin=stdin)

    def helm(self, *arguments: str) -> str:
        """Run helm and return what it prints."""
        return run(["helm", *arguments], env=self.env)

    def apply(self, documents: Sequence[dict[str, Any]]) -> None:
        """Apply objects."""
        self.kubectl("apply", "-f", "-", stdin=_as_list(documents))

    def delete(self, documents: Sequence[dict[str, Any]]) -> None:
        """Delete objects, the last first, and wait until they are gone."""
        self.kubectl("delete", "--ignore-not-found", "--timeout=180s", "-f", "-", stdin=_as_list(documents[::-1]))

    def copy_folder(self, pod: str, container: str, source: str, destination: Path) -> None:
        """Copy a folder out of a pod whose image has Python, and no tar for kubectl cp."""
        script = f"import sys,tarfile; tarfile.open(fileobj=sys.stdout.buffer,mode='w|').add({source!r},'.')"
        argv = ("kubectl", "exec", "-n", NAMESPACE, pod, "-c", container, "--", "python3", "-c", script)
        destination.mkdir(parents=True, exist_ok=True)
        packed = subprocess.run(argv, env={**os.environ, **self.env}, capture_output=True, check=False)
        if packed.returncode:
            raise ClusterError(f"copying {source} out of {pod}: {packed.stderr.decode(errors='replace')}")
        subprocess.run(("tar", "-x", "--no-same-owner", "-C", str(destination)), input=packed.stdout, check=True)


def _as_list(documents: Sequence[dict[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(documents)})


@contextmanager
def local() -> Iterator[Target]:
    """Start a cluster on this machine, with the images of this checkout; it is gone afterwards."""
    say("1. Images of operator, gateway and replicas")
    images = build_all()
    say(f"2. A Kubernetes of its own: {_NODES} nodes with {_GPUS_PER_NODE} (fake) GPUs each")
    started = time.monotonic()
    with Cluster.start(nodes=_NODES, gpus_per_node=_GPUS_PER_NODE, images=images) as cluster:
        say(f"   stands after {time.monotonic() - started:.0f} s")
        inner = {"KUBECONFIG": str(cluster.kubeconfig)}
        # The play must not outlive us, however we end: nobody else would end it.
        prefix = [*DIES_WITH_US, *cluster.enter_prefix(network_only=True)]
        # Helm's own files lie with the cluster, so that no repository of the user's plays a part.
        homes = {
            f"HELM_{kind}_HOME": str(cluster.layout.folder / "helm" / kind) for kind in ("CACHE", "CONFIG", "DATA")
        }
        yield Target(f"local ({cluster.name})", GPU, {**cluster.env, **homes}, inner, prefix)


@contextmanager
def current() -> Iterator[Target]:
    """Use the cluster of the present kubeconfig; what was added to it is taken away afterwards."""
    for program in ("kubectl", "helm"):
        if not shutil.which(program):
            raise ClusterError(f"CLUSTER=current needs {program} in PATH.")
    target = Target(_context(), GPU, {}, {}, ())
    say(f"1. Images: not built, {target.name} must be able to get them. To build them and load them into kind:")
    say("     docker build -t forebay/operator:dev -f operator/Dockerfile .")
    say("     docker build -t forebay/replica:dev -f replica_image/Dockerfile .")
    say("     kind load docker-image forebay/operator:dev forebay/replica:dev")
    say("   For a registry: push them, and name them in a file given with --values (see charts/forebay/values.yaml).")
    with ExitStack() as stack:
        resource = GPU if _gpus(target) else stack.enter_context(_emulated_gpus(target))
        say(f"2. The cluster {target.name}, with {resource}")
        yield Target(target.name, resource, {}, {}, ())


def _context() -> str:
    return run(["kubectl", "config", "current-context"]).strip()


def _gpus(target: Target) -> int:
    nodes = json.loads(target.kubectl("get", "nodes", "-o", "json"))["items"]
    return sum(int(node["status"].get("allocatable", {}).get(GPU, 0)) for node in nodes)


@contextmanager
def _emulated_gpus(target: Target) -> Iterator[str]:
    """Let one schedulable node offer emulated GPUs, until the end."""
    nodes = json.loads(target.kubectl("get", "nodes", "-o", "json"))["items"]
    ready = [node["metadata"]["name"] for node in nodes if not node["spec"].get("unschedulable")]
    if not ready:
        raise ClusterError("No node of the cluster takes pods.")
    node = ready[-1]  # control planes usually come first
    say(f"   No node offers {GPU}: {node} offers {EMULATED_GPUS} of {EMULATED_GPU} while the demo runs.")
    _patch_capacity(target, node, str(EMULATED_GPUS))
    try:
        yield EMULATED_GPU
    finally:
        with suppress(ClusterError):
            _patch_capacity(target, node, None)


def _patch_capacity(target: Target, node: str, count: str | None) -> None:
    patch = {"status": {"capacity": {EMULATED_GPU: count}, "allocatable": {EMULATED_GPU: count}}}
    target.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", json.dumps(patch))


@contextmanager
def gateway(target: Target) -> Iterator[str]:
    """Yield the gateway's address as the play sees it."""
    if target.is_ours:
        address = target.kubectl("get", "-n", NAMESPACE, "service", GATEWAY_SERVICE, "-o", "jsonpath={.spec.clusterIP}")
        yield f"http://{address}:{GATEWAY_PORT}"
        return
    argv = ("kubectl", "port-forward", "-n", NAMESPACE, f"service/{GATEWAY_SERVICE}", f":{GATEWAY_PORT}")
    # In a group of its own, so that Ctrl-C reaches it by us alone, after the last request.
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as door:
        try:
            yield f"http://127.0.0.1:{_port(door)}"
        finally:
            door.terminate()


def _port(door: subprocess.Popen[str]) -> int:
    assert door.stdout is not None  # noqa: S101 - for mypy: stdout is a pipe
    line = door.stdout.readline()  # Forwarding from 127.0.0.1:43211 -> 8080
    if "->" not in line:
        raise ClusterError(f"kubectl port-forward to {GATEWAY_SERVICE} did not start: {line}")
    return int(line.partition("->")[0].rpartition(":")[2])


def crds_known(target: Target) -> None:
    """Wait until the API server serves our kinds: it does so a moment after helm has made the definitions."""
    until(
        lambda: "inferenceservices" in target.kubectl("api-resources", "--api-group=forebay.dev", "-o", "name"),
        "the kinds of Forebay",
        _DOOR_WITHIN_S,
    )
