"""Objects that a rule refuses, keyed by an English sentence; the unit test asks the Python twin, e2e the API server."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

SERVICE: dict[str, Any] = {
    "apiVersion": "forebay.dev/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": "chat-8b", "namespace": "default"},
    "spec": {
        "model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct"},
        "accelerators": [{"name": "l40s", "type": "L40S", "resource": "nvidia.com/gpu"}],
    },
}
POLICY: dict[str, Any] = {
    "apiVersion": "forebay.dev/v1alpha1",
    "kind": "SLOPolicy",
    "metadata": {"name": "chat"},
    "spec": {"ttft": {"targetMilliseconds": 500}, "itl": {"meanMilliseconds": 50}},
}
POOL: dict[str, Any] = {
    "apiVersion": "forebay.dev/v1alpha1",
    "kind": "GPUPool",
    "metadata": {"name": "shared"},
    "spec": {"resource": "nvidia.com/gpu"},
}
EMULATED = {"engine": {"type": "Emulated"}}


@dataclass(frozen=True)
class Case:
    base: dict[str, Any]
    change: dict[str, Any]  # what differs from the base, merged deep; a None removes
    field: str
    says: str  # a part of the message that tells what to write instead
    before: dict[str, Any] | None = None  # for rules on updates: what differed before

    def object(self) -> dict[str, Any]:
        return merged(self.base, self.change)

    def old(self) -> dict[str, Any] | None:
        return None if self.before is None else merged(self.base, self.before)


def merged(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    result = deepcopy(base)
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merged(result[key], value)
        else:
            result[key] = deepcopy(value)
    return result


def _spec(**fields: Any) -> dict[str, Any]:
    return {"spec": {("class" if k == "class_" else k): v for k, v in fields.items()}}


def _gpu(**fields: Any) -> list[dict[str, Any]]:
    return [{"name": "l40s", "type": "L40S", **fields}]


REFUSED: dict[str, Case] = {
    "an Interactive service may not scale to zero": Case(
        SERVICE,
        _spec(scaling={"minReplicas": 0}),
        "spec.scaling.minReplicas",
        "write minReplicas 1 or more, or class: Batch",
    ),
    "nor may it when it says its class": Case(
        SERVICE,
        _spec(class_="Interactive", scaling={"minReplicas": 0}),
        "spec.scaling.minReplicas",
        "write minReplicas 1 or more",
    ),
    "an Interactive service may not be set to zero by hand": Case(
        SERVICE,
        _spec(replicas=0, scaling={"mode": "Manual"}),
        "spec.replicas",
        "write replicas 1 or more, or class: Batch",
    ),
    "minReplicas above maxReplicas": Case(
        SERVICE,
        _spec(scaling={"minReplicas": 5, "maxReplicas": 3}),
        "spec.scaling.minReplicas",
        "minReplicas 5 exceeds maxReplicas 3: lower the one or raise the other",
    ),
    "minReplicas above the default of maxReplicas": Case(
        SERVICE, _spec(scaling={"minReplicas": 11}), "spec.scaling.minReplicas", "minReplicas 11 exceeds maxReplicas 10"
    ),
    "a model without a scheme": Case(
        SERVICE, _spec(model={"uri": "meta-llama/Llama-3.1-8B"}), "spec.model.uri", "write hf://ORGANISATION/MODEL"
    ),
    "a model with a blank": Case(SERVICE, _spec(model={"uri": "hf://meta llama/x"}), "spec.model.uri", "write hf://"),
    "a model that ends in a line break": Case(
        SERVICE, _spec(model={"uri": "hf://a/b\n"}), "spec.model.uri", "write hf://"
    ),
    "a served name with a blank": Case(
        SERVICE, _spec(model={"servedName": "llama 8b"}), "spec.model", "begins with a letter or digit"
    ),
    "an alias that begins with a hyphen": Case(
        SERVICE, _spec(model={"aliases": ["fine", "-x"]}), "spec.model", "begins with a letter or digit"
    ),
    "the served name among the aliases": Case(
        SERVICE, _spec(model={"servedName": "llama", "aliases": ["llama"]}), "spec.model.aliases", "remove it there"
    ),
    "fewer step tokens than sequences": Case(
        SERVICE,
        _spec(engine={"maxNumSeqs": 512, "maxNumBatchedTokens": 256}),
        "spec.engine.maxNumBatchedTokens",
        "a step of 256 tokens cannot give each of 512 sequences its token",
    ),
    "emulated settings for a real engine": Case(
        SERVICE, _spec(engine={"emulated": {}}), "spec.engine.emulated", "or write engine.type: Emulated"
    ),
    "an argument that Forebay sets itself": Case(
        SERVICE, _spec(engine={"extraArgs": ["--port=1"]}), "spec.engine.extraArgs", "use the fields of spec.engine"
    ),
    "such an argument in two list entries": Case(
        SERVICE, _spec(engine={"extraArgs": ["--max-model-len", "1"]}), "spec.engine.extraArgs", "use the fields"
    ),
    "a resource without a domain": Case(
        SERVICE, _spec(accelerators=_gpu(resource="gpu")), "spec.accelerators[0].resource", "for example nvidia.com/gpu"
    ),
    "a pool without a resource": Case(
        SERVICE,
        _spec(accelerators=_gpu(gpuPoolRef={"name": "p"})),
        "spec.accelerators[0].gpuPoolRef",
        "write resource too",
    ),
    "tensor parallelism without a device": Case(
        SERVICE,
        _spec(accelerators=_gpu(), parallelism={"tensor": 2}),
        "spec.parallelism.tensor",
        "parallelism.tensor 2 splits a replica over devices",
    ),
    "a label that Forebay sets": Case(
        SERVICE,
        _spec(template={"metadata": {"labels": {"forebay.dev/state": "serving"}}}),
        "spec.template.metadata.labels",
        "choose another prefix",
    ),
    "a name that is too long for a label": Case(
        SERVICE, {"metadata": {"name": "a" * 51}}, "", "at most 50 small letters, digits and hyphens"
    ),
    "a name with a dot": Case(SERVICE, {"metadata": {"name": "llama-3.1"}}, "", "at most 50 small letters"),
    "another model in the same service": Case(
        SERVICE,
        _spec(model={"uri": "hf://meta-llama/Llama-3.1-70B-Instruct"}),
        "spec.model.uri",
        "only the revision after @ can change",
        before={},
    ),
    "another engine in the same service": Case(
        SERVICE, _spec(engine={"type": "Emulated"}), "spec.engine.type", "make a new InferenceService", before={}
    ),
    "another tensor parallelism in the same service": Case(
        SERVICE, _spec(parallelism={"tensor": 4}), "spec.parallelism", "make a new InferenceService", before={}
    ),
    "a worst second that is better than the mean": Case(
        POLICY,
        _spec(itl={"worstSecondMilliseconds": 40}),
        "spec.itl.worstSecondMilliseconds",
        "the worst second (40 ms) cannot be better than the mean (50 ms)",
    ),
    "a selector In without values": Case(
        POLICY,
        _spec(allowedNamespaces={"matchExpressions": [{"key": "team", "operator": "In"}]}),
        "spec.allowedNamespaces.matchExpressions[0].values",
        "add or remove values",
    ),
    "a selector Exists with values": Case(
        POLICY,
        _spec(allowedNamespaces={"matchExpressions": [{"key": "team", "operator": "Exists", "values": ["a"]}]}),
        "spec.allowedNamespaces.matchExpressions[0].values",
        "add or remove values",
    ),
    "a pool of a resource without a domain": Case(
        POOL, _spec(resource="gpu"), "spec.resource", "for example nvidia.com/gpu"
    ),
}

# Out of bounds or of the wrong type: refused by the schema itself, in the API server's own words.
OUT_OF_BOUNDS: dict[str, tuple[dict[str, Any], str]] = {
    "no accelerator": (merged(SERVICE, _spec(accelerators=[])), "spec.accelerators"),
    "two accelerators": (
        merged(SERVICE, _spec(accelerators=[*_gpu(), {"name": "h100", "type": "H100"}])),
        "spec.accelerators",
    ),
    "no model": (merged(SERVICE, {"spec": {"model": None}}), "spec.model"),
    "a batch of nothing": (merged(SERVICE, _spec(engine={"maxNumSeqs": 0})), "spec.engine.maxNumSeqs"),
    "more than all of the memory": (
        merged(SERVICE, _spec(engine={"gpuMemoryUtilizationPermille": 1001})),
        "spec.engine.gpuMemoryUtilizationPermille",
    ),
    "an engine that does not exist": (merged(SERVICE, _spec(engine={"type": "vllm"})), "spec.engine.type"),
    "a mode that does not exist": (merged(SERVICE, _spec(scaling={"mode": "Advise"})), "spec.scaling.mode"),
    "a number written as text": (merged(SERVICE, _spec(replicas="3")), "spec.replicas"),
    "a fraction": (merged(SERVICE, _spec(replicas=1.5)), "spec.replicas"),
    "an attainment of all requests": (merged(POLICY, _spec(attainmentPermille=1000)), "spec.attainmentPermille"),
    "a negative TTFT": (merged(POLICY, _spec(ttft={"targetMilliseconds": -1})), "spec.ttft.targetMilliseconds"),
    "a policy without an ITL": (merged(POLICY, {"spec": {"itl": None}}), "spec.itl"),
    "a burst of less than now": (merged(POLICY, _spec(burst={"multiplier": 0})), "spec.burst.multiplier"),
    "a pool of fewer than no GPUs": (merged(POOL, _spec(maxGPUs=-1)), "spec.maxGPUs"),
}

ACCEPTED: dict[str, dict[str, Any]] = {
    "the shortest service": SERVICE,
    "a Batch service at zero": merged(SERVICE, _spec(class_="Batch", replicas=0, scaling={"minReplicas": 0})),
    "an emulated engine with settings": merged(SERVICE, _spec(engine={"type": "Emulated", "emulated": {"seed": 7}})),
    "an emulated engine without settings": merged(SERVICE, _spec(**EMULATED)),
    "a service on the CPU": merged(
        SERVICE, _spec(accelerators=[{"name": "cpu", "type": "CPU"}], model={"uri": "file:///models/tiny"})
    ),
    "a revision": merged(SERVICE, _spec(model={"uri": "hf://meta-llama/Llama-3.1-8B-Instruct@v2"})),
    "a volume": merged(SERVICE, _spec(model={"uri": "pvc://models/llama/8b"})),
    "an opaque template": merged(
        SERVICE,
        _spec(
            template={
                "metadata": {"labels": {"team": "a"}},
                "spec": {"tolerations": [{"key": "gpu", "operator": "Exists"}], "hostNetwork": False},
            }
        ),
    ),
    "a whole policy": merged(
        POLICY,
        _spec(
            itl={"worstSecondMilliseconds": 200},
            attainmentPermille=995,
            burst={"multiplier": 5, "withinSeconds": 10},
            allowedNamespaces={
                "matchLabels": {"team": "a"},
                "matchExpressions": [{"key": "env", "operator": "NotIn", "values": ["dev"]}],
            },
        ),
    ),
    "a pool with a limit": merged(POOL, _spec(maxGPUs=64, nodeSelector={"gpu": "h100"})),
}

# An update of the first object to the second is allowed.
ALLOWED_CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "another revision of the model": (
        SERVICE,
        merged(SERVICE, _spec(model={"uri": SERVICE["spec"]["model"]["uri"] + "@v2"})),
    ),
    "another batch size": (SERVICE, merged(SERVICE, _spec(engine={"maxNumSeqs": 8}))),
    "another class": (SERVICE, merged(SERVICE, _spec(class_="Batch"))),
}
