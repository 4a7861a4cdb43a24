"""The rivals that look at nothing."""

from __future__ import annotations

import numpy as np
import pytest

from tests.sim.baselines.build import drive, rule, sample


@pytest.mark.parametrize("name", ["static-peak", "static-mean"])
def test_a_static_fleet_is_what_was_asked_for_whatever_happens(name: str) -> None:
    driven = rule(name, replicas=7)
    assert [driven.decide(sample(at, ready=ready, held=10 * at)) for at, ready in ((0, 1), (60_000, 9))] == [7, 7]


def test_a_clairvoyant_fleet_follows_its_plan_and_then_keeps_its_last_number() -> None:
    driven = rule("clairvoyant", plan=np.array([2, 5, 5, 1]), plan_interval_ms=10_000)
    changes = drive(driven, lambda at, n: sample(at, ready=n), until_ms=100_000, replicas=2)
    assert changes == [(10_000, 5), (30_000, 1)]


@pytest.mark.parametrize("plan", [[], [1, -1]])
def test_a_plan_must_be_one(plan: list[int]) -> None:
    with pytest.raises(ValueError, match="plan of clairvoyant"):
        rule("clairvoyant", plan=np.array(plan, np.int64), plan_interval_ms=10_000)
