"""Ray Serve's default policy, by ray-project/ray:python/ray/serve/tests/unit/test_autoscaling_policy.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sim.baselines.build import drive, rule, sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.sim.sample import Sample


def load(*steps: tuple[int, int]) -> Callable[[int, int], Sample]:
    """Return a world with so many requests in flight from so many ms on."""

    def look(at_ms: int, replicas: int) -> Sample:
        in_flight = [count for since_ms, count in steps if at_ms >= since_ms]
        return sample(at_ms, ready=replicas, held=in_flight[-1] if in_flight else 0)

    return look


@pytest.mark.parametrize(
    ("in_flight", "replicas", "expected"),
    [
        # "Advanced Ray Serve Autoscaling": replicas follow the mean ongoing requests by target_ongoing_requests 2.
        pytest.param(40, 10, 20, id="twice the target doubles the replicas"),
        pytest.param(10, 10, 5, id="half the target halves them"),
        pytest.param(41, 10, 21, id="part of a replica is a whole one"),
        pytest.param(20, 10, 10, id="on target nothing changes"),
    ],
)
def test_ongoing_requests_by_target(in_flight: int, replicas: int, expected: int) -> None:
    driven = rule("ray-serve", up_delay_ms=0, down_delay_ms=0)
    assert driven.decide(sample(0, ready=replicas, held=in_flight)) == expected


def test_up_it_waits_30_s_and_takes_the_latest_wish() -> None:
    changes = drive(rule("ray-serve"), load((100_000, 20), (130_000, 40)), until_ms=400_000, replicas=1)
    # The mean over 30 s has its first request above the target of 2 at the fourth second: 4/30 of 20 is 2.7.
    assert changes[0][0] == 105_000 + 3_000 + 30_000
    assert [count for _, count in changes] == [12, 20]


def test_down_it_waits_600_s_leaves_one_and_then_none() -> None:
    changes = drive(rule("ray-serve", low=0), load((0, 20), (100_000, 0)), until_ms=2_000_000, replicas=10)
    assert [count for _, count in changes] == [1, 0]
    assert 700_000 <= changes[0][0] <= 710_000
    assert changes[1][0] - changes[0][0] == pytest.approx(600_000, abs=2000)


def test_an_interruption_starts_the_delay_again() -> None:
    steady = load((0, 20), (100_000, 10), (500_000, 40), (520_000, 10))
    driven = rule("ray-serve", look_back_ms=1000)
    changes = drive(driven, steady, until_ms=1_130_000, replicas=10)
    assert changes == [(1_125_000, 5)]


def test_from_zero_one_replica_starts_at_once() -> None:
    driven = rule("ray-serve", low=0)
    assert driven.decide(sample(0, ready=0)) == 0
    assert driven.decide(sample(1000, ready=0, held=1)) == 1
    assert driven.decide(sample(2000, ready=0, starting=1, held=900)) == 1
