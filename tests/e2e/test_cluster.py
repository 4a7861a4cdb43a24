"""The local cluster is a real one, breaks as told, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e.cluster import keeper_client
from e2e.cluster.layout import Layout
from e2e.cluster.paths import ROOT
from e2e.cluster.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster.cluster import Cluster

IMAGE = "forebay/operator:dev"


def pod(name: str, program: str, *, gpus: int = 0, **spec: Any) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", program],
    }
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    container |= spec.pop("container", {})
    metadata = {"name": name, "labels": {"app": name}}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def apply(cluster: Cluster, *objects: dict[str, Any]) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))


def output(cluster: Cluster, name: str) -> str:
    """What a pod printed, once it has succeeded."""
    cluster.kubectl("wait", f"pod/{name}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
    return cluster.kubectl("logs", name)


@pytest.fixture(autouse=True)
def _tidy(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "cluster" in request.fixturenames:
        request.getfixturevalue("cluster").kubectl("delete", "pod,service", "--selector=app", "--now", "--wait=false")


def test_two_nodes_are_ready_with_eight_gpus_each(cluster: Cluster) -> None:
    nodes = cluster.api.get("/api/v1/nodes")["items"]
    assert [node["metadata"]["name"] for node in nodes] == ["node-1", "node-2"]
    assert all(cluster.api.node_ready(node["metadata"]["name"]) for node in nodes)
    assert [node["status"]["allocatable"]["nvidia.com/gpu"] for node in nodes] == ["8", "8"]


def test_kubectl_works_inside_the_cluster_and_on_the_machine(cluster: Cluster) -> None:
    inside = cluster.run(["kubectl", "get", "nodes", "--output=name"])
    assert inside == cluster.kubectl("get", "nodes", "--output=name") == "node/node-1\nnode/node-2\n"


def test_pods_that_share_a_node_get_distinct_gpus(cluster: Cluster) -> None:
    program = "import os; print(os.environ['NVIDIA_VISIBLE_DEVICES'])"
    apply(cluster, *(pod(f"gpu-{number}", program, gpus=4, nodeName="node-1") for number in range(2)))
    ids = [id_ for number in range(2) for id_ in output(cluster, f"gpu-{number}").strip().split(",")]
    assert sorted(ids) == [f"GPU-node-1-{number}" for number in range(8)]


def test_a_pod_reaches_a_service_on_the_other_node_by_its_name(cluster: Cluster) -> None:
    server = pod("web", "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8000)", nodeName="node-1")
    server["spec"]["containers"][0]["workingDir"] = "/opt/forebay"
    service = {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8000}]}
    metadata = {"name": "web", "labels": {"app": "web"}}
    program = "import urllib.request as u; print(u.urlopen('http://web.default.svc.cluster.local').status)"
    apply(cluster, server, {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service})
    cluster.kubectl("wait", "pod/web", "--for=condition=Ready", "--timeout=60s")
    port = cluster.relay_service("default", "web", 80)
    until(lambda: answers(port), "the service through the relay", 30)
    apply(cluster, pod("client", program, nodeName="node-2"))
    assert output(cluster, "client") == "200\n"


def answers(port: int) -> bool:
    return (
        subprocess.run(["curl", "--silent", "--fail", f"127.0.0.1:{port}"], capture_output=True, check=False).returncode
        == 0
    )


def test_a_pod_reads_a_folder_of_the_machine(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("from the machine")
    apply(
        cluster,
        pod(
            "reader",
            "print(open('/host/weights').read())",
            container={"volumeMounts": [{"name": "host", "mountPath": "/host", "readOnly": True}]},
            volumes=[{"name": "host", "hostPath": {"path": str(tmp_path), "type": "Directory"}}],
            securityContext={"runAsUser": 0},
        ),
    )
    assert output(cluster, "reader") == "from the machine\n"


def test_a_projected_token_is_who_it_says_it_is(cluster: Cluster) -> None:
    token = cluster.kubectl("create", "token", "default", "--audience=replica").strip()
    review = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": ["replica"]},
    }
    answer = json.loads(cluster.kubectl("create", "--output=json", "-f", "-", stdin=json.dumps(review)))
    assert answer["status"]["user"]["username"] == "system:serviceaccount:default:default"


def test_helm_installs_a_chart(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: trivial\nversion: 1.0.0\n")
    (tmp_path / "templates").mkdir()
    document = 'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: trivial}\ndata: {release: "{{ .Release.Name }}"}\n'
    (tmp_path / "templates" / "configmap.yaml").write_text(document)
    cluster.helm("install", "first", str(tmp_path), "--wait")
    assert cluster.kubectl("get", "configmap", "trivial", "--output=jsonpath={.data.release}") == "first"
    cluster.helm("uninstall", "first", "--wait")
    assert "trivial" not in cluster.kubectl("get", "configmap", "--output=name")


def test_an_unhealthy_gpu_is_not_allocatable_until_it_is_well(cluster: Cluster) -> None:
    cluster.faults.set_unhealthy_gpus("node-2", 3, 5)
    until(lambda: cluster.api.gpus("node-2") == 6, "two GPUs fewer", 30)
    cluster.faults.set_unhealthy_gpus("node-2")
    until(lambda: cluster.api.gpus("node-2") == 8, "all GPUs again", 30)


def test_killed_containers_are_restarted(cluster: Cluster) -> None:
    apply(cluster, pod("victim", "import time; time.sleep(1e6)", restartPolicy="Always"))
    cluster.kubectl("wait", "pod/victim", "--for=condition=Ready", "--timeout=60s")
    cluster.faults.kill_containers("default", "victim")
    cluster.kubectl(
        "wait", "pod/victim", "--for=jsonpath={.status.containerStatuses[0].restartCount}=1", "--timeout=60s"
    )


def test_a_killed_api_server_comes_back_with_its_state(cluster: Cluster) -> None:
    with cluster.faults.without_api_server():
        assert not cluster.api.ready()
    assert cluster.kubectl("get", "nodes", "--output=name").split() == ["node/node-1", "node/node-2"]


def test_a_node_that_lost_power_boots_again(cluster: Cluster) -> None:
    cluster.faults.kill_node("node-2")
    assert "node-2" not in cluster.keeper.ask("running")
    cluster.faults.start_node("node-2")
    apply(cluster, pod("after", "print('back')", gpus=1, nodeSelector={"kubernetes.io/hostname": "node-2"}))
    assert output(cluster, "after") == "back\n"


START = "from e2e.cluster.cluster import Cluster; Cluster.start('{}'); print('up', flush=True); input()"


@pytest.mark.cluster
@pytest.mark.parametrize("when", ["standing", "starting"])
def test_a_killed_starter_leaves_nothing_behind(when: str) -> None:
    layout = Layout(f"{when}-{os.getpid()}")
    command = [sys.executable, "-c", START.format(layout.name)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, **pipes) as starter:
        assert starter.stdout is not None
        if when == "standing":
            assert starter.stdout.readline() == b"up\n"
        else:
            until((layout.logs / "node-1-etcd.log").exists, "the first daemon", 60)
        starter.send_signal(signal.SIGKILL)
    until(lambda: not keeper_client.stands(layout), "the keeper to go", 30)
    assert traces(layout) == []
    keeper_client.clear(layout)


def traces(layout: Layout) -> list[str]:
    found = [str(path) for path in Path("/sys/fs/cgroup").rglob(f"{layout.identity}*")]
    found += [line for line in Path("/proc/mounts").read_text().splitlines() if str(layout.folder) in line]
    found += [str(path) for path in layout.folder.iterdir() if path.name not in {"logs", "keeper.lock"}]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        found += [line] if str(layout.folder) in line else []
    return found
