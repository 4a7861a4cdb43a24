"""What holds for every rival, whatever it is shown."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engine_model.step_time import StepTimes
from forebay.sim.baselines import all_rules
from tests.sim.baselines.build import sample

if TYPE_CHECKING:
    from forebay.sim.sample import Rule, Sample

ORDER = [
    "hpa-cpu", "keda", "knative-kpa", "aibrix-apa", "llm-d-wva-v1", "llm-d-wva-v2",
    "dynamo-load", "dynamo-throughput", "dynamo-both", "ray-serve", "static-peak", "static-mean", "clairvoyant",
]  # fmt: skip
PROFILE = {
    "times": StepTimes(c0_ps=10**10, c1_ps=10**9, c2_ps=10**6, p1_ps=10**8, p2_fs=10**6),
    "kv_tokens": 100_000,
}
NEEDED: dict[str, dict[str, Any]] = {
    "dynamo-throughput": PROFILE,
    "dynamo-both": PROFILE,
    "static-peak": {"replicas": 9},
    "static-mean": {"replicas": 4},
    "clairvoyant": {"plan": np.array([1, 4, 2]), "plan_interval_ms": 30_000},
}
LOW, HIGH = 0, 40

# Rivals that start at least one replica by their own default, or that no scaling to zero exists for.
AT_LEAST_ONE = {"hpa-cpu", "aibrix-apa", "dynamo-load", "dynamo-throughput", "dynamo-both"}


def make(name: str, **overrides: Any) -> Rule:
    return all_rules()[name](NEEDED.get(name, {}) | overrides, 32, LOW, HIGH)


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Return what some service shows from one sample to the next; totals only grow."""
    steps = st.fixed_dictionaries(
        {
            "ready": st.integers(0, 12),
            "starting": st.integers(0, 5),
            "running": st.integers(0, 64),
            "waiting": st.integers(0, 200),
            "held": st.integers(0, 5000),
            "kv_milli": st.integers(0, 1000),
            "requests": st.integers(0, 10_000),
            "tokens": st.integers(0, 8000),
        }
    )
    return draw(st.lists(steps, min_size=1, max_size=25))


def shown(history: list[dict[str, Any]], interval_ms: int) -> list[Sample]:
    samples, requests, tokens = [], 0, 0
    for step, seen in enumerate(history):
        requests += seen["requests"]
        tokens += seen["requests"] * seen["tokens"]
        samples.append(
            sample(
                step * interval_ms,
                ready=seen["ready"],
                starting=seen["starting"],
                running=seen["running"],
                waiting=seen["waiting"],
                held=seen["held"],
                kv_milli=seen["kv_milli"],
                arrivals_total=requests,
                finished_total=requests,
                prompt_tokens_total=tokens,
                generation_tokens_total=tokens // 7,
                ttft_sum_ms=tokens // 3,
                ttft_count=requests,
                itl_sum_ms=tokens,
                itl_count=tokens // 7,
            )
        )
    return samples


def test_the_order_is_the_table_s() -> None:
    assert list(all_rules()) == ORDER


@pytest.mark.parametrize("name", ORDER)
@given(history=histories())
def test_any_history_gives_a_number_within_bounds_and_the_same_one_again(
    name: str, history: list[dict[str, Any]]
) -> None:
    first, second = make(name), make(name)
    samples = shown(history, first.interval_ms)
    decided = [first.decide(seen) for seen in samples]
    assert all(type(replicas) is int for replicas in decided)
    assert all((name in AT_LEAST_ONE) <= replicas <= HIGH for replicas in decided)
    assert decided == [second.decide(seen) for seen in samples]


@pytest.mark.parametrize("name", ORDER)
def test_every_rule_says_how_often_it_acts_how_late_it_sees_and_what_it_keeps_warm(name: str) -> None:
    rule = make(name)
    assert rule.interval_ms > 0
    assert rule.delay_ms >= 0
    assert rule.warm_replicas == 0
    assert make(name, warm_replicas=3).warm_replicas == 3


@pytest.mark.parametrize("name", [name for name in ORDER if name != "clairvoyant"])
def test_a_tuner_may_use_all_of_the_search_space_and_a_warm_pool(name: str) -> None:
    baseline = all_rules()[name]
    defaults: dict[str, Any] = {field.name: field.default for field in fields(baseline.settings)}
    assert "warm_replicas" in baseline.search_space
    for setting, (low, high, kind) in baseline.search_space.items():
        assert defaults[setting] is not MISSING
        assert low <= defaults[setting] <= high, setting
        assert kind == "int" or low > 0
        for value in (low, high):
            make(name, **{setting: value}).decide(sample(ready=2, running=3, held=5, kv_milli=300))


# On target: whatever the rival looks at is as its documentation wants it, on ten replicas.
CALM: dict[str, dict[str, Any]] = {
    "hpa-cpu": {"running": [1] * 7 + [0] * 3},
    "keda": {"waiting": 5},
    "knative-kpa": {"running": 22},  # 0.7 * 32 = 22.4
    "aibrix-apa": {"kv_milli": 500, "waiting": 1},
    "llm-d-wva-v1": {"kv_milli": 650, "running": 8},
    "llm-d-wva-v2": {"kv_milli": 620, "running": 8},
    "dynamo-load": {"kv_milli": 800, "running": 20},
    "ray-serve": {"running": 2},
}


@pytest.mark.parametrize("name", CALM)
def test_on_target_nothing_changes_for_an_hour(name: str) -> None:
    rule = make(name)
    for at_ms in range(0, 3_600_000, max(rule.interval_ms, 5000)):
        assert rule.decide(sample(at_ms, ready=10, **CALM[name])) == 10


@pytest.mark.parametrize(
    ("name", "overrides", "bounds", "message"),
    [
        pytest.param("keda", {"target": 5}, (1, 9), "keda has no setting 'target'; it has cooldown_ms", id="unknown"),
        pytest.param("static-peak", {}, (1, 9), "static-peak has no default for replicas", id="missing"),
        pytest.param("keda", {"waiting_target_milli": 0}, (1, 9), "waiting_target_milli of keda must be at least 1, "
                     "not 0", id="a target of zero"),
        pytest.param("ray-serve", {"up_delay_ms": -1}, (1, 9), "up_delay_ms of ray-serve must be at least 0, not -1",
                     id="a negative delay"),
        pytest.param("keda", {}, (5, 4), "0 <= min <= max", id="more at least than at most"),
        pytest.param("keda", {}, (0, 0), "max not zero", id="nothing allowed"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_with_what_to_do(
    name: str, overrides: dict[str, Any], bounds: tuple[int, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        all_rules()[name](overrides, 32, *bounds)


def test_a_batch_of_none_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_best must be at least 1, not 0"):
        all_rules()["keda"]({}, 0, 1, 9)
