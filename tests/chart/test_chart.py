"""What the chart renders: safe pods, least rights, and a refusal for every typing error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator, Draft202012Validator

from e2e.cluster.errors import CommandFailed
from forebay.api.kinds import SLO_POLICY
from forebay.api.schema import object_schema
from forebay.control.settings import Settings
from forebay.wire import names
from tests.chart.conftest import CHART, Objects

Render = Callable[..., Objects]

ALL = ("monitoring.podMonitor.enabled=true", "monitoring.dashboard.enabled=true")
ONE_NAMESPACE = ("namespaces={team-a}",)
VARIANTS = {"as it comes": (), "everything on": ALL, "one namespace": ONE_NAMESPACE}


def of_kind(objects: Objects, kind: str) -> Objects:
    return [o for o in objects if o["kind"] == kind]


def the(objects: Objects, kind: str, name: str) -> dict[str, Any]:
    (one,) = [o for o in of_kind(objects, kind) if o["metadata"]["name"] == name]
    return one


def pod_specs(objects: Objects) -> dict[str, dict[str, Any]]:
    return {o["metadata"]["name"]: o["spec"]["template"]["spec"] for o in of_kind(objects, "Deployment")}


def containers(spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {c["name"]: c for c in [*spec.get("initContainers", []), *spec["containers"]]}


def environment(container: dict[str, Any]) -> dict[str, str]:
    return {e["name"]: e.get("value", "from the pod") for e in container["env"]}


def test_helm_finds_nothing_to_complain_about(helm: Callable[..., str]):
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_every_pod_is_confined(render: Render, settings: tuple[str, ...]):
    specs = pod_specs(render(*settings))
    assert set(specs) == {"forebay-operator", "forebay-gateway"}
    for spec in specs.values():
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["runAsUser"] == 65532
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in containers(spec).values():
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}
            assert "memory" in container["resources"]["limits"]
        assert not any("hostPath" in volume for volume in spec["volumes"])


def test_every_container_that_stays_is_probed(render: Render):
    for spec in pod_specs(render()).values():
        for container in spec["containers"]:
            assert {"startupProbe", "livenessProbe"} <= container.keys(), container["name"]
        assert any("readinessProbe" in container for container in spec["containers"])


def test_every_probe_and_service_meets_a_port(render: Render):
    objects = render()
    for spec in pod_specs(objects).values():
        for container in spec["containers"]:
            named = {port["name"] for port in container["ports"]}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                if probe in container:
                    assert container[probe]["httpGet"]["port"] in named
    gateway = containers(pod_specs(objects)["forebay-gateway"])
    assert gateway["envoy"]["ports"] == [{"name": "http", "containerPort": names.GATEWAY_PORT}]
    assert gateway["picker"]["ports"] == [{"name": "signals", "containerPort": names.GATEWAY_SIGNALS_PORT}]
    operator = containers(pod_specs(objects)["forebay-operator"])
    assert operator["operator"]["ports"] == [{"name": "metrics", "containerPort": names.OPERATOR_PORT}]
    (port,) = the(objects, "Service", "forebay-gateway")["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (80, "http")


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_selectors_find_their_pods(render: Render, settings: tuple[str, ...]):
    objects = render(*settings)
    labels = {
        o["metadata"]["name"]: o["spec"]["template"]["metadata"]["labels"] for o in of_kind(objects, "Deployment")
    }
    for kind, where in (
        ("Deployment", "selector"),
        ("PodDisruptionBudget", "selector"),
        ("NetworkPolicy", "podSelector"),
    ):
        for o in of_kind(objects, kind):
            assert o["spec"][where]["matchLabels"].items() <= labels[o["metadata"]["name"]].items()
    service = the(objects, "Service", "forebay-gateway")
    assert service["spec"]["selector"].items() <= labels["forebay-gateway"].items()
    assert labels["forebay-gateway"][names.LABEL_COMPONENT] == names.COMPONENT_GATEWAY
    assert labels["forebay-operator"][names.LABEL_COMPONENT] == names.COMPONENT_OPERATOR


def test_the_operator_can_read_its_settings(render: Render):
    operator = containers(pod_specs(render("operator.leaseDurationMilliseconds=15000"))["forebay-operator"])["operator"]
    given = environment(operator)
    settings = Settings.from_environment(given)
    assert settings.lease_duration_ms == 15_000
    assert settings.vllm_image == "docker.io/forebay/replica:0.1.0"
    assert settings.lease_name == "forebay"
    known = {"FOREBAY_" + field.upper() for field in Settings.__dataclass_fields__}
    assert given.keys() <= known
    assert operator["args"] == ["run"]


def test_the_operator_may_write_only_where_a_volume_is(render: Render):
    operator = containers(pod_specs(render())["forebay-operator"])["operator"]
    writable = {mount["mountPath"] for mount in operator["volumeMounts"] if not mount.get("readOnly")}
    assert environment(operator)["FOREBAY_JOURNAL_DIR"] in writable
    assert "/tmp" in writable


def test_a_pod_monitor_reaches_operator_and_picker_and_nothing_else(render: Render):
    objects = render(*ALL)
    (monitor,) = of_kind(objects, "PodMonitor")
    asked = {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]}
    meant = [
        c["name"] for spec in pod_specs(objects).values() for c in spec["containers"] if c["ports"][0]["name"] in asked
    ]
    assert sorted(meant) == ["operator", "picker"]


def test_without_a_journal_there_is_no_volume_for_it(render: Render):
    operator = containers(pod_specs(render("operator.journal.enabled=false"))["forebay-operator"])["operator"]
    assert "FOREBAY_JOURNAL_DIR" not in environment(operator)
    assert {mount["name"] for mount in operator["volumeMounts"]} == {"tmp", "replica-token"}


def test_the_token_for_supervisors_is_for_nothing_else(render: Render):
    volumes = {v["name"]: v for v in pod_specs(render())["forebay-operator"]["volumes"]}
    (source,) = volumes["replica-token"]["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == names.REPLICA_TOKEN_AUDIENCE


def test_a_gateway_pod_lets_its_streams_end(render: Render):
    spec = pod_specs(render("gateway.drainSeconds=60"))["forebay-gateway"]
    assert spec["terminationGracePeriodSeconds"] == 90
    envoy = containers(spec)["envoy"]
    assert envoy["lifecycle"]["preStop"]["httpGet"]["path"] == "/v1/drained"
    assert environment(containers(spec)["picker"])["FOREBAY_GATEWAY_DRAIN_SECONDS"] == "60"
    assert environment(containers(spec)["picker"]) == environment(containers(spec)["render-envoy"])


def rules(objects: Objects) -> list[tuple[str, dict[str, Any]]]:
    return [(o["kind"], rule) for o in objects if o["kind"] in {"Role", "ClusterRole"} for rule in o["rules"]]


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_no_right_is_a_wildcard_or_reaches_a_secret(render: Render, settings: tuple[str, ...]):
    for _, rule in rules(render(*settings)):
        assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
        assert not {"secrets", "configmaps", "roles", "clusterroles", "pods/exec"} & set(rule["resources"])
        assert not {"escalate", "bind", "impersonate", "deletecollection"} & set(rule["verbs"])


WRITES = {"create", "update", "patch", "delete"}


def test_with_a_namespace_nothing_is_written_elsewhere(render: Render):
    for kind, rule in rules(render(*ONE_NAMESPACE)):
        if kind == "ClusterRole" and rule["resources"] != ["tokenreviews"]:
            assert not WRITES & set(rule["verbs"]), rule
    places = {o["metadata"]["namespace"] for o in of_kind(render(*ONE_NAMESPACE), "Role")}
    assert places == {"team-a", "forebay"}
    own = [o for o in of_kind(render(*ONE_NAMESPACE), "Role") if o["metadata"]["namespace"] == "forebay"]
    assert {r for o in own for rule in o["rules"] for r in rule["resources"] if WRITES & set(rule["verbs"])} == {
        "leases"
    }


def test_a_users_object_is_never_changed_but_for_status_and_scale(render: Render):
    for _, rule in rules(render()):
        if {"inferenceservices", "slopolicies", "gpupools"} & set(rule["resources"]):
            assert not WRITES & set(rule["verbs"])


@pytest.mark.parametrize(
    ("settings", "group"),
    [((), "system:serviceaccounts"), (ONE_NAMESPACE, "system:serviceaccounts:team-a")],
    ids=["everywhere", "one namespace"],
)
def test_replicas_may_ask_who_calls_them(render: Render, settings: tuple[str, ...], group: str):
    (subject,) = the(render(*settings), "ClusterRoleBinding", "forebay:forebay-replica")["subjects"]
    assert subject["name"] == group


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_every_binding_leads_from_an_account_to_a_role_that_exist(render: Render, settings: tuple[str, ...]):
    objects = render(*settings)
    accounts = {o["metadata"]["name"] for o in of_kind(objects, "ServiceAccount")}
    for kind, role in (("RoleBinding", "Role"), ("ClusterRoleBinding", "ClusterRole")):
        for binding in of_kind(objects, kind):
            assert the_role(objects, role, binding)
            assert all(s["kind"] == "Group" or s["name"] in accounts for s in binding["subjects"])
    used = {spec["serviceAccountName"] for spec in pod_specs(objects).values()}
    assert used == accounts


def the_role(objects: Objects, kind: str, binding: dict[str, Any]) -> bool:
    place = binding["metadata"].get("namespace")
    return any(
        o["metadata"]["name"] == binding["roleRef"]["name"] and o["metadata"].get("namespace") == place
        for o in of_kind(objects, kind)
    )


def test_two_releases_of_one_name_share_no_object(helm: Callable[..., str]):
    def made(namespace: str) -> set[tuple[str, str, str]]:
        text = helm("template", "forebay", str(CHART), "-n", namespace, "--set", "policies.install=false")
        found = [o for o in yaml.safe_load_all(text) if o]
        return {(o["kind"], o["metadata"].get("namespace", ""), o["metadata"]["name"]) for o in found}

    assert not made("one") & made("two")


def test_crds_are_installed_by_helm_but_not_part_of_the_release(render: Render):
    assert len(of_kind(render(), "CustomResourceDefinition")) == 4
    assert not list((CHART / "templates").rglob("*crd*"))


def test_the_policies_stay_on_uninstall(render: Render):
    policies = of_kind(render(), "SLOPolicy")
    assert len(policies) == 5
    for policy in policies:
        assert policy["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
        Draft202012Validator(object_schema(SLO_POLICY)).validate(policy)
    assert of_kind(render("policies.install=false"), "SLOPolicy") == []


def test_objects_are_in_the_releases_namespace_and_labelled(render: Render):
    for o in render(*ALL):
        if o["kind"] != "CustomResourceDefinition":
            assert o["metadata"].get("namespace", "forebay") == "forebay"
            assert o["metadata"]["labels"]["app.kubernetes.io/part-of"] == "forebay"


REFUSED = {
    "a number written as text": ("gateway.replicas=two", "at '/gateway/replicas': got string, want integer"),
    "a key that does not exist": ("gatewy.replicas=2", "additional properties 'gatewy' not allowed"),
    "such a key deeper down": ("operator.replica=2", "at '/operator': additional properties 'replica' not allowed"),
    "more operators than make sense": ("operator.replicas=4", "at '/operator/replicas': maximum: got 4, want 3"),
    "a word that is none of the choices": ("images.pullPolicy=Sometimes", "at '/images/pullPolicy'"),
}


@pytest.mark.parametrize(("setting", "says"), REFUSED.values(), ids=REFUSED)
def test_values_that_cannot_be_are_refused(render: Render, setting: str, says: str):
    with pytest.raises(CommandFailed) as caught:
        render(setting)
    assert says in caught.value.output


def test_the_values_that_come_with_it_fit_the_schema():
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    Draft7Validator.check_schema(schema)
    Draft7Validator(schema).validate(yaml.safe_load((CHART / "values.yaml").read_text()))


def test_the_notes_tell_the_next_step(helm: Callable[..., str]):
    said = helm("install", "forebay", str(CHART), "--namespace", "forebay", "--dry-run=client")
    assert "kubectl apply -f first.yaml" in said
    assert "http://forebay-gateway.forebay/v1/chat/completions" in said
    assert "leaves your InferenceServices" in said
