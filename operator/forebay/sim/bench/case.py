"""A workload at its scale, with all its seeds in one fleet: one service a seed (W6: eight), each group with its pool.

Seeds play in lockstep because a service decides alone as it does among many, and one call of the judgement then serves
all. Seed k is place k of the fleet, so its replicas are the same ones under every judge.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from forebay.core.goodness import Targets
from forebay.sim import scenario, workloads
from forebay.sim.bench.entries import (
    ENTRIES,
    Entry,
    Model,
    Scaling,
    Size,
    shaped,
    sources,
    window_us,
)
from forebay.sim.bound import work_us
from forebay.sim.world import World

if TYPE_CHECKING:
    from pathlib import Path

    from forebay.core.units import I64
    from forebay.sim.scenario import Object, Scenario
    from forebay.sim.trace import Trace

# Scored beside the policy's own targets: people on the line, and people who wait.
CLASSES = {"tight": Targets(200, 150, 24, 200), "loose": Targets(2000, 150, 200, 1000)}
WORLD_SEED, TUNING_WORLD_SEED = 1, 101
SEQS_MAX = 256  # vLLM's max_num_seqs
NAMESPACE = "bench"
REPLICAS_MAX_LEAST = 8
_SHAPE_RPS = 10.0


@dataclass(frozen=True, slots=True)
class Inputs:
    """Where a run reads from."""

    traces: Path
    policies: Path


@dataclass(frozen=True, slots=True)
class Case:
    """A fleet to be judged.

    Attributes
    ----------
    entry
        What it is.
    seeds
        One a group of `len(entry.models)` rows.
    scenario
        All rows.
    copies
        Of each service's source.
    """

    entry: Entry
    seeds: tuple[int, ...]
    scenario: Scenario
    copies: tuple[int, ...]

    def rows(self, seed: int) -> range:
        """Return the rows of a seed."""
        group, first = len(self.entry.models), self.seeds.index(seed)
        return range(first * group, (first + 1) * group)

    def fluid(self, row: int) -> float:
        """Return the replicas that a row's work would keep busy, in the mean."""
        return fluid_replicas(self.scenario, row)


def work_of(made: Scenario, row: int) -> I64:
    """Return the least work of each of a row's requests, in microseconds of one replica of the prior."""
    seats, kv_tokens = int(made.fleet.batch_max[row]), int(made.fleet.kv_tokens_prior[row])
    return work_us(made.traces[row], made.step_times(row), seats, kv_tokens, made.targets(row))


def fluid_replicas(made: Scenario, row: int) -> float:
    """Return the least work of a row's requests by the time that they take to come."""
    return float(work_of(made, row).sum()) / made.traces[row].duration_us


def world_of(kind: str) -> World:
    """Return the world with an error of the model, the one without, or the one that tuning sees."""
    match kind:
        case "error":
            return World(WORLD_SEED)
        case "exact":
            return World(WORLD_SEED).exact
        case _:
            return World(TUNING_WORLD_SEED)


@cache
def build(name: str, seeds: tuple[int, ...], size: Size, inputs: Inputs, policy: str = "{}") -> Case:
    """Make a case.

    Parameters
    ----------
    name
        Of the entry.
    seeds
        Which ones.
    size
        How much of the workload.
    inputs
        Where traces and policies are.
    policy
        Fields of the policy's spec that differ from what ships, as JSON, which the cache can hash.

    Raises
    ------
    TraceError
        When a trace cannot be read.
    """
    entry = ENTRIES[name]
    given = sources(name, inputs.traces, size)
    terms = _policy(inputs.policies, entry.policy, json.loads(policy))
    alone = _scenario(entry, [given], terms, replicas_max=[REPLICAS_MAX_LEAST] * len(given), pool_gpus=None)
    busy = [fluid_replicas(alone, row) for row in range(len(given))]
    copies = tuple(max(1, round(entry.fluid / one)) for one in busy)
    groups = [
        [
            _scaled(entry, size, trace, busy=busy[place], copies=copies[place], seed=seed, place=place)
            for place, trace in enumerate(given)
        ]
        for seed in seeds
    ]
    mean = [entry.fluid if entry.scaling is Scaling.RATE else busy[p] * copies[p] for p in range(len(given))]
    most = [max(REPLICAS_MAX_LEAST, round(entry.replicas_max_share * each)) for each in mean]
    gpus = sum(each * model.gpus for each, model in zip(mean, entry.models, strict=True))
    pool_gpus = round(entry.pool_share * gpus) if entry.pool_share else None
    return Case(entry, seeds, _scenario(entry, groups, terms, replicas_max=most, pool_gpus=pool_gpus), copies)


