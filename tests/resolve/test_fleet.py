"""The fleet as users wrote it becomes columns; a mistake blocks its own service and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.fleet import Mode
from forebay.core.reasons import Reason
from forebay.core.units import UNKNOWN
from forebay.resolve.defaults import ReplicaDefaults
from forebay.resolve.fleet import Fleet, Resolver
from forebay.wire.names import ANNOTATION_PAUSED
from tests.api.cases import POLICY, POOL, SERVICE, merged

if TYPE_CHECKING:
    from forebay.resolve.service import Service

DEFAULTS = ReplicaDefaults("vllm:1", "emulated:1", "system:serviceaccount:forebay:forebay")


def service(name: str = "chat-8b", *, created: str = "2026-01-01T00:00:00Z", **spec: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "chat", "uid": f"uid-{name}", "generation": 1, "creationTimestamp": created}
    return merged(SERVICE, {"metadata": meta, "spec": spec})


def resolve(
    *services: dict[str, Any],
    policies: tuple[dict[str, Any], ...] = (),
    pools: tuple[dict[str, Any], ...] = (),
    namespaces: dict[str, dict[str, str]] | None = None,
) -> Fleet:
    return Resolver(DEFAULTS).resolve(services, policies, pools, namespaces or {})


def only(fleet: Fleet) -> Service:
    (one,) = fleet.services
    return one


def problem(fleet: Fleet) -> tuple[Reason, str]:
    (found,) = only(fleet).problems
    return found.reason, found.message


def test_the_shortest_service_gets_the_defaults_of_its_class():
    fleet = resolve(service())
    row = fleet.spec
    assert only(fleet).problems == ()
    assert row.services == ("chat/chat-8b",)
    assert row.pools == ("default/nvidia.com/gpu",)
    assert (row.mode[0], row.batch_class[0], row.blocked[0]) == (Mode.AUTO, False, False)
    assert (row.replicas_min[0], row.replicas_max[0], row.replicas_manual[0]) == (1, 10, 1)
    assert (row.ttft_target_ms[0], row.ttft_per_1k_prompt_tokens_ms[0]) == (500, 150)
    assert (row.itl_mean_ms[0], row.itl_worst_second_ms[0], row.attainment_permille[0]) == (50, 200, 990)
    assert (row.burst_multiplier_milli[0], row.burst_within_ms[0], row.headroom_milli[0]) == (3000, 30_000, 150)
    assert (row.warm_gpus_max[0], row.gpus_per_replica[0], row.gpus_max[0]) == (8, 1, UNKNOWN)
    assert (row.idle_ms[0], row.scale_down_delay_ms[0]) == (300_000, 60_000)
    assert row.step_c0_ps[0] > 0
    assert row.kv_tokens_prior[0] > 8192
    assert row.lead_cold_ms[0] == 110_000


def test_rows_are_sorted_and_every_column_has_one_entry_a_row():
    fleet = resolve(service("b"), service("a"), service("c"), pools=(POOL,))
    assert fleet.spec.services == ("chat/a", "chat/b", "chat/c")
    assert fleet.spec.pools == ("default/nvidia.com/gpu", "shared")
    assert [s.key for s in fleet.services] == list(fleet.spec.services)
    for name in FLEET_COLUMNS:
        assert len(getattr(fleet.spec, name)) == (2 if name == "gpus_max" else 3), name


FLEET_COLUMNS = [n for n in resolve().spec.__dataclass_fields__ if n not in {"services", "pools"}]


def test_an_empty_fleet_has_empty_columns():
    spec = resolve().spec
    assert all(getattr(spec, name).shape == (0,) for name in FLEET_COLUMNS)
    assert spec.blocked.dtype == np.bool_
    assert spec.mode.dtype == np.int64


def test_a_policy_is_translated_with_its_defaults():
    policy = merged(POLICY, {"spec": {"itl": {"meanMilliseconds": 30}, "maxIdleGPUs": 2, "priority": 7}})
    spec = resolve(service(sloPolicyRef={"name": "chat"}), policies=(policy,)).spec
    assert (spec.itl_mean_ms[0], spec.itl_worst_second_ms[0]) == (30, 120)
    assert (spec.warm_gpus_max[0], spec.priority[0], spec.burst_multiplier_milli[0]) == (2, 7, 2000)


def test_a_missing_policy_blocks_and_says_what_to_do():
    fleet = resolve(service(sloPolicyRef={"name": "gone"}), service("other"))
    assert list(fleet.spec.blocked) == [True, False]
    (found,) = fleet.services[0].problems
    assert found.reason is Reason.POLICY_NOT_FOUND
    assert "gone" in found.message
    assert "kubectl get slopolicies" in found.message
    assert fleet.services[0].plan is None


NAMESPACES = {"chat": {"team": "a"}}
SELECTORS: dict[str, tuple[dict[str, Any], bool]] = {
    "the namespace's own label": ({"matchLabels": {"team": "a"}}, True),
    "another value": ({"matchLabels": {"team": "b"}}, False),
    "the namespace by its name, which every namespace has as a label": (
        {"matchLabels": {"kubernetes.io/metadata.name": "chat"}},
        True,
    ),
    "one of several values": ({"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "b"]}]}, True),
    "none of several values": ({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}, False),
    "a label that exists": ({"matchExpressions": [{"key": "team", "operator": "Exists"}]}, True),
    "a label that does not": ({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}, False),
    "nothing at all": ({}, True),
}


@pytest.mark.parametrize(("selector", "allowed"), SELECTORS.values(), ids=SELECTORS)
def test_a_policy_is_for_the_namespaces_that_it_selects(selector: dict[str, Any], allowed: bool):
    policy = merged(POLICY, {"spec": {"allowedNamespaces": selector}})
    fleet = resolve(service(sloPolicyRef={"name": "chat"}), policies=(policy,), namespaces=NAMESPACES)
    if allowed:
        assert only(fleet).problems == ()
    else:
        reason, message = problem(fleet)
        assert reason is Reason.POLICY_NOT_ALLOWED
        assert "chat in namespace chat" in message


def test_an_unsound_policy_is_told_to_those_who_use_it():
    policy = merged(POLICY, {"spec": {"itl": {"worstSecondMilliseconds": 1}}})
    reason, message = problem(resolve(service(sloPolicyRef={"name": "chat"}), policies=(policy,)))
    assert reason is Reason.INVALID_SPEC
    assert "SLOPolicy chat: spec.itl.worstSecondMilliseconds: the worst second (1 ms)" in message


GPU = {"name": "l40s", "type": "L40S", "resource": "nvidia.com/gpu", "gpuPoolRef": {"name": "shared"}}


def test_a_pool_bounds_and_places_its_services():
    pool = merged(POOL, {"spec": {"maxGPUs": 4, "nodeSelector": {"gpu": "l40s"}}})
    fleet = resolve(service(accelerators=[GPU]), pools=(pool,))
    assert fleet.spec.pools == ("shared",)
    assert (fleet.spec.gpus_max[0], fleet.spec.pool[0]) == (4, 0)
    plan = only(fleet).plan
    assert plan is not None
    assert plan.node_selector == {"gpu": "l40s"}
    assert fleet.pools[0].resource == "nvidia.com/gpu"


POOL_PROBLEMS: dict[str, tuple[tuple[dict[str, Any], ...], Reason, str]] = {
    "a pool that does not exist": ((), Reason.POOL_NOT_FOUND, "remove gpuPoolRef"),
    "a pool of another resource": (
        (merged(POOL, {"spec": {"resource": "amd.com/gpu"}}),),
        Reason.INVALID_SPEC,
        "hands out amd.com/gpu, not nvidia.com/gpu",
    ),
    "an unsound pool": (
        (merged(POOL, {"spec": {"maxGPUs": -1}}),),
        Reason.INVALID_SPEC,
        "GPUPool shared: spec.maxGPUs",
    ),
}


@pytest.mark.parametrize(("pools", "reason", "says"), POOL_PROBLEMS.values(), ids=POOL_PROBLEMS)
def test_a_pool_that_cannot_be_used_blocks(pools: tuple[dict[str, Any], ...], reason: Reason, says: str):
    fleet = resolve(service(accelerators=[GPU]), pools=pools)
    found, message = problem(fleet)
    assert found is reason
    assert says in message
    assert fleet.spec.blocked[0]


def test_a_service_on_the_cpu_holds_no_device():
    cpu = service(model={"uri": "file:///models/tiny"}, accelerators=[{"name": "cpu", "type": "CPU"}])
    fleet = resolve(cpu)
    assert fleet.spec.gpus_per_replica[0] == 0
    assert (fleet.pools[0].name, fleet.pools[0].resource) == ("default/cpu", "")
    plan = only(fleet).plan
    assert plan is not None
    assert (plan.resource, plan.gpus) == (None, 0)
    assert fleet.spec.step_c0_ps[0] == fleet.spec.kv_tokens_prior[0] == UNKNOWN


def test_the_older_service_keeps_a_served_name():
    old = service("old", created="2026-01-01T00:00:00Z", model={"servedName": "llama"})
    new = service("new", created="2026-02-01T00:00:00Z", model={"servedName": "llama"})
    fleet = resolve(new, old)
    assert list(fleet.spec.blocked) == [True, False]
    assert fleet.services[1].served_names == ("llama",)
    (found,) = fleet.services[0].problems
    assert found.reason is Reason.NAME_CONFLICT
    assert '"llama" is kept by chat/old' in found.message


def test_a_taken_alias_is_left_out_and_does_not_block():
    old = service("old", created="2026-01-01T00:00:00Z", model={"servedName": "llama"})
    new = service("new", created="2026-02-01T00:00:00Z", model={"aliases": ["llama", "mine"]})
    fleet = resolve(new, old)
    assert list(fleet.spec.blocked) == [False, False]
    assert fleet.services[0].served_names == ("new", "mine")
    assert [p.reason for p in fleet.services[0].problems] == [Reason.NAME_CONFLICT]


def test_a_service_that_is_being_deleted_is_gone_and_gives_up_its_name():
    old = merged(
        service("old", model={"servedName": "llama"}), {"metadata": {"deletionTimestamp": "2026-03-01T00:00:00Z"}}
    )
    new = service("new", created="2026-02-01T00:00:00Z", model={"servedName": "llama"})
    fleet = resolve(old, new)
    assert fleet.spec.services == ("chat/new",)
    assert not fleet.spec.blocked[0]


def test_a_model_that_cannot_fit_says_how_many_cards_would_do():
    big = service(
        model={"uri": "hf://meta-llama/Llama-3.1-70B-Instruct"},
        accelerators=[{"name": "h100", "type": "H100", "resource": "nvidia.com/gpu"}],
    )
    fleet = resolve(big)
    reason, message = problem(fleet)
    assert reason is Reason.MODEL_DOES_NOT_FIT
    # 70.6 G parameters of 2 bytes; 80 GiB times 0.9.
    assert "weights 141.1" in message
    assert "has 77.3 GB" in message
    assert "it fits on 2 cards (parallelism.tensor 2)" in message
    assert fleet.spec.blocked[0]


def test_a_longer_request_needs_more_cards():
    big = service(
        model={"uri": "hf://meta-llama/Llama-3.1-70B-Instruct"},
        accelerators=[{"name": "h100", "type": "H100", "resource": "nvidia.com/gpu"}],
        parallelism={"tensor": 2},
        engine={"maxModelLen": 128_000},
    )
    assert "it fits on 4 cards" in problem(resolve(big))[1]


def test_a_model_that_no_group_of_cards_holds():
    huge = service(
        model={"uri": "hf://meta-llama/Llama-3.1-405B-Instruct"},
        accelerators=[{"name": "l40s", "type": "L40S", "resource": "nvidia.com/gpu"}],
        engine={"maxModelLen": 10_000_000},
    )
    assert "it does not fit on 16 cards either" in problem(resolve(huge))[1]


NO_PROFILE: dict[str, tuple[dict[str, Any], str]] = {
    "a model that no table knows": (
        {"model": {"uri": "hf://me/my-own-7b"}},
        "no profile of the model hf://me/my-own-7b",
    ),
    "an accelerator that no table knows": (
        {"accelerators": [{"name": "x", "type": "X9", "resource": "nvidia.com/gpu"}]},
        "no profile of the accelerator X9",
    ),
    "a dtype that no table knows": ({"engine": {"type": "Emulated", "dtype": "Float32"}}, "write Auto"),
}


@pytest.mark.parametrize(("spec", "says"), NO_PROFILE.values(), ids=NO_PROFILE)
def test_an_emulated_engine_needs_a_profile(spec: dict[str, Any], says: str):
    reason, message = problem(resolve(service(**({"engine": {"type": "Emulated"}} | spec))))
    assert reason is Reason.INVALID_SPEC
    assert says in message


def test_a_real_engine_of_unknown_speed_runs():
    fleet = resolve(service(model={"uri": "hf://me/my-own-7b"}))
    assert only(fleet).problems == ()
    assert fleet.spec.step_c0_ps[0] == UNKNOWN


MODES: dict[str, tuple[dict[str, Any], Mode]] = {
    "Auto": ({"spec": {"scaling": {"mode": "Auto"}}}, Mode.AUTO),
    "Manual": ({"spec": {"scaling": {"mode": "Manual"}}}, Mode.MANUAL),
    "Paused": ({"spec": {"scaling": {"mode": "Paused"}}}, Mode.PAUSED),
    "paused by annotation": ({"metadata": {"annotations": {"forebay.dev/paused": "true"}}}, Mode.PAUSED),
    "an annotation that says false": ({"metadata": {"annotations": {"forebay.dev/paused": "false"}}}, Mode.AUTO),
}


@pytest.mark.parametrize(("change", "mode"), MODES.values(), ids=MODES)
def test_who_drives(change: dict[str, Any], mode: Mode):
    assert resolve(merged(service(), change)).spec.mode[0] == mode


def test_a_batch_service_at_zero():
    spec = resolve(service(**{"class": "Batch", "replicas": 0, "scaling": {"minReplicas": 0}})).spec
    assert (spec.batch_class[0], spec.replicas_min[0], spec.replicas_manual[0]) == (True, 0, 0)
    assert (spec.warm_gpus_max[0], spec.ttft_target_ms[0]) == (0, 60_000)


def test_an_emulated_cold_start_is_the_lead_time():
    engine = {"type": "Emulated", "emulated": {"coldStartSeconds": 20}}
    assert resolve(service(engine=engine)).spec.lead_cold_ms[0] == 23_000


def test_an_unreadable_service_keeps_what_it_has():
    broken = service(scaling={"minReplicas": 0})
    fleet = resolve(broken, service("other"))
    assert list(fleet.spec.blocked) == [True, False]
    assert fleet.spec.mode[0] == Mode.PAUSED
    assert fleet.services[0].plan is None
    assert "spec.scaling.minReplicas" in fleet.services[0].problems[0].message


def test_a_new_generation_is_read_anew_and_a_new_status_is_not():
    resolver = Resolver(DEFAULTS)
    first = service()
    resolver.resolve([first], [], [], {})
    parsed = dict(resolver._parsed)
    resolver.resolve([merged(first, {"status": {"replicas": 3}})], [], [], {})
    assert all(resolver._parsed[key] is value for key, value in parsed.items())
    changed = merged(first, {"metadata": {"generation": 2}, "spec": {"scaling": {"maxReplicas": 3}}})
    assert resolver.resolve([changed], [], [], {}).spec.replicas_max[0] == 3
    assert len(resolver._parsed) == 1


def test_a_service_is_resolved_anew_when_something_that_it_is_made_of_changed():
    resolver = Resolver(DEFAULTS)
    mine = merged(service("mine"), {"spec": {"model": {"servedName": "chat"}, "sloPolicyRef": {"name": "p"}}})
    (first,) = resolver.resolve([mine], [], [], {}).services
    (again,) = resolver.resolve([merged(mine, {"status": {"replicas": 1}})], [], [], {}).services
    assert again is first
    older = service("older", created="2020-01-01T00:00:00Z")
    older["spec"]["model"]["servedName"] = "chat"
    lost = resolver.resolve([mine, older], [], [], {}).services[0]
    assert lost.key == "chat/mine"
    assert lost.served_names == ()
    paused = merged(mine, {"metadata": {"annotations": {ANNOTATION_PAUSED: "true"}}})
    assert resolver.resolve([paused], [], [], {}).services[0].mode is Mode.PAUSED
    assert Reason.POLICY_NOT_FOUND in [problem.reason for problem in first.problems]
    with_policy = resolver.resolve([mine], [merged(POLICY, {"metadata": {"name": "p"}})], [], {}).services[0]
    assert with_policy.problems == ()


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
PARTS = [
    "model",
    "engine",
    "accelerators",
    "parallelism",
    "class",
    "replicas",
    "scaling",
    "sloPolicyRef",
    "drain",
    "template",
]


@given(spec=st.dictionaries(st.sampled_from(PARTS), json, max_size=3) | json)
def test_garbage_blocks_its_own_service_only(spec: Any):
    good, bad = service("good"), service("zz-bad", created="2026-06-01T00:00:00Z")
    bad["spec"] = (bad["spec"] | spec) if isinstance(spec, dict) else spec
    fleet = resolve(good, bad)
    assert fleet.services[0].problems == ()
    assert fleet.services[0].plan is not None
    assert fleet.services[1].blocked or fleet.services[1].plan is not None
