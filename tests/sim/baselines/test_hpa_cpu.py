"""HPA on CPU: an engine that runs anything looks fully used, so it grows until a third of the replicas idle."""

from __future__ import annotations

import pytest

from tests.sim.baselines.build import drive, rule, sample


@pytest.mark.parametrize(
    ("running", "expected"),
    [
        # 70 %: ceil(busy / 0.7) replicas, and a ratio within 10 % of one changes nothing.
        pytest.param([1, 0, 0, 0, 0, 0, 0, 0, 0, 0], 2, id="one of ten busy needs two"),
        pytest.param([9] * 7 + [0] * 3, 10, id="seven of ten busy is the target"),
        pytest.param([1] * 10, 15, id="one request each looks the same"),
        pytest.param([250] * 10, 15, id="as a full batch each"),
        pytest.param([0] * 10, 1, id="nothing runs"),
    ],
)
def test_only_busy_or_not_counts(running: list[int], expected: int) -> None:
    assert rule("hpa-cpu", down_stabilization_ms=1).decide(sample(0, ready=10, running=running)) == expected


def test_it_grows_to_the_bound_under_a_load_that_keeps_every_replica_busy() -> None:
    changes = drive(
        rule("hpa-cpu", high=32), lambda at, n: sample(at, ready=n, running=1), until_ms=300_000, replicas=2
    )
    assert [count for _, count in changes] == [3, 5, 8, 12, 18, 26, 32]


def test_starting_replicas_damp_the_growth() -> None:
    driven = rule("hpa-cpu")
    assert driven.decide(sample(0, ready=4, running=1)) == 6
    assert driven.decide(sample(15_000, ready=4, starting=2, running=1)) == 6
    assert driven.decide(sample(30_000, ready=6, running=1)) == 9


def test_it_shrinks_after_its_stabilization_window() -> None:
    changes = drive(
        rule("hpa-cpu"),
        lambda at, n: sample(at, ready=n, running=[1] * 7 + [0] * (n - 7) if at < 0 else [1] * 2 + [0] * (n - 2)),
        until_ms=600_000,
        replicas=10,
    )
    assert [count for _, count in changes] == [3]
    assert 300_000 <= changes[0][0] <= 335_000


def test_it_never_leaves_one_replica_although_the_service_allows_none() -> None:
    assert rule("hpa-cpu", low=0).decide(sample(0, ready=0)) == 1
