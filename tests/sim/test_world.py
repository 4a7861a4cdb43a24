"""What the world draws is as wide as it says, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from forebay.sim.world import STRAGGLER_FACTOR, World

PRIOR = np.array([15 * 10**9, 30 * 10**6, 28_000, 55 * 10**6, 10**6])
REPLICAS = 4000


def drawn(world: World) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logarithms of true constant / prior, cold starts in seconds, seeds of noise."""
    replicas = [world.replica(PRIOR, 0, number) for number in range(REPLICAS)]
    logs = np.log([true / PRIOR for true, _, _ in replicas])
    return logs, np.array([cold_us for _, cold_us, _ in replicas]) / 1e6, np.array([dice for *_, dice in replicas])


def test_each_constant_of_each_replica_is_lognormal_around_the_prior() -> None:
    logs, _, dice = drawn(World(1, stragglers=False))
    assert logs.mean(axis=0) == pytest.approx(np.zeros(5), abs=0.02)
    assert logs.std(axis=0) == pytest.approx(np.full(5, 0.25), abs=0.01)
    between = np.corrcoef(logs.T)
    assert np.abs(between - np.eye(5)).max() < 0.05, "a replica's constants are drawn one by one"
    assert len(set(dice.tolist())) == REPLICAS


def test_two_in_a_hundred_replicas_are_twice_as_slow_in_everything() -> None:
    with_them, without = drawn(World(1))[0], drawn(World(1, stragglers=False))[0]
    slower = np.exp(with_them - without)
    stragglers = slower[:, 0] > 1.5
    assert stragglers.mean() == pytest.approx(0.02, abs=0.007)
    assert slower[stragglers] == pytest.approx(STRAGGLER_FACTOR, rel=1e-3)
    assert slower[~stragglers] == pytest.approx(1.0, rel=1e-3)


def test_a_cold_start_takes_110_seconds_give_or_take_20() -> None:
    _, cold_s, _ = drawn(World(1))
    assert cold_s.mean() == pytest.approx(110, abs=1)
    assert cold_s.std() == pytest.approx(20, abs=1)
    quick = drawn(World(1, cold_s=25, cold_sd_s=20))[1]
    assert quick.min() == 20, "nothing loads a model in less"


def test_the_exact_world_is_the_prior_with_noise_in_its_steps() -> None:
    world = World(1, cold_s=90, promote_ms=150).exact
    logs, cold_s, _ = drawn(world)
    assert not logs.any()
    assert cold_s.mean() == pytest.approx(90, abs=1)
    assert (world.noise_milli, world.promote_ms) == (50, 150)


def test_a_replica_is_drawn_by_seed_service_and_number_alone() -> None:
    def draw(seed: int, service: int, number: int) -> list[int]:
        true, cold_us, dice = World(seed).replica(PRIOR, service, number)
        return [*true.tolist(), cold_us, dice]

    assert draw(1, 2, 3) == draw(1, 2, 3)
    assert len({tuple(draw(*which)) for which in ((1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4))}) == 4
