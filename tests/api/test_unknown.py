"""What nothing reads is said, with the name that was meant; what is free to hold anything is left alone."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.api.inference_service import InferenceServiceSpec
from forebay.api.slo_policy import SLOPolicySpec
from forebay.api.unknown import unknown_fields


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"policyRef": {"name": "x"}}, ["spec.policyRef (did you mean sloPolicyRef?)"]),
        ({"model": {"url": "hf://a/b"}}, ["spec.model.url (did you mean uri?)"]),
        ({"accelerators": [{"name": "a"}, {"gpuPool": "x"}]}, ["spec.accelerators.gpuPool (did you mean gpuPoolRef?)"]),
        ({"scaling": {"zzz": 1}}, ["spec.scaling.zzz"]),
        ({"scaling": {"minReplicas": 1}, "template": {"spec": {"anything": 1}}}, []),
        ({"scaling": "not a mapping"}, []),
        ("not a mapping", []),
        (None, []),
    ],
)
def test_fields_of_a_service(document: Any, said: list[str]) -> None:
    assert list(unknown_fields(document, InferenceServiceSpec, "spec")) == said


def test_an_optional_part_is_looked_into() -> None:
    document = {"ttft": {"targetMs": 500}, "burst": {"multiplyer": 3}}
    assert list(unknown_fields(document, SLOPolicySpec)) == [
        "ttft.targetMs (did you mean targetMilliseconds?)",
        "burst.multiplyer (did you mean multiplier?)",
    ]
