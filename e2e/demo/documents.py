"""The objects of the demo: the readable files in manifests/, with what this run changes in them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from forebay.core.goodness import Targets

if TYPE_CHECKING:
    from e2e.demo.plan import Plan

MANIFESTS = Path(__file__).resolve().parent / "manifests"
_BATCH = "Batch"


def policies(*, warm: bool) -> list[dict[str, Any]]:
    """Return the SLO policies; without `warm` none keeps a warm replica."""
    documents = _load("policies.yaml")
    if not warm:
        for document in documents:
            document["spec"]["maxIdleGPUs"] = 0
            document["spec"]["burst"]["multiplier"] = 1
    return documents


def services(plan: Plan, seed: int, resource: str) -> list[dict[str, Any]]:
    """Return namespaces and services.

    Parameters
    ----------
    plan
        Sets cold start, idle time and the delay before scaling down.
    seed
        Of the emulated engines' draws.
    resource
        Extended resource that a replica requests.
    """
    documents = _load("services.yaml")
    for spec in (document["spec"] for document in documents if document["kind"] == "InferenceService"):
        spec["engine"]["emulated"] |= {"coldStartSeconds": plan.cold_start_s, "seed": seed}
        spec["accelerators"][0]["resource"] = resource
        if spec.get("class") == _BATCH:
            spec["scaling"]["idleSeconds"] = plan.idle_s
        else:
            spec["scaling"]["scaleDownDelaySeconds"] = plan.scale_down_delay_s
    return documents


def targets() -> dict[str, Targets]:
    """Return what is promised for each service, "namespace/name", from the same documents that are applied."""
    promised = {document["metadata"]["name"]: document["spec"] for document in _load("policies.yaml")}
    return {
        f"{document['metadata']['namespace']}/{document['metadata']['name']}": _targets(
            promised[document["spec"]["sloPolicyRef"]["name"]]
        )
        for document in _load("services.yaml")
        if document["kind"] == "InferenceService"
    }


def _targets(policy: dict[str, Any]) -> Targets:
    return Targets(
        ttft_ms=policy["ttft"]["targetMilliseconds"],
        ttft_per_1k_prompt_tokens_ms=policy["ttft"]["perThousandPromptTokensMilliseconds"],
        itl_mean_ms=policy["itl"]["meanMilliseconds"],
        itl_worst_second_ms=policy["itl"]["worstSecondMilliseconds"],
    )


def _load(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((MANIFESTS / name).read_text()))
