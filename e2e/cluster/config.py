"""The configuration of every program of a cluster: arguments and files, as functions of the layout."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from e2e.cluster.layout import (
    API_ADDRESS,
    API_PORT,
    BRIDGE,
    DNS_ADDRESS,
    POD_NETWORK_BITS,
    SERVICE_NETWORK,
    Layout,
    Node,
)

if TYPE_CHECKING:
    from pathlib import Path

_ETCD = "http://127.0.0.1:2379"
_ETCD_PEER = "http://127.0.0.1:2380"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
PAUSE_IMAGE = "forebay.dev/pause:1"


def etcd(layout: Layout) -> list[str]:
    """Keep the state without fsync: no cluster here outlives its machine."""
    return [
        "etcd",
        f"--data-dir={layout.folder}/etcd",
        f"--listen-client-urls={_ETCD}",
        f"--advertise-client-urls={_ETCD}",
        f"--listen-peer-urls={_ETCD_PEER}",
        f"--initial-advertise-peer-urls={_ETCD_PEER}",
        f"--initial-cluster=default={_ETCD_PEER}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def api_server(layout: Layout) -> list[str]:
    """Serve the API with the admission, authorizers and token projection of an ordinary cluster."""
    pki = layout.folder / "pki"
    return [
        "kube-apiserver",
        f"--etcd-servers={_ETCD}",
        f"--secure-port={API_PORT}",
        "--bind-address=0.0.0.0",
        f"--advertise-address={API_ADDRESS}",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        f"--token-auth-file={pki}/tokens.csv",
        f"--kubelet-client-certificate={pki}/kubelet-client.crt",
        f"--kubelet-client-key={pki}/kubelet-client.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--service-cluster-ip-range={SERVICE_NETWORK}",
        "--allow-privileged=true",
        # A killed API server must free its port and come back without waiting for old connections.
        "--shutdown-delay-duration=0s",
    ]


def controller_manager(layout: Layout) -> list[str]:
    """Run the controllers; a silent node counts as lost after 20 s instead of 50 s, to keep tests short."""
    kubeconfig = layout.folder / "system:kube-controller-manager.kubeconfig"
    return [
        "kube-controller-manager",
        *_client(kubeconfig),
        "--use-service-account-credentials",
        f"--root-ca-file={layout.folder}/pki/ca.crt",
        f"--service-account-private-key-file={layout.folder}/pki/sa.key",
        "--node-monitor-grace-period=20s",
        "--node-monitor-period=1s",
    ]


def scheduler(layout: Layout) -> list[str]:
    """Schedule, with upstream's defaults."""
    return ["kube-scheduler", *_client(layout.folder / "system:kube-scheduler.kubeconfig")]


def _client(kubeconfig: Path) -> list[str]:
    options = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
    return [*(f"--{option}={kubeconfig}" for option in options), "--leader-elect=false", "--bind-address=127.0.0.1"]


def coredns(layout: Layout) -> list[str]:
    """Answer DNS for pods, as a plain process at the first node's address."""
    file = layout.folder / "Corefile"
    file.write_text(
        f""".:53 {{
    bind {DNS_ADDRESS}
    errors
    kubernetes cluster.local in-addr.arpa ip6.arpa {{
        kubeconfig {layout.kubeconfig}
        pods insecure
        ttl 1
    }}
}}
"""
    )
    return ["coredns", "-conf", str(file)]


def containerd(folder: Path, node: Node) -> list[str]:
    """Run the containers of one node, and plug them into its network."""
    _write_network(folder / "cni", node)
    file = folder / "containerd.toml"
    off = [f"io.containerd.snapshotter.v1.{name}" for name in ("btrfs", "zfs", "aufs", "devmapper")]
    off += ["io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
    # restrict_oom_score_adj: a root without CAP_SYS_RESOURCE may not lower the score, and containers would not start.
    file.write_text(
        f"""version = 2
oom_score = 0
disabled_plugins = {json.dumps(off)}
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
  path = "/run/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  disable_tcp_service = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""
    )
    return ["containerd", "--config", str(file)]


def _write_network(folder: Path, node: Node) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    first, last = node.pod_range
    network = f"{API_ADDRESS.rsplit('.', 2)[0]}.0.0/{POD_NETWORK_BITS}"
    pods = {"subnet": network, "rangeStart": first, "rangeEnd": last, "gateway": node.address}
    addresses = {"type": "host-local", "dataDir": "/run/cni", "ranges": [[pods]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": BRIDGE, "isGateway": True, "hairpinMode": True, "ipam": addresses}
    plugins = [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}]
    document = {"cniVersion": "0.4.0", "name": BRIDGE, "plugins": plugins}
    (folder / "10-pods.conflist").write_text(json.dumps(document, indent=1))


def kubelet(layout: Layout, node: Node, labels: dict[str, str]) -> list[str]:
    """Run the pods of one node."""
    file = layout.of(node) / "kubelet.json"
    file.write_text(json.dumps(_kubelet_configuration(layout, node), indent=1))
    return [
        "kubelet",
        f"--config={file}",
        f"--kubeconfig={layout.of(node)}/kubelet.kubeconfig",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        f"--node-labels={','.join(f'{key}={value}' for key, value in labels.items())}",
        f"--cert-dir={layout.of(node)}/kubelet-pki",
    ]


def _kubelet_configuration(layout: Layout, node: Node) -> dict[str, object]:
    pki = layout.folder / "pki"
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "failSwapOn": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.identity}/{node.name}",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{pki}/{node.name}.crt",
        "tlsPrivateKeyFile": f"{pki}/{node.name}.key",
        "address": node.address,
        "readOnlyPort": 0,
        "healthzPort": 0,
        "oomScoreAdj": 0,
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        # Pods get the cluster's DNS and no other: there is nothing outside for them.
        "resolvConf": "",
        "clusterDNS": [DNS_ADDRESS],
        "clusterDomain": "cluster.local",
        # An image that was collected as garbage could not be pulled again: there is no registry.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "maxPods": 110,
        "nodeStatusUpdateFrequency": "2s",
        "nodeLeaseDurationSeconds": 20,
        "serializeImagePulls": False,
        "registryPullQPS": 0,
        "eventRecordQPS": 0,
    }


def kube_proxy(layout: Layout, node: Node) -> list[str]:
    """Rewrite ClusterIPs and NodePorts on one node, by nftables."""
    file = layout.of(node) / "kube-proxy.json"
    document = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": f"{layout.folder}/system:kube-proxy.kubeconfig"},
        "bindAddress": node.address,
        "hostnameOverride": node.name,
        # The limits of connection tracking belong to the machine; zero means: leave them.
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }
    file.write_text(json.dumps(document, indent=1))
    return ["kube-proxy", f"--config={file}"]


def fake_gpus(layout: Layout, node: Node) -> list[str]:
    """Offer GPUs on one node."""
    return ["fakegpu", "-node", node.name, "-count", str(node.gpus), "-unhealthy", str(layout.unhealthy(node))]
