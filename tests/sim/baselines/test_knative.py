"""Knative's KPA, by knative/serving:pkg/autoscaler/scaling/autoscaler_test.go and the ConfigMap's own examples."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.baselines.build import drive, rule, sample

TICK_MS = 2000


def kpa(*, target: int = 10, low: int = 0, **overrides: Any) -> Any:
    """Return a KPA with a target in requests: all of a hard limit of so many."""
    return rule("knative-kpa", batch_best=target, low=low, concurrency_target_milli=1000, **overrides)


def tick(driven: Any, in_flight: int, ready: int, at_ms: int = 0) -> int:
    return int(driven.decide(sample(at_ms, ready=ready, held=in_flight)))


@pytest.mark.parametrize(
    ("in_flight", "ready", "expected"),
    [
        pytest.param(50, 1, 5, id="stable mode: 50 in flight at a target of 10"),
        pytest.param(100, 8, 10, id="stable mode: 100 in flight on 8 replicas"),
        pytest.param(51, 1, 6, id="part of a replica is a whole one"),
        pytest.param(6, 0, 1, id="requests that wait for a first replica"),
        pytest.param(600, 0, 60, id="from zero straight to what is in flight, as it may grow a thousandfold"),
        pytest.param(50_000, 1, 1000, id="max-scale-up-rate 1000"),
    ],
)
def test_the_first_tick(in_flight: int, ready: int, expected: int) -> None:
    # A decider that finds more than one replica begins in panic, which keeps them but does not bound growth.
    assert tick(kpa(), in_flight, ready) == expected


def test_the_default_target_is_seventy_percent_of_the_hard_limit() -> None:
    driven = rule("knative-kpa", batch_best=100)
    assert driven.decide(sample(0, ready=1, running=100)) == 2
    assert rule("knative-kpa", batch_best=100).decide(sample(0, ready=1, running=70)) == 1


def test_panic_answers_to_six_seconds_and_shrinks_only_a_stable_window_later() -> None:
    driven = kpa(target=1, low=1)
    ready, states = 1, {}
    for at_ms in range(0, 200_000, TICK_MS):
        in_flight = 10 if 60_000 <= at_ms < 72_000 else 1
        ready = states[at_ms] = tick(driven, in_flight, ready, at_ms)
    assert states[58_000] == 1
    assert states[60_000] == 4  # the mean of 10, 1 and 1 over three ticks; twice the replicas, so it panics
    assert states[64_000] == 10  # all three
    # At 10 replicas the load is no longer twice what is there: panic ends one stable window after it began.
    assert {states[at_ms] for at_ms in range(64_000, 122_000, TICK_MS)} == {10}
    assert [states[at_ms] for at_ms in (122_000, 124_000, 126_000, 140_000)] == [5, 2, 2, 1]


def test_without_panic_it_shrinks_by_half_a_tick() -> None:
    driven = kpa(target=1, low=0, stable_window_ms=TICK_MS, panic_window_milli=1000)
    ready, states = 1, []
    for step in range(50):
        ready = tick(driven, 8 if step < 40 else 0, ready, step * TICK_MS)
        states.append(ready)
    assert states[:2] == [8, 8]
    assert states[39:45] == [8, 4, 2, 1, 1, 1]  # the last one stays for the grace period


def test_zero_comes_after_the_grace_period_and_not_where_a_minimum_forbids_it() -> None:
    idle, kept = (
        drive(kpa(low=low), lambda at, n: sample(at, ready=n, running=1 if at < 0 else 0), until_ms=300_000, replicas=1)
        for low in (0, 1)
    )
    # The request of 0 s leaves the stable window at 60 s, and the grace period is 30 s.
    assert idle == [(90_000, 0)]
    assert kept == []


def test_a_restart_keeps_the_replicas_for_a_stable_window() -> None:
    driven = kpa(low=1)
    states = [tick(driven, 10, 8, at_ms) for at_ms in range(0, 70_000, TICK_MS)]
    assert set(states[:31]) == {8}
    assert states[31] == 4
