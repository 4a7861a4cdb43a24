"""Pod manifests: golden inputs and outputs, and the rules of the merge. FOREBAY_GOLDEN=1 writes the outputs anew."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from forebay.actuate.pods import disruption_budget, manifest, merge
from forebay.resolve.replica_plan import ReplicaPlan
from forebay.wire.replica_config import ReplicaConfig

GOLDEN = Path(__file__).parent / "golden"


def plan_of(document: dict[str, Any]) -> ReplicaPlan:
    uri = document.get("modelUri", "hf://meta-llama/Llama-3.1-8B-Instruct")
    return ReplicaPlan(
        image=document["image"],
        config=ReplicaConfig(engine="Emulated", model_uri=uri, served_names=("llama-3.1-8b",)),
        resource=document.get("resource"),
        gpus=document["gpus"],
        node_selector=document.get("nodeSelector", {}),
        credentials_secret=document.get("secret"),
        claim=document.get("claim"),
        termination_grace_seconds=630,
        template=document.get("template", {}),
        revision="aaaaabbbbb",
    )


@pytest.mark.parametrize("case", ["emulated", "template"])
def test_pod(case: str) -> None:
    plan = plan_of(yaml.safe_load((GOLDEN / f"{case}.input.yaml").read_text()))
    pod = manifest(plan, "chat/chat-8b", "uid-of-the-service", "chat-8b-aaaaa-0")
    output = GOLDEN / f"{case}.output.yaml"
    if os.environ.get("FOREBAY_GOLDEN"):
        output.write_text(yaml.safe_dump(pod, sort_keys=False))
    assert pod == yaml.safe_load(output.read_text())


def test_the_disruption_budget_guards_serving_replicas_only() -> None:
    budget = disruption_budget("chat", "chat-8b", "uid-of-the-service")
    assert budget["spec"] == {
        "maxUnavailable": 1,
        "selector": {"matchLabels": {"forebay.dev/inferenceservice": "chat-8b", "forebay.dev/state": "serving"}},
    }


MERGES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "maps merge deep": ({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}}, {"a": {"b": 1, "c": 3}}),
    "lists of named objects merge by name, and grow at the end": (
        {"l": [{"name": "x", "v": 1}, {"name": "y", "v": 1}]},
        {"l": [{"name": "z"}, {"name": "y", "v": 2}]},
        {"l": [{"name": "x", "v": 1}, {"name": "y", "v": 2}, {"name": "z"}]},
    ),
    "other lists replace": ({"l": ["a", "b"]}, {"l": ["c"]}, {"l": ["c"]}),
    "a list without names replaces one with": ({"l": [{"name": "x"}]}, {"l": [{"key": "k"}]}, {"l": [{"key": "k"}]}),
    "mounts are known by their path": (
        {"volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]},
        {"volumeMounts": [{"name": "tmp", "mountPath": "/var/tmp"}]},
        {"volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, {"name": "tmp", "mountPath": "/var/tmp"}]},
    ),
    "a volume is replaced whole": (
        {"volumes": [{"name": "tmp", "emptyDir": {}}]},
        {"volumes": [{"name": "tmp", "hostPath": {"path": "/scratch"}}]},
        {"volumes": [{"name": "tmp", "hostPath": {"path": "/scratch"}}]},
    ),
    "another type replaces": ({"a": {"b": 1}}, {"a": [1]}, {"a": [1]}),
}


@pytest.mark.parametrize("sentence", MERGES)
def test_merge(sentence: str) -> None:
    base, over, expected = MERGES[sentence]
    assert merge(base, over) == expected
