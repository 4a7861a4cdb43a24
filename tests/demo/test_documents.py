"""The demo's objects are valid for the API, and the scorecard judges by the very policies that are applied."""

from e2e.demo import documents
from e2e.demo.plan import BATCH, CHAT, CODE, COMPRESSED, FULL, INTERACTIVE
from forebay.api.inference_service import InferenceService, ServiceClass
from forebay.api.slo_policy import SLOPolicy
from forebay.core.goodness import Targets


def test_the_services_are_those_of_the_plan_and_name_policies_that_exist() -> None:
    applied = documents.services(FULL, seed=7, resource="nvidia.com/gpu")
    valid = [InferenceService(**document) for document in applied if document["kind"] == "InferenceService"]
    services = {f"{one.metadata.namespace}/{one.metadata.name}": one for one in valid}
    policies = {d["metadata"]["name"]: SLOPolicy(**d) for d in documents.policies(warm=True)}
    assert set(services) == set(FULL.services) == {CHAT, CODE, BATCH}
    assert {s.spec.slo_policy_ref.name for s in services.values() if s.spec.slo_policy_ref} == set(policies)
    assert {key for key, s in services.items() if s.spec.service_class is ServiceClass.INTERACTIVE} == set(INTERACTIVE)
    assert {s.spec.engine.emulation.seed for s in services.values()} == {7}
    models = {part.service: part.model for part in (*FULL.streams, *FULL.jobs)}
    assert {key: s.spec.model.served_name for key, s in services.items()} == models


def test_a_compressed_run_only_changes_times() -> None:
    full = documents.services(FULL, seed=1, resource="nvidia.com/gpu")
    short = documents.services(COMPRESSED, seed=1, resource="nvidia.com/gpu")
    starts = [
        d["spec"]["engine"]["emulated"].pop("coldStartSeconds") for d in short + full if d["kind"] == "InferenceService"
    ]
    assert starts == [20] * 3 + [90] * 3
    for document in (*full, *short):
        document.get("spec", {}).get("scaling", {}).clear()
    assert full == short


def test_without_the_warm_pool_no_policy_keeps_an_idle_gpu() -> None:
    for document in documents.policies(warm=False):
        policy = SLOPolicy(**document)
        assert (policy.spec.max_idle_gpus, policy.spec.burst.multiplier) == (0, 1)


def test_targets_are_those_of_the_policies() -> None:
    assert documents.targets()[CHAT] == Targets(500, 150, 50, 200)
    assert set(documents.targets()) == {CHAT, CODE, BATCH}
