"""A fit must find constants that are known, from nothing but what a client sees."""

from __future__ import annotations

from dataclasses import astuple, replace

import numpy as np
import pytest

from forebay.engine_model.step_time import StepTimes
from forebay.sim.calibrate.compare import calibrate
from forebay.sim.calibrate.fit import UnfitError, fit
from forebay.sim.calibrate.follow import WORK, follow
from forebay.sim.calibrate.loads import Load, Request, first_guess, probe, service, sweep
from tests.sim.calibrate.engines import FACTS, FRONT_US, TIMES, play

SECONDS = 30


def test_a_sweep_and_four_loads_give_the_constants_within_two_percent() -> None:
    guess = first_guess(play(probe(FACTS), 1))
    recordings = [play(sweep(FACTS, guess), 1), *(play(load, 1) for load in service(FACTS, guess, SECONDS, 1))]
    found = fit(recordings)
    for name, told, true in zip(("c0", "c1", "c2", "p1", "p2"), astuple(found.times), astuple(TIMES), strict=True):
        assert told == pytest.approx(true, rel=0.02), name
    assert found.front_us == pytest.approx(FRONT_US, rel=0.1)
    assert found.noise_permille == pytest.approx(20, abs=3)
    assert found.rows_left_out < found.rows / 50


def test_without_noise_the_sweep_alone_gives_every_constant_within_a_permille() -> None:
    found = fit([play(sweep(FACTS, TIMES), 1, noise_permille=0)])
    for told, true in zip(astuple(found.times), astuple(TIMES), strict=True):
        assert told == pytest.approx(true, rel=0.001)
    assert found.front_us == pytest.approx(FRONT_US, abs=2)


def test_a_client_that_pauses_now_and_then_spoils_nothing() -> None:
    recording = play(sweep(FACTS, TIMES), 1)
    dice = np.random.default_rng(7)
    tokens = recording.token_us.copy()
    for request in dice.choice(len(recording.trace), 10, replace=False):
        first, end = recording.offsets[request : request + 2]
        tokens[first:end] += 200_000  # a fifth of a second late from its first token on
    found = fit([replace(recording, token_us=tokens)])
    for told, true in zip(astuple(found.times), astuple(TIMES), strict=True):
        assert told == pytest.approx(true, rel=0.1)


def test_the_model_predicts_the_second_half_of_an_engine_that_it_describes() -> None:
    recordings = [play(sweep(FACTS, TIMES), 1)]
    recordings += [play(load, run) for load in service(FACTS, TIMES, SECONDS, 1) for run in (1, 2)]
    comparison = calibrate(recordings)
    assert {row.load for row in comparison.rows} == {"prefill-heavy", "decode-heavy", "mixed", "overload"}
    assert [row for row in comparison.rows if not row.within] == []
    predicted, measured = comparison.preemptions["overload"]
    assert predicted == pytest.approx(measured, rel=0.1)
    assert measured > 50


def test_the_steps_of_one_stream_are_counted_exactly() -> None:
    """A prompt of 600 tokens in chunks of 256, 256 and 88, then 3 decodes: the first token closes the three chunks."""
    steps = follow(play(Load("one", ((Request(0, 600, 4),),)), 1, noise_permille=0), TIMES, FRONT_US)
    assert WORK == ("fronts", "steps", "decoding", "context_tokens", "prompt_tokens", "pairs")
    assert steps.work.tolist() == [
        [1, 3, 0, 0, 600, 600**2],
        [0, 1, 1, 601, 0, 0],
        [0, 1, 1, 602, 0, 0],
        [0, 1, 1, 603, 0, 0],
    ]
    chunks_us = 3 * 12_000 + 600 * 150 + 600**2 * 0.04
    assert steps.gap_us.tolist() == pytest.approx([FRONT_US + chunks_us, 13_602, 13_604, 13_606], abs=1)


@pytest.mark.parametrize(
    ("load", "missing"),
    [
        pytest.param(Load("x", ((Request(0, 64, 40),),) * 5), "all vary together", id="one stream of one length"),
        pytest.param(Load("x", tuple((Request(0, n, 1),) for n in (16, 64, 500))), "c1, c2", id="no decode at all"),
    ],
)
def test_recordings_that_cannot_tell_the_constants_apart_are_refused(load: Load, missing: str) -> None:
    with pytest.raises(UnfitError, match=missing):
        fit([play(load, 1)])


def test_a_first_guess_is_near_enough_to_size_the_loads() -> None:
    guess = first_guess(play(probe(FACTS), 1))
    assert guess.c0_ps == pytest.approx(TIMES.c0_ps, rel=0.1)
    assert guess.p1_ps == pytest.approx(TIMES.p1_ps, rel=0.5)


@pytest.mark.parametrize("seconds", [1, 5])
def test_a_load_too_short_for_a_tail_names_the_seconds_that_it_needs(seconds: int) -> None:
    slow = StepTimes(200_000_000_000, 0, 0, 1_000_000_000, 0)
    with pytest.raises(ValueError, match="give --seconds"):
        service(FACTS, slow, seconds, 1)


def test_equal_seeds_give_equal_loads_and_others_do_not() -> None:
    assert service(FACTS, TIMES, SECONDS, 1) == service(FACTS, TIMES, SECONDS, 1)
    assert service(FACTS, TIMES, SECONDS, 1) != service(FACTS, TIMES, SECONDS, 2)
