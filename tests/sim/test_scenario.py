"""From documents and traces to a fleet that can be simulated, or to what has to be changed first."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from forebay.sim import scenario
from forebay.sim.run import ForebayJudge
from forebay.sim.scenario import ScenarioError, play
from forebay.sim.trace import Trace
from forebay.sim.world import World
from tests.sim import build

if TYPE_CHECKING:
    from collections.abc import Callable

NEAT = build.drawn(1, 120, 60, prompt=(10, 900), output=(1, 90))


def accelerator(kind: str) -> dict[str, Any]:
    return {"name": "l40s", "type": kind, "resource": "nvidia.com/gpu", "gpuPoolRef": {"name": "l40s"}}


def service(name: str = "chat-8b", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "forebay.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name, "namespace": "chat", "uid": name, "generation": 1},
        "spec": {
            "model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct"},
            "accelerators": [accelerator("L40S")],
            "engine": {"type": "VLLM", "maxNumSeqs": 16},
            "scaling": {"minReplicas": 1, "maxReplicas": 8},
            "sloPolicyRef": {"name": "chat"},
        }
        | spec,
    }


def policy(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "forebay.dev/v1alpha1",
        "kind": "SLOPolicy",
        "metadata": {"name": "chat"},
        "spec": {
            "ttft": {"targetMilliseconds": 500, "perThousandPromptTokensMilliseconds": 150},
            "itl": {"meanMilliseconds": 50, "worstSecondMilliseconds": 200},
        }
        | spec,
    }


def pool(gpus: int | None = 8) -> dict[str, Any]:
    spec = {"resource": "nvidia.com/gpu"} | ({} if gpus is None else {"maxGPUs": gpus})
    return {"apiVersion": "forebay.dev/v1alpha1", "kind": "GPUPool", "metadata": {"name": "l40s"}, "spec": spec}


def built(*services: dict[str, Any], pools: Any = None, traces: Any = None, policies: Any = None) -> scenario.Scenario:
    every = services or (service(),)
    named = {f"chat/{one['metadata']['name']}": NEAT for one in every} if traces is None else traces
    return scenario.build(every, [policy()] if policies is None else policies, pools or [pool()], named)


def test_documents_become_what_an_operator_would_be_told() -> None:
    made = built(service("a"), service("b"))
    assert made.fleet.services == ("chat/a", "chat/b")
    assert made.fleet.pools == ("l40s",)
    assert made.pools() == (scenario.Pool((0, 1), 8),)
    assert made.targets(1) == build.TARGETS
    assert int(made.fleet.batch_max[0]) == 16
    assert int(made.fleet.kv_tokens_prior[0]) > 100_000
    services = made.services(World(1), [build.TIGHT])
    assert [len(one.state) for one in services] == [8 + int(made.fleet.warm_gpus_max[0]) + 4 + (8 + 8) // 4] * 2
    assert services[0].path.targets.tolist() == [500, 150, 50, 200, 200, 0, 24, 40]


def test_a_fleet_begins_with_twice_what_its_second_minute_keeps_busy() -> None:
    dice = np.random.default_rng(1)
    quiet, busy = np.sort(dice.integers(0, 60 * 10**6, 60)), np.sort(dice.integers(60 * 10**6, 120 * 10**6, 600))
    arrival_us = np.concatenate([quiet, busy])
    many = Trace("m", arrival_us, np.full(660, 1000), np.full(660, 200))
    made = built(traces={"chat/chat-8b": many})
    times = made.step_times(0)
    prefill_ps = times.p1_ps * 1000 + times.p2_fs * 1000
    decode_ps = 200 * (times.c0_ps / 8 + times.c1_ps + times.c2_ps * 1100)
    replicas = 600 * (prefill_ps + decode_ps) / 60e12
    assert made.initial(0) == min(8, int(np.ceil(2 * replicas)))
    assert made.initial(0) > 1
    assert built().initial(0) == 1


def test_that_minute_may_be_empty_and_minreplicas_stands_for_it() -> None:
    late = Trace("late", np.array([3_600_000_000]), np.array([10]), np.array([10]))
    assert built(service(scaling={"minReplicas": 3, "maxReplicas": 8}), traces={"chat/chat-8b": late}).initial(0) == 3


WRONG: dict[str, tuple[Callable[[], scenario.Scenario], str]] = {
    "a service without a trace": (
        lambda: built(traces={}),
        "chat/chat-8b has no trace: give it one, or leave the service out",
    ),
    "a pool that does not say how many GPUs it has": (
        lambda: built(pools=[pool(None)]),
        "pool l40s does not say how many GPUs it has: set spec.maxGPUs",
    ),
    "a model that nobody has measured": (
        lambda: built(service(model={"uri": "hf://acme/secret-model"})),
        r"chat/chat-8b: nothing is known of its speed: no profile of the model hf://acme/secret-model; name one of .*",
    ),
    "an accelerator that nobody has measured": (
        lambda: built(service(accelerators=[accelerator("Z900")])),
        "no profile of the accelerator Z900; name one of .*l40s",
    ),
    "a number format of which there is no profile": (
        lambda: built(service(engine={"type": "VLLM", "dtype": "Float32"})),
        "no profile for dtype Float32 and kvCacheDtype Auto; write Auto",
    ),
    "a policy that does not exist": (lambda: built(policies=[]), "chat/chat-8b: .*chat.*"),
    "a model too large for the GPU": (
        lambda: built(service(model={"uri": "hf://meta-llama/Llama-3.1-70B-Instruct"})),
        "chat/chat-8b: .+",
    ),
    "a spec that nobody can read": (lambda: built(service(scaling={"minReplicas": "many"})), "chat/chat-8b: .+"),
    "no service at all": (lambda: scenario.build([], [], [], {}), "there is no service"),
}


@pytest.mark.parametrize(("make", "message"), WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_simulated_says_what_to_change(make: Callable[[], scenario.Scenario], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        make()


ODD: dict[str, Trace] = {
    "one request": Trace("one", np.array([0]), np.array([1]), np.array([1])),
    "one prompt of ten million tokens among others": Trace(
        "long", np.array([0, 1, 2]), np.array([10, 10_000_000, 10]), np.array([5, 5, 5])
    ),
    "nothing but prompts of ten million tokens": Trace("longer", np.arange(3), np.full(3, 10_000_000), np.full(3, 1)),
    "all at one instant": Trace("all", np.zeros(500, np.int64), np.full(500, 100), np.full(500, 20)),
}


@pytest.mark.parametrize("trace", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize("targets", ["usual", "impossible"])
def test_an_odd_trace_or_policy_ends_with_a_stated_outcome(trace: Trace, targets: str) -> None:
    impossible = policy(
        ttft={"targetMilliseconds": 1, "perThousandPromptTokensMilliseconds": 0},
        itl={"meanMilliseconds": 1, "worstSecondMilliseconds": 1},
    )
    made = built(policies=[policy() if targets == "usual" else impossible], traces={"chat/chat-8b": trace})
    ticks: list[tuple[int, int]] = []
    before = deepcopy(made.fleet)
    _, (score,) = play(
        made, World(1), ForebayJudge(made.fleet, made.pools()), progress=lambda *tick: ticks.append(tick)
    )
    assert ticks[-1] == (120, 120)
    assert score.requests == score.answered + score.refused
    assert score.refused == int((trace.prompt_tokens > 10**6).sum())
    numbers = [
        score.goodput,
        *score.goodput_by_class,
        score.ttft_attained,
        score.itl_attained,
        *score.itl_ms,
        score.gpu_hours,
    ]
    assert np.isfinite(numbers).all()
    if targets == "impossible":
        assert score.goodput == 0
    assert before.services == made.fleet.services
