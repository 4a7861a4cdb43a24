"""The HPA algorithm, by the examples of its own documentation and of its own tests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.sim.baselines.hpa import Behavior, Hpa, Policy, ScalingRules
from forebay.sim.baselines.settings import Bounds

WIDE = Bounds(1, 1000)
SYNC_MS = 15_000
# A behavior that bounds nothing, to see the ratio alone.
FREE = Behavior(
    ScalingRules(0, (Policy("percent", 100_000, 1),)),
    ScalingRules(0, (Policy("percent", 100, 1),)),
)


@pytest.mark.parametrize(
    ("each", "starting", "target_milli", "current", "expected"),
    [
        # "Algorithm details" of the documentation.
        pytest.param([200, 200], 0, 100, 2, 4, id="twice the target doubles the replicas"),
        pytest.param([50, 50, 50, 50], 0, 100, 4, 2, id="half the target halves them"),
        # kubernetes/kubernetes:pkg/controller/podautoscaler/replica_calculator_test.go.
        pytest.param([300, 500, 700], 0, 300, 3, 5, id="TestReplicaCalcScaleUp"),
        pytest.param([500, 700], 1, 300, 3, 4, id="TestReplicaCalcScaleUpUnreadyLessScale"),
        pytest.param([400], 2, 300, 3, 3, id="TestReplicaCalcScaleUpUnreadyNoScale"),
        pytest.param([100, 300, 500, 250, 250], 0, 500, 5, 3, id="TestReplicaCalcScaleDown"),
        pytest.param([100, 300, 500], 2, 500, 5, 2, id="TestReplicaCalcScaleDownIgnoresUnreadyPods"),
        pytest.param([1010, 1030, 1020], 0, 1000, 3, 3, id="TestReplicaCalcTolerance"),
        pytest.param([1100, 1100], 0, 1000, 2, 2, id="exactly the tolerance above is tolerated"),
        pytest.param([900, 900], 0, 1000, 2, 2, id="exactly the tolerance below is tolerated"),
        pytest.param([1101, 1101], 0, 1000, 2, 3, id="more than the tolerance is not"),
        pytest.param([], 3, 500, 3, 3, id="without metrics of any ready pod nothing changes"),
        pytest.param([0, 0], 0, 500, 2, 1, id="no usage leaves minReplicas"),
    ],
)
def test_utilization(each: list[int], starting: int, target_milli: int, current: int, expected: int) -> None:
    hpa = Hpa(WIDE, behavior=FREE)
    assert hpa.sync_on_utilization(0, current, np.array(each, np.int64), starting, target_milli) == expected


@pytest.mark.parametrize(
    ("total", "target", "current", "expected"),
    [
        # replica_calculator_test.go: TestReplicaCalcScaleUpPerPodCMExternal, ...DownPerPod..., GetExternalPerPodMetric.
        pytest.param(8600, 2150, 3, 4, id="TestReplicaCalcScaleUpPerPodCMExternal"),
        pytest.param(8600, 2867, 3, 3, id="TestReplicaCalcTolerancePerPodCMExternal"),
        pytest.param(8600, 2867, 5, 3, id="TestReplicaCalcScaleDownPerPodCMExternal"),
        pytest.param(40_000, 5000, 1, 8, id="forty waiting, five for each"),
        pytest.param(0, 5000, 8, 1, id="nothing waits"),
        pytest.param(40_000, 5000, 0, 0, id="at zero replicas it is switched off"),
    ],
)
def test_average_value(total: int, target: int, current: int, expected: int) -> None:
    assert Hpa(WIDE, behavior=FREE).sync_on_average(0, current, total, target) == expected


def follow(hpa: Hpa, asked: list[int], current: int, every_ms: int = SYNC_MS) -> list[int]:
    """Return the replicas after each sync at which the metric asks for so many."""
    states = []
    for step, replicas in enumerate(asked):
        current = hpa.sync_on_average(step * every_ms, current, replicas * 1000, 1000)
        states.append(current)
    return states


def test_without_behavior_it_doubles_or_reaches_four_at_each_sync() -> None:
    assert follow(Hpa(WIDE), [100] * 6, 1) == [4, 8, 16, 32, 64, 100]


def test_the_default_policies_add_four_or_double_every_15_s() -> None:
    assert follow(Hpa(WIDE, behavior=Behavior()), [100] * 6, 1) == [5, 10, 20, 40, 80, 100]


def test_a_policy_counts_what_was_added_within_its_period() -> None:
    pods = Behavior(up=ScalingRules(0, (Policy("pods", 4, 60_000),)))
    assert follow(Hpa(WIDE, behavior=pods), [20] * 9, 2) == [6, 6, 6, 6, 10, 10, 10, 10, 14]


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        # The example of the documentation, "Scaling policies": 10 percent of 80 is 8, of 72 is 7.2, rounded up to 8.
        pytest.param("max", [72, 64, 57, 51], id="max removes the most"),
        pytest.param("min", [76, 72, 68, 64], id="min removes the least"),
        pytest.param("disabled", [80, 80, 80, 80], id="disabled removes nothing"),
    ],
)
def test_down_policies(select: str, expected: list[int]) -> None:
    down = ScalingRules(0, (Policy("pods", 4, 60_000), Policy("percent", 10, 60_000)), select)  # type: ignore[arg-type]
    hpa = Hpa(WIDE, behavior=Behavior(down=down))
    assert follow(hpa, [10] * 4, 80, every_ms=60_000) == expected


def test_below_forty_replicas_four_pods_are_more_than_ten_percent() -> None:
    down = ScalingRules(0, (Policy("pods", 4, 60_000), Policy("percent", 10, 60_000)))
    assert follow(Hpa(WIDE, behavior=Behavior(down=down)), [10] * 3, 30, every_ms=60_000) == [26, 22, 18]


def test_down_stabilization_keeps_the_greatest_wish_of_the_window() -> None:
    # KEP-853, "Stabilization window": ten recommendations, and the highest of them is what counts.
    asked = [10, 9, 8, 9, 9, 8, 9, 8, 9, 8]
    assert follow(Hpa(WIDE, tolerance_milli=0), asked, 10, every_ms=30_000) == [10] * 10
    assert follow(Hpa(WIDE, tolerance_milli=0), [*asked, 8], 10, every_ms=30_000)[-1] == 9


def test_up_stabilization_keeps_the_least_wish_of_the_window() -> None:
    patient = Behavior(up=ScalingRules(60_000, (Policy("percent", 1000, 15_000),)))
    assert follow(Hpa(WIDE, behavior=patient), [2, 8, 8, 8, 8, 8], 2) == [2, 2, 2, 2, 8, 8]


def test_a_sync_one_window_old_no_longer_counts() -> None:
    states = follow(Hpa(WIDE), [8] + [1] * 21, 8)
    assert states[19] == 8
    assert states[20] == 1


@pytest.mark.parametrize(
    ("current", "expected"),
    [pytest.param(30, 20, id="above maxReplicas"), pytest.param(1, 3, id="below minReplicas")],
)
def test_bounds_come_first(current: int, expected: int) -> None:
    assert Hpa(Bounds(3, 20)).sync_on_average(0, current, current * 1000, 1000) == expected


@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=60),
    st.integers(1, 50),
    st.sampled_from([None, Behavior(), FREE]),
)
def test_any_sequence_stays_in_bounds_and_repeats(asked: list[int], current: int, behavior: Behavior | None) -> None:
    states = follow(Hpa(Bounds(2, 50), behavior=behavior), asked, current)
    assert all(2 <= state <= 50 for state in states)
    assert states == follow(Hpa(Bounds(2, 50), behavior=behavior), asked, current)
