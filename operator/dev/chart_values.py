"""The chart's values: written once as models, from which values.yaml and values.schema.json are made."""

from __future__ import annotations

import json
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

WIDTH = 118
Seconds = Annotated[int, Field(ge=1, le=86_400)]
Selector = dict[str, str]
Objects = list[dict[str, Any]]


class Values(BaseModel):
    """A part of the values; a key that nothing reads is refused, since it is a typing error."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, extra="forbid", use_attribute_docstrings=True
    )


class Image(Values):
    """Where an image comes from."""

    repository: str
    """Registry and name."""
    tag: str = ""
    """Tag; empty: the chart's appVersion."""


class Images(Values):
    """Images of the installation and of the replicas that it makes."""

    operator: Image = Image(repository="docker.io/forebay/operator")
    """Operator and picker."""
    envoy: Image = Image(repository="docker.io/envoyproxy/envoy", tag="distroless-v1.40.0")
    """Envoy, unmodified, 1.34 or newer."""
    vllm: Image = Image(repository="docker.io/forebay/replica")
    """Replicas of services with engine.type VLLM that name no image of their own."""
    emulated: Image = Image(repository="docker.io/forebay/replica")
    """Replicas of services with engine.type Emulated that name no image of their own."""
    pull_policy: Annotated[str, Field(pattern="^(Always|IfNotPresent|Never)$")] = "IfNotPresent"
    """Always, IfNotPresent or Never."""
    pull_secrets: list[str] = []
    """Names of secrets for pulling the images of operator and gateway."""


class Placement(Values):
    """Where the pods of one component run, and with what."""

    node_selector: Selector = {}
    """Labels that a node must have."""
    tolerations: Objects = []
    """Taints that the pods tolerate."""
    affinity: dict[str, Any] = {}
    """Affinity; empty: spread over nodes where possible."""
    priority_class_name: str = ""
    """PriorityClass. These pods decide about GPUs: give them more than your workloads have."""
    pod_annotations: Selector = {}
    """Annotations to add to the pods."""
    pod_labels: Selector = {}
    """Labels to add to the pods."""
    service_account_annotations: Selector = {}
    """Annotations to add to the ServiceAccount."""


class Journal(Values):
    """The journal of looks and decisions, on an emptyDir: what `forebay explain` reads and a replay needs."""

    enabled: bool = True
    """Whether it is written."""
    max_mebibytes: Annotated[int, Field(ge=8, le=1_048_576)] = 1024
    """Size at which the oldest part goes."""


def _resources(cpu: str, memory: str, limit: str) -> dict[str, Any]:
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": limit}}


class Operator(Placement):
    """The operator: `forebay run`."""

    replicas: Annotated[int, Field(ge=1, le=3)] = 1
    """Processes; one leads, the others wait for its lease to end. 2 shorten the pause after a node's death."""
    log_level: Annotated[str, Field(pattern="^(DEBUG|INFO|WARNING|ERROR)$")] = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""
    lease_duration_milliseconds: Annotated[int, Field(ge=3000, le=600_000)] = 10_000
    """How long a successor waits for a leader that fell silent."""
    journal: Journal = Journal()
    """The journal of looks and decisions."""
    resources: dict[str, Any] = _resources("200m", "256Mi", "1Gi")
    """Resources. Memory grows by about 8 KiB a pod watched."""


class Service(Values):
    """The Service in front of Envoy."""

    type: Annotated[str, Field(pattern="^(ClusterIP|NodePort|LoadBalancer)$")] = "ClusterIP"
    """ClusterIP, NodePort or LoadBalancer."""
    port: Annotated[int, Field(ge=1, le=65_535)] = 80
    """Port that clients use."""
    annotations: Selector = {}
    """Annotations, for example of a load balancer."""


class Gateway(Placement):
    """The gateway: Envoy and the endpoint picker, one pod. Each pod holds its own queue."""

    replicas: Annotated[int, Field(ge=1, le=50)] = 2
    """Pods."""
    service: Service = Service()
    """The Service in front of Envoy."""
    start_wait_seconds: Seconds = 300
    """Longest wait of a request for the first replica to start."""
    busy_wait_seconds: Seconds = 60
    """Longest wait of a request for a replica with room."""
    queue_requests: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """Most requests that wait, a service and pod; beyond that 429 with Retry-After, lowest priority first."""
    queue_mebibytes: Annotated[int, Field(ge=32, le=65_536)] = 256
    """Most bytes of waiting requests a pod. Each costs about two in the picker and one in Envoy: mind the limits."""
    drain_seconds: Annotated[int, Field(ge=1, le=7200)] = 600
    """How long running streams may go on when a pod leaves."""
    envoy_threads: Annotated[int, Field(ge=1, le=64)] = 2
    """Worker threads of Envoy."""
    picker_resources: dict[str, Any] = _resources("100m", "128Mi", "768Mi")
    """Resources of the picker."""
    envoy_resources: dict[str, Any] = _resources("100m", "128Mi", "768Mi")
    """Resources of Envoy."""


