"""What a user names on the command line, files and a few words, becomes the documents and traces of a scenario."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from forebay.api.kinds import KINDS
from forebay.api.unknown import unknown_fields
from forebay.resolve.fleet import Resolver
from forebay.resolve.priors import DEGREES
from forebay.sim import workloads
from forebay.sim.scenario import NO_IMAGES, Scenario, ScenarioError, build
from forebay.sim.traces import read

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from forebay.sim.trace import Trace
    from forebay.sim.traces.lines import Format

Object = dict[str, Any]
API_VERSION = "forebay.dev/v1alpha1"
GPUS = 64  # of a pool that does not say how many it has
RESOURCE = "nvidia.com/gpu"
_YAML = {".yaml", ".yml"}
_MODELS = {kind.name: kind.model for kind in KINDS}


@dataclass(slots=True)
class Documents:
    """Objects by their kind."""

    services: list[Object] = field(default_factory=list)
    policies: list[Object] = field(default_factory=list)
    pools: list[Object] = field(default_factory=list)

    def add(self, document: object, source: Path) -> None:
        """Sort one object in.

        Raises
        ------
        ScenarioError
            When it is none of ours, or has a field that nothing reads.
        """
        kinds = {"InferenceService": self.services, "SLOPolicy": self.policies, "GPUPool": self.pools}
        kind = document.get("kind") if isinstance(document, dict) else None
        if not isinstance(document, dict) or kind not in kinds or "name" not in (document.get("metadata") or {}):
            raise ScenarioError(f"{source} holds something else than a named {', '.join(kinds)}: take it out")
        unread = list(unknown_fields({"spec": document.get("spec")}, _MODELS[kind]))
        if unread:
            name = document["metadata"]["name"]
            raise ScenarioError(f"{source}: nothing reads these fields of {kind} {name}: {', '.join(unread)}")
        if kind == "InferenceService":
            document["metadata"].setdefault("namespace", "default")
            document["metadata"].setdefault(
                "uid", f"{document['metadata']['namespace']}/{document['metadata']['name']}"
            )
        kinds[kind].append(document)


def read_documents(paths: Iterable[Path]) -> Documents:
    """Read files of YAML documents, and all those in folders.

    Raises
    ------
    ScenarioError
        When a file is no YAML, or holds what is none of ours.
    OSError
        When it cannot be read.
    """
    found = Documents()
    for path in paths:
        files = sorted(one for one in path.iterdir() if one.suffix in _YAML) if path.is_dir() else [path]
        if not files:
            raise ScenarioError(f"{path} holds no .yaml file")
        for file in files:
            try:
                for document in yaml.safe_load_all(file.read_text()):
                    if document is not None:
                        found.add(document, file)
            except yaml.YAMLError as error:
                raise ScenarioError(f"{file} is no YAML: {error}") from error
    return found


def service_of(model: str, accelerator: str, gpus: int) -> Object:
    """Describe a service by two words: as few cards a replica as hold the model, all the pool's GPUs at most.

    Raises
    ------
    ScenarioError
        When the model fits no number of cards, or fewer GPUs than that are there.
    """
    name = model.rstrip("/").rpartition("/")[2].partition("@")[0].lower().replace(".", "-").replace("_", "-")[:40]
    for tensor in DEGREES:
        document = {
            "apiVersion": API_VERSION,
            "kind": "InferenceService",
            "metadata": {"name": name, "namespace": "default", "uid": name, "generation": tensor},
            "spec": {
                "model": {"uri": model},
                "accelerators": [{"name": "accelerator", "type": accelerator, "resource": RESOURCE}],
                "parallelism": {"tensor": tensor},
                "scaling": {"minReplicas": 1, "maxReplicas": max(1, gpus // tensor)},
            },
        }
        (resolved,) = Resolver(NO_IMAGES).resolve([document], [], [], {}).services
        if not resolved.blocked:
            if tensor > gpus:
                raise ScenarioError(f"a replica of {model} takes {tensor} GPUs and there are {gpus}: raise --gpus")
            return document
    raise ScenarioError("; ".join(problem.message for problem in resolved.problems))


def traces_of(
    services: Iterable[Object], files: Iterable[Path], folders: Iterable[Path], file_format: Format | None
) -> dict[str, Trace]:
    """Find each service's trace: the one that is named, or the file NAME.* that lies beside its document.

    Raises
    ------
    ScenarioError
        When it is not clear which trace is whose.
    forebay.sim.traces.TraceError
        When a line of one is wrong.
    """
    keys = {one["metadata"]["name"]: f"{one['metadata']['namespace']}/{one['metadata']['name']}" for one in services}
    named = list(files)
    if named and (len(named) > 1 or len(keys) > 1):
        raise ScenarioError(
            f"{len(named)} traces for {len(keys)} services: put each trace beside its document, named like its service"
        )
    if named:
        return {key: read(named[0], file_format).trace for key in keys.values()}
    beside = [file for folder in folders if folder.is_dir() for file in sorted(folder.iterdir())]
    found = {}
    for name, key in keys.items():
        mine = [file for file in beside if file.name.partition(".")[0] == name and file.suffix not in _YAML]
        if len(mine) > 1:
            raise ScenarioError(f"{key} has several traces: {', '.join(str(file) for file in mine)}")
        if mine:
            found[key] = read(mine[0], file_format).trace
    return found


def scenario_of(documents: Documents, traces: dict[str, Trace], *, gpus: int, copies: int, seed: int) -> Scenario:
    """Build the scenario, each trace `copies` times, `gpus` where a pool does not say how many it has."""
    larger = {key: workloads.replicate(trace, copies, seed) for key, trace in traces.items()}
    return build(documents.services, documents.policies, documents.pools, larger, gpus=gpus)