def _scaled(entry: Entry, size: Size, trace: Trace, *, busy: float, copies: int, seed: int, place: int) -> Trace:
    match entry.scaling:
        case Scaling.REPLICATE:
            whole = workloads.replicate(trace, copies, seed * 100 + place)
            # Copies come in over the first minute and go after the last: a ramp that nobody asked for.
            return whole.slice(workloads.JITTER_US, trace.duration_us) if copies > 1 else whole
        case Scaling.MULTIPLY:
            return workloads.multiply(trace, copies)
        case Scaling.RATE:
            drawn = shaped(entry.name, _SHAPE_RPS * entry.fluid / busy, seed)
            return drawn.slice(*window_us(size, entry.step_s)) if size.span_s else drawn


def _scenario(
    entry: Entry, groups: list[Any], policy: Object, *, replicas_max: list[int], pool_gpus: int | None
) -> Scenario:
    services, pools, traces = [], [], {}
    for number, group in enumerate(groups):
        for place, (model, trace) in enumerate(zip(entry.models, group, strict=True)):
            name = f"s{number:02d}-{place}"
            shared = pool_gpus is not None
            pool = f"pool-{number:02d}" if shared else f"pool-{name}"
            services.append(_service(name, pool, model, replicas_max[place], entry))
            traces[f"{NAMESPACE}/{name}"] = trace
            if not shared:
                pools.append(_pool(pool, 2 * replicas_max[place] * model.gpus))
        if pool_gpus is not None:
            pools.append(_pool(f"pool-{number:02d}", pool_gpus))
    return scenario.build(services, [policy], pools, traces)


def _policy(folder: Path, name: str, changes: dict[str, Any]) -> Object:
    document: Object = yaml.safe_load((folder / f"{name}.yaml").read_text())
    document["spec"].update(changes)
    return document


def _pool(name: str, gpus: int) -> Object:
    return {
        "apiVersion": "forebay.dev/v1alpha1",
        "kind": "GPUPool",
        "metadata": {"name": name},
        "spec": {"resource": "nvidia.com/gpu", "maxGPUs": gpus},
    }


def _service(name: str, pool: str, model: Model, replicas_max: int, entry: Entry) -> Object:
    return {
        "apiVersion": "forebay.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": name,
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "model": {"uri": model.uri},
            "accelerators": [
                {"name": "h100", "type": "H100", "resource": "nvidia.com/gpu", "gpuPoolRef": {"name": pool}}
            ],
            "parallelism": {"tensor": model.gpus},
            "engine": {"type": "VLLM", "maxNumSeqs": SEQS_MAX, "maxNumBatchedTokens": entry.step_tokens},
            "scaling": {"minReplicas": 1, "maxReplicas": replicas_max},
            "sloPolicyRef": {"name": entry.policy},
        },
    }


def fastest(case: Case, world: World, row: int, replicas: int) -> tuple[I64, int]:
    """Return the least of each constant of the step time and the shortest start that a row's replicas have."""
    prior = np.array(astuple(case.scenario.step_times(row)))
    drawn = [world.replica(prior, row, number) for number in range(replicas)]
    least: I64 = np.min([times for times, _, _ in drawn], axis=0)
    return least, min(start for _, start, _ in drawn)
