"""From documents that a user would apply, and traces, to a simulated fleet that is told what an operator would be told.

The same resolver as the operator's makes the judgement's columns of them, so a policy file means here what it means in
a cluster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from forebay.core.goodness import Targets
from forebay.engine_model.bank import BLOCK_TOKENS
from forebay.engine_model.step_time import StepTimes
from forebay.resolve.defaults import ReplicaDefaults
from forebay.resolve.fleet import Resolver
from forebay.resolve.profiles import find_gpu, find_model, load
from forebay.sim.datapath.layout import PS_PER_US
from forebay.sim.run import Pool, run
from forebay.sim.score import Score, score_of
from forebay.sim.service import SimulatedService

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from forebay.api.inference_service import InferenceServiceSpec
    from forebay.core.fleet import FleetSpec
    from forebay.sim.run import Judge
    from forebay.sim.trace import Trace
    from forebay.sim.world import World

Object = dict[str, Any]
# Replicas beyond maxReplicas that may exist at once, because they drain: a share, and a few.
_DRAINING_SHARE, _DRAINING_LEAST = 4, 4
MINUTE_US = 60_000_000
BEGIN_WITH = 1.5
NO_IMAGES = ReplicaDefaults("not-run", "not-run", "not-run")


class ScenarioError(ValueError):
    """The documents describe nothing that could be simulated; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A fleet that can be simulated.

    Attributes
    ----------
    fleet
        The judgement's columns.
    traces
        One a row of the fleet.
    """

    fleet: FleetSpec
    traces: tuple[Trace, ...]

    def targets(self, row: int) -> Targets:
        """Return what a service's policy promises."""
        fleet = self.fleet
        return Targets(
            ttft_ms=int(fleet.ttft_target_ms[row]),
            ttft_per_1k_prompt_tokens_ms=int(fleet.ttft_per_1k_prompt_tokens_ms[row]),
            itl_mean_ms=int(fleet.itl_mean_ms[row]),
            itl_worst_second_ms=int(fleet.itl_worst_second_ms[row]),
        )

    def step_times(self, row: int) -> StepTimes:
        """Return the prior of a service's step time."""
        fleet = self.fleet
        return StepTimes(
            int(fleet.step_c0_ps[row]),
            int(fleet.step_c1_ps[row]),
            int(fleet.step_c2_ps[row]),
            int(fleet.step_p1_ps[row]),
            int(fleet.step_p2_fs[row]),
        )

    def services(self, world: World, classes: Sequence[Targets] = ()) -> list[SimulatedService]:
        """Make the simulated services; `classes` are scored beside each service's own targets."""
        made = []
        for row, trace in enumerate(self.traces):
            most = int(self.fleet.replicas_max[row]) + int(self.fleet.warm_gpus_max[row])
            lanes = most + most // _DRAINING_SHARE + _DRAINING_LEAST
            made.append(
                SimulatedService(
                    trace, self.fleet, row, classes=(self.targets(row), *classes), world=world, lanes=lanes
                )
            )
        return made

    def initial(self, row: int) -> int:
        """Return with how many replicas a service begins: what its second minute keeps busy, and half as many again.

        Copies of a trace begin within its first minute; a fleet that begins short has lost 5 % of an hour's requests
        before the first cold start could end, whoever judges.
        """
        trace, times, fleet = self.traces[row], self.step_times(row), self.fleet
        second = slice(*(int(place) for place in np.searchsorted(trace.arrival_us, (MINUTE_US, 2 * MINUTE_US))))
        prompt = trace.prompt_tokens[second].astype(np.float64)
        output = trace.output_tokens[second].astype(np.float64)
        prefill_ps = times.p1_ps * prompt + times.p2_fs * prompt * prompt / 1000
        full = max(1, int(fleet.batch_max[row]) // 2)
        decode_ps = output * (times.c0_ps / full + times.c1_ps + times.c2_ps * (prompt + output / 2))
        busy = float((prefill_ps + decode_ps).sum()) / (MINUTE_US * PS_PER_US)
        low, high = max(1, int(fleet.replicas_min[row])), int(fleet.replicas_max[row])
        return min(high, max(low, math.ceil(busy * BEGIN_WITH)))

    def pools(self) -> tuple[Pool, ...]:
        """Return the pools, in the order of the fleet's rows."""
        return tuple(
            Pool(tuple(int(row) for row in np.flatnonzero(self.fleet.pool == pool)), int(gpus))
            for pool, gpus in enumerate(self.fleet.gpus_max)
        )


def build(
    services: Sequence[Object],
    policies: Sequence[Object],
    pools: Sequence[Object],
    traces: Mapping[str, Trace],
    *,
    gpus: int | None = None,
) -> Scenario:
    """Resolve documents and give each service its trace.

    Parameters
    ----------
    services, policies, pools
        InferenceServices, SLOPolicies and GPUPools.
    traces
        By "namespace/name".
    gpus
        What a pool has that does not say it; None: each must say it.

    Raises
    ------
    ScenarioError
        When a service is blocked, has no prior, no trace or no room in its pool's GPUs.
    """
    if not services:
        raise ScenarioError("there is no service to simulate: give an InferenceService, or a trace with --model")
    fleet = Resolver(NO_IMAGES).resolve(services, policies, pools, {})
    for service in fleet.services:
        if service.blocked:
            raise ScenarioError("; ".join(f"{service.key}: {problem.message}" for problem in service.problems))
        if service.prior is None:
            raise ScenarioError(f"{service.key}: nothing is known of its speed: {_unknown(service.spec)}")
        if service.key not in traces:
            raise ScenarioError(f"{service.key} has no trace: give it one, or leave the service out")
        if service.prior.kv_tokens_total < BLOCK_TOKENS:
            raise ScenarioError(f"{service.key}: its KV cache holds no block")
    spec = fleet.spec
    for pool in fleet.pools:
        if pool.gpus_max < 0 and gpus is None:
            raise ScenarioError(f"pool {pool.name} does not say how many GPUs it has: set spec.maxGPUs of its GPUPool")
    if gpus is not None:
        spec = replace(spec, gpus_max=np.where(spec.gpus_max < 0, gpus, spec.gpus_max))
    return Scenario(spec, tuple(traces[service.key] for service in fleet.services))


def _unknown(spec: InferenceServiceSpec | None) -> str:
    """Say what the tables lack of a service that nothing else is wrong with."""
    tables = load()
    if spec is None or find_model(tables, spec.model.uri) is None:
        return f"no profile of the model {spec.model.uri if spec else ''}; name one of {', '.join(tables.models)}"
    if find_gpu(tables, spec.accelerators[0].type) is None:
        gpu = spec.accelerators[0].type
        return f"no profile of the accelerator {gpu or '(none is named)'}; name one of {', '.join(tables.gpus)}"
    return f"no profile for dtype {spec.engine.dtype} and kvCacheDtype {spec.engine.kv_cache_dtype}; write Auto"


def play(
    scenario: Scenario,
    world: World,
    judge: Judge,
    classes: Sequence[Targets] = (),
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[SimulatedService], list[Score]]:
    """Simulate a scenario to its end.

    Parameters
    ----------
    scenario, world
        What is asked, and what is true.
    judge
        Who decides.
    classes
        Targets that are scored beside each service's own.
    progress
        Told the second that was played, and how many there are.

    Returns
    -------
    tuple
        The services as they are in the end, and their scores.
    """
    services = scenario.services(world, classes)
    run(services, judge, [scenario.initial(row) for row in range(len(services))], progress)
    return services, [score_of(service) for service in services]
