"""The draws behind an emulated engine: repeatable, off the prior by what was asked for, and slow now and then."""

import dataclasses
import math
from statistics import fmean, stdev

from forebay.engine_model.step_time import StepTimes
from forebay.wire.replica_config import Emulation
from forebay_replica.engine_emulated.world import World

PRIOR = StepTimes(22_475_000_000, 32_536_000, 208_430, 53_206_000, 3_154_300)
EMULATION = Emulation(
    step_c0_ps=PRIOR.c0_ps,
    step_c1_ps=PRIOR.c1_ps,
    step_c2_ps=PRIOR.c2_ps,
    step_p1_ps=PRIOR.p1_ps,
    step_p2_fs=PRIOR.p2_fs,
    kv_tokens_total=180_000,
    cold_start_ms=90_000,
    wake_ms=1_000,
    model_error_permille=250,
    step_noise_permille=50,
    seed=7,
)
MANY = [World(EMULATION, f"chat-8b-abcde-{number}") for number in range(4_000)]


def test_the_same_seed_and_name_draw_the_same_world() -> None:
    again, other = World(EMULATION, "chat-8b-abcde-3"), World(dataclasses.replace(EMULATION, seed=8), "chat-8b-abcde-3")
    assert (again.step_times, again.cold_start_s) == (MANY[3].step_times, MANY[3].cold_start_s)
    assert again.step_ps(10**10) == MANY[3].step_ps(10**10)
    assert other.step_times != again.step_times
    assert MANY[4].step_times != again.step_times


def test_each_constant_is_off_by_the_model_error_independently() -> None:
    logs = [
        [
            math.log(mine / prior)
            for mine, prior in zip(dataclasses.astuple(world.step_times), prior_values, strict=True)
        ]
        for prior_values in [dataclasses.astuple(PRIOR)]
        for world in MANY
        if not world.straggles
    ]
    for column in zip(*logs, strict=True):
        assert abs(fmean(column)) < 0.02
        assert abs(stdev(column) - 0.25) < 0.02
    assert abs(fmean(row[0] * row[3] for row in logs)) < 0.01


def test_two_in_a_hundred_are_twice_as_slow() -> None:
    slow = [world for world in MANY if world.straggles]
    assert 0.012 < len(slow) / len(MANY) < 0.028
    factors = [math.log(world.step_times.c0_ps / PRIOR.c0_ps) for world in slow]
    assert abs(fmean(factors) - math.log(2)) < 0.15


def test_without_model_error_the_world_is_the_prior() -> None:
    exact = dataclasses.replace(EMULATION, model_error_permille=0, step_noise_permille=0)
    world = next(world for world in (World(exact, str(number)) for number in range(100)) if not world.straggles)
    assert world.step_times == PRIOR
    assert world.step_ps(12_345) == 12_345


def test_a_step_varies_by_the_noise_and_a_start_by_a_tenth() -> None:
    steps = [MANY[0].step_ps(10**10) / 10**10 for _ in range(4_000)]
    assert abs(fmean(steps) - 1) < 0.01
    assert abs(stdev(steps) - 0.05) < 0.005
    starts = [world.cold_start_s for world in MANY]
    assert abs(fmean(starts) - 90) < 2
    assert abs(stdev(starts) - 9) < 1
