"""KEDA as measured: KEDA 2.21.0, Kubernetes 1.36.3, Prometheus, all defaults; the times stand in docs/benchmark."""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING

import pytest

from forebay.sim.baselines.keda import SYNC_MS_BY_OBJECTS
from tests.sim.baselines.build import drive, rule, sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.sim.sample import Sample

# Whether the load changes just before or just after a sync is chance; every second of the longest period is tried.
STEP_MS = 1_000_000


def queue(before: int, after: int) -> Callable[[int, int], Sample]:
    """Return a world where the waiting requests change at STEP_MS, whoever holds them."""
    return lambda at_ms, replicas: sample(at_ms, ready=replicas, held=after if at_ms >= STEP_MS else before)


def times_s(look: Callable[[int, int], Sample], replicas: int, low: int, **overrides: int) -> list[list[float]]:
    """Return, for every phase, how long after the change each change of replicas came; with the steps taken."""
    runs = []
    for phase_ms in range(0, max(30_000, overrides.get("sync_ms", 0)), 1000):
        driven = rule("keda", low=low, **overrides)
        changes = drive(driven, look, until_ms=STEP_MS + 700_000, replicas=replicas, phase_ms=phase_ms)
        runs.append([value for at_ms, count in changes for value in ((at_ms - STEP_MS) / 1000, count)])
    return runs


def test_up_it_takes_two_steps_one_sync_apart_and_24_s() -> None:
    runs = times_s(queue(0, 40), replicas=1, low=1)
    assert {(run[1], run[3], len(run)) for run in runs} == {(4, 8, 4)}  # 1 -> 4 -> 8
    assert {run[2] - run[0] for run in runs} == {15}
    to_8 = [run[2] for run in runs]
    assert mean(to_8) == pytest.approx(24, abs=1)
    assert min(to_8) <= 19
    assert max(to_8) >= 28


def test_from_zero_its_poll_comes_first_and_it_takes_46_s() -> None:
    runs = times_s(queue(0, 40), replicas=0, low=0)
    assert {tuple(run[1::2]) for run in runs} == {(1, 4, 8)}
    to_8 = [run[4] for run in runs]
    assert mean(to_8) == pytest.approx(46, abs=1)
    assert min(to_8) <= 34
    assert max(to_8) >= 56


def test_down_it_takes_one_step_after_the_stabilization_window() -> None:
    runs = times_s(queue(40, 0), replicas=8, low=1)
    assert {(run[1], len(run)) for run in runs} == {(1, 2)}  # 8 -> 1
    after = [run[0] for run in runs]
    assert min(after) <= 291 <= max(after) <= 302
    assert min(after) >= 286


def test_a_series_that_is_gone_reads_as_zero_and_shrinks_a_busy_fleet() -> None:
    def gone(at_ms: int, replicas: int) -> Sample:
        if at_ms >= STEP_MS:  # no scrape answers, although all replicas exist
            return sample(at_ms, ready=0, starting=replicas)
        return sample(at_ms, ready=replicas, waiting=5)

    runs = times_s(gone, replicas=8, low=1)
    assert {(run[1], len(run)) for run in runs} == {(1, 2)}
    assert all(286 <= run[0] <= 302 for run in runs)


@pytest.mark.parametrize(
    ("objects", "measured_least_s", "measured_most_s"),
    [
        pytest.param(1000, 56, 118, id="a thousand objects and 20 requests a second"),
        pytest.param(2000, 116, 160, id="two thousand objects and 20 requests a second"),
        pytest.param(1, 19, 28, id="two thousand objects and 200 requests a second are as few as one"),
    ],
)
def test_a_crowded_cluster_syncs_later(objects: int, measured_least_s: int, measured_most_s: int) -> None:
    runs = times_s(queue(0, 40), replicas=1, low=1, sync_ms=SYNC_MS_BY_OBJECTS[objects])
    assert {(run[1], run[3]) for run in runs} == {(4, 8)}
    assert measured_least_s < mean([run[2] for run in runs]) < measured_most_s


def test_a_thousand_objects_take_84_s_in_the_mean() -> None:
    runs = times_s(queue(0, 40), replicas=1, low=1, sync_ms=SYNC_MS_BY_OBJECTS[1000])
    assert mean([run[2] for run in runs]) == pytest.approx(84, abs=2)


def test_to_zero_it_goes_at_once_when_the_cooldown_after_the_last_poll_with_work_is_over() -> None:
    runs = times_s(queue(40, 0), replicas=8, low=0)
    # The HPA shrinks to one after its window; the poll ends that when 300 s have passed since one saw work.
    assert {run[-1] for run in runs} == {0}
    assert all(300 < run[-2] <= 332 for run in runs)


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        # keda.sh, "Prometheus": the threshold is the AverageValue of the HPA.
        pytest.param(8 * 5, 8, id="on target nothing changes"),
        pytest.param(8 * 5 + 4, 8, id="ten percent more is tolerated"),
        pytest.param(8 * 5 + 5, 9, id="more than that is not"),
    ],
)
def test_around_the_target(waiting: int, expected: int) -> None:
    driven = rule("keda")
    assert driven.decide(sample(0, ready=8, waiting=[waiting, 0, 0, 0, 0, 0, 0, 0])) == expected
