"""What a replica is made of, and which changes make it another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from forebay.wire.replica_config import ReplicaConfig
from tests.resolve.test_fleet import only, resolve, service

if TYPE_CHECKING:
    from forebay.resolve.replica_plan import ReplicaPlan


def plan(**spec: Any) -> ReplicaPlan:
    found = only(resolve(service(**spec)))
    assert found.plan is not None, found.problems
    return found.plan


def test_a_real_engine():
    made = plan(
        model={
            "uri": "hf://meta-llama/Llama-3.1-8B-Instruct@v2",
            "servedName": "llama",
            "aliases": ["l8"],
            "credentialsSecretRef": {"name": "hf-token"},
        },
        engine={
            "kvCacheDtype": "FP8",
            "dtype": "BFloat16",
            "extraArgs": ["--enforce-eager"],
            "prefixCaching": "Disabled",
        },
        parallelism={"tensor": 2},
        drain={"deadlineSeconds": 60},
    )
    assert (made.image, made.resource, made.gpus) == ("vllm:1", "nvidia.com/gpu", 2)
    assert (made.credentials_secret, made.claim, made.termination_grace_seconds) == ("hf-token", None, 90)
    config = made.config
    assert (config.engine, config.model_uri) == ("VLLM", "hf://meta-llama/Llama-3.1-8B-Instruct@v2")
    assert config.served_names == ("llama", "l8")
    assert (config.dtype, config.kv_cache_dtype, config.prefix_caching) == ("bfloat16", "fp8", False)
    assert (config.tensor_parallel, config.extra_args, config.drain_deadline_ms) == (2, ("--enforce-eager",), 60_000)
    assert config.operator_username == "system:serviceaccount:forebay:forebay"
    assert config.emulation is None
    assert ReplicaConfig.from_json(config.to_json()) == config


def test_an_emulated_engine_imitates_the_prior():
    fleet = resolve(
        service(engine={"type": "Emulated", "maxNumSeqs": 8, "emulated": {"seed": 7, "coldStartSeconds": 20}})
    )
    made = only(fleet).plan
    assert made is not None
    assert made.image == "emulated:1"
    emulation = made.config.emulation
    assert emulation is not None
    assert (emulation.seed, emulation.cold_start_ms, emulation.model_error_permille) == (7, 20_000, 250)
    assert emulation.step_c0_ps == fleet.spec.step_c0_ps[0]
    assert emulation.kv_tokens_total == fleet.spec.kv_tokens_prior[0]


def test_a_volume_is_mounted():
    assert plan(model={"uri": "pvc://models/llama/8b"}).claim == "models"


def test_an_image_of_ones_own():
    assert plan(engine={"image": "mine:2"}).image == "mine:2"


def test_the_template_goes_through_as_written():
    template = {"metadata": {"labels": {"team": "a"}}, "spec": {"tolerations": [{"operator": "Exists"}], "x": {"y": 1}}}
    assert plan(template=template).template == template


OTHER_REPLICA: dict[str, dict[str, Any]] = {
    "another image": {"engine": {"image": "mine:2"}},
    "another batch size": {"engine": {"maxNumSeqs": 8}},
    "another revision of the model": {"model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct@v2"}},
    "another served name": {"model": {"servedName": "llama"}},
    "other credentials": {"model": {"credentialsSecretRef": {"name": "hf-token"}}},
    "another template": {"template": {"spec": {"priorityClassName": "high"}}},
}
SAME_REPLICA: dict[str, dict[str, Any]] = {
    "another drain deadline": {"drain": {"deadlineSeconds": 60}},
    "another start deadline": {"engine": {"startDeadlineSeconds": 60}},
    "other bounds": {"scaling": {"maxReplicas": 3}},
    "another number by hand": {"replicas": 4},
    "another class": {"class": "Batch"},
}


@pytest.mark.parametrize("spec", OTHER_REPLICA.values(), ids=OTHER_REPLICA)
def test_a_change_that_needs_new_replicas(spec: dict[str, Any]):
    assert plan(**spec).revision != plan().revision


@pytest.mark.parametrize("spec", SAME_REPLICA.values(), ids=SAME_REPLICA)
def test_a_change_that_leaves_replicas_alone(spec: dict[str, Any]):
    assert plan(**spec).revision == plan().revision


def test_a_revision_is_the_same_in_every_process():
    # Of the defaults above; a change of this value replaces every replica of every user on upgrade.
    assert plan().revision == plan().revision
    assert len(plan().revision) == 10