class Policies(Values):
    """The SLO policies that ship."""

    install: bool = True
    """Whether interactive-chat, code-completion, long-context, voice and batch are created. They stay on uninstall."""


class PodMonitor(Values):
    """A PodMonitor of the Prometheus operator, for operator and gateway."""

    enabled: bool = False
    """Whether it is created; needs the kind PodMonitor in the cluster."""
    interval: Annotated[str, Field(pattern="^[0-9]+(ms|s|m)$")] = "15s"
    """Time between scrapes."""
    labels: Selector = {}
    """Labels by which your Prometheus selects it."""


class Dashboard(Values):
    """A Grafana dashboard as a ConfigMap, for Grafana's sidecar."""

    enabled: bool = False
    """Whether it is created."""
    labels: Selector = {"grafana_dashboard": "1"}
    """Labels by which the sidecar selects it."""


class Monitoring(Values):
    """Prometheus and Grafana: welcome, not needed."""

    pod_monitor: PodMonitor = PodMonitor()
    """A PodMonitor for operator and gateway."""
    dashboard: Dashboard = Dashboard()
    """A Grafana dashboard."""


class NetworkPolicy(Values):
    """Who may talk to operator and gateway. A cluster without an enforcing network plugin ignores it."""

    enabled: bool = True
    """Whether policies are created."""
    api_server_ports: list[Annotated[int, Field(ge=1, le=65_535)]] = [443, 6443]
    """Ports of the API server as pods reach it, after the Service's translation."""
    metrics_from: Objects = [{"namespaceSelector": {}}]
    """Peers that may read /metrics: NetworkPolicyPeer objects. Narrow it to your Prometheus' namespace."""


class ChartValues(Values):
    """Values of the chart forebay."""

    images: Images = Images()
    """Images of the installation and of the replicas that it makes."""
    namespaces: Annotated[list[Annotated[str, Field(min_length=1, max_length=63)]], Field(max_length=1)] = []
    """Namespace whose InferenceServices are driven, with Roles there and none elsewhere. Empty: every namespace, with
    ClusterRoles. One entry at most for now."""
    operator: Operator = Operator()
    """The operator."""
    gateway: Gateway = Gateway()
    """The gateway."""
    policies: Policies = Policies()
    """The SLO policies that ship."""
    monitoring: Monitoring = Monitoring()
    """Prometheus and Grafana."""
    network_policy: NetworkPolicy = NetworkPolicy()
    """Who may talk to operator and gateway."""
    name_override: Annotated[str, Field(max_length=40)] = ""
    """Replaces the chart's name in object names."""
    global_: Annotated[dict[str, Any], Field(alias="global")] = {}
    """What Helm hands to a subchart; nothing reads it."""


def schema_json() -> str:
    """Return values.schema.json."""
    schema = _without_titles(ChartValues.model_json_schema(by_alias=True))
    schema = {"$schema": "http://json-schema.org/draft-07/schema#"} | _rename_definitions(schema)
    schema["$comment"] = "Made by operator/dev/generate.py; do not edit."
    return json.dumps(schema, indent=2) + "\n"


def values_yaml() -> str:
    """Return values.yaml: every default under its description."""
    lines = ["# Made by operator/dev/generate.py of operator/dev/chart_values.py; do not edit.", ""]
    for name, info in ChartValues.model_fields.items():
        if name != "global_":
            lines += [*_entry(ChartValues(), name, info, 0), ""]
    return "\n".join(lines).rstrip() + "\n"


def _entry(parent: Values, name: str, info: Any, depth: int) -> list[str]:
    value, indent, key = getattr(parent, name), "  " * depth, info.alias or name
    comments = [f"{indent}# {line}" for line in _wrapped(info.description, WIDTH - len(indent) - 2)]
    if isinstance(value, Values):
        inner = [line for n, i in type(value).model_fields.items() for line in _entry(value, n, i, depth + 1)]
        return [*comments, f"{indent}{key}:", *inner]
    text = yaml.safe_dump({key: value}, sort_keys=False, width=WIDTH).rstrip()
    return [*comments, *(indent + line for line in text.split("\n"))]


def _wrapped(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _without_titles(node: Any) -> Any:
    """Drop titles, which repeat the keys, and join the lines of descriptions."""
    if isinstance(node, list):
        return [_without_titles(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {k: _without_titles(v) for k, v in node.items() if not (k == "title" and isinstance(v, str))}
    if isinstance(kept.get("description"), str):
        kept["description"] = " ".join(kept["description"].split())
    return kept


def _rename_definitions(schema: dict[str, Any]) -> dict[str, Any]:
    """Write definitions as draft 7 does, which every Helm 3 and 4 reads."""
    text = json.dumps(schema).replace("#/$defs/", "#/definitions/").replace('"$defs"', '"definitions"')
    renamed: dict[str, Any] = json.loads(text)
    return renamed
