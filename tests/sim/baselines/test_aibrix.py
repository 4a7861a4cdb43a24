"""AIBrix's APA, by vllm-project/aibrix:pkg/controller/podautoscaler/algorithm/apa_test.go and its documentation."""

from __future__ import annotations

import pytest

from forebay.sim.baselines.aibrix import AibrixSettings, damped, wish
from tests.sim.baselines.build import drive, rule, sample


@pytest.mark.parametrize(
    ("current", "use", "up_rate_milli", "down_rate_milli", "expected"),
    [
        pytest.param(2, 45, 2000, 2000, 3, id="basic_scale_up"),
        pytest.param(2, 35, 2000, 2000, 3, id="scale_up_upto_ceiling"),
        pytest.param(2, 90, 2000, 2000, 4, id="scale_up_upto_max_scale_up"),
        pytest.param(2, 90, 2500, 2000, 5, id="scale_up_upto_max_scale_up_ceiling"),
        pytest.param(6, 20, 2000, 2000, 4, id="basic_scale_down"),
        pytest.param(6, 18, 2000, 2000, 4, id="scale_down_upto_ceiling"),
        pytest.param(6, 10, 2000, 2000, 3, id="scale_down_upto_max_scale_down"),
        pytest.param(6, 5, 2000, 2500, 2, id="scale_down_upto_max_scale_down_floor"),
        pytest.param(2, 33, 2000, 2000, 2, id="no_scaling_as_within_up_tolerance"),
        pytest.param(2, 27, 2000, 2000, 2, id="no_scaling_as_within_down_tolerance"),
    ],
)
def test_one_metric_with_a_target_of_30(
    current: int, use: int, up_rate_milli: int, down_rate_milli: int, expected: int
) -> None:
    settings = AibrixSettings(up_rate_milli=up_rate_milli, down_rate_milli=down_rate_milli)
    assert wish(settings, current, use / 30) == expected


@pytest.mark.parametrize(
    ("current", "ready", "ratio", "expected"),
    [
        # autoscaler.go, applyPendingReplicaGuard.
        pytest.param(4, 2, 2.0, 4, id="two busy and two that start are what two twice as busy need"),
        pytest.param(4, 3, 2.0, 6, id="three twice as busy need six"),
        pytest.param(4, 2, 0.5, 3, id="on the way down those that start count as on target"),
        pytest.param(4, 4, 2.0, 8, id="without any that start nothing is damped"),
    ],
)
def test_replicas_that_start_damp_the_wish(current: int, ready: int, ratio: float, expected: int) -> None:
    assert damped(AibrixSettings(), current, ready, ratio) == expected


@pytest.mark.parametrize(
    ("kv_milli", "waiting", "held", "expected"),
    [
        pytest.param(500, 0, 0, 4, id="KV on target"),
        pytest.param(750, 0, 0, 6, id="KV half above"),
        pytest.param(500, 2, 0, 8, id="twice the waiting doubles although KV is on target"),
        pytest.param(500, 0, 8, 8, id="requests that the gateway holds wait too"),
        pytest.param(1000, 100, 100, 8, id="never more than twice a step"),
    ],
)
def test_the_greatest_wish_of_both_metrics_wins(kv_milli: int, waiting: int, held: int, expected: int) -> None:
    looked = sample(0, ready=4, kv_milli=kv_milli, waiting=waiting, held=held)
    assert rule("aibrix-apa").decide(looked) == expected


def test_the_mean_of_180_s_delays_a_step_up() -> None:
    changes = drive(
        rule("aibrix-apa"),
        lambda at, n: sample(at, ready=n, kv_milli=1000 if at >= 600_000 else 500),
        until_ms=900_000,
        replicas=4,
    )
    # The tolerance of 10 % is a tenth of the window's 18 ticks: the second tick that sees the step is beyond it.
    assert changes[0] == (620_000, 5)


def test_it_shrinks_by_half_a_step_once_nothing_within_five_minutes_asked_for_more() -> None:
    changes = drive(
        rule("aibrix-apa", window_ms=10_000),
        lambda at, n: sample(at, ready=n, kv_milli=500 if at < 100_000 else 100),
        until_ms=1_500_000,
        replicas=8,
    )
    assert [count for _, count in changes] == [4, 2, 1]
    assert changes[0][0] == 110_000 + 290_000


def test_it_does_not_scale_to_zero_by_default() -> None:
    assert rule("aibrix-apa", low=0).decide(sample(0, ready=0)) == 1
    idle = drive(rule("aibrix-apa", low=0), lambda at, n: sample(at, ready=n), until_ms=2_000_000, replicas=2)
    assert idle[-1][1] == 1
