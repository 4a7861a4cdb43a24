"""The table of an engine's life, as stories and as a whole."""

from __future__ import annotations

import pytest

from forebay.wire.lifecycle import EnginePhase
from forebay_replica.lifecycle import TRANSITIONS, EngineEvent, LifecycleError, next_phase

E, P = EngineEvent, EnginePhase
STARTED = [E.PROCESS_STARTED, E.HEALTH_OK, E.REHEARSED]
ASLEEP = [*STARTED, E.SLEEP_ASKED, E.SLEEP_DONE]

STORIES = {
    "an engine that answers but was not rehearsed is not ready": ([E.PROCESS_STARTED, E.HEALTH_OK], P.STARTING),
    "a rehearsed engine is ready": (STARTED, P.READY),
    "an engine that dies while it starts has failed": ([E.PROCESS_STARTED, E.PROCESS_EXITED], P.FAILED),
    "an engine that dies in service has failed": ([*STARTED, E.PROCESS_EXITED], P.FAILED),
    "an engine that never gets ready has failed": ([E.PROCESS_STARTED, E.START_DEADLINE], P.FAILED),
    "an engine that stops answering is not ready": ([*STARTED, E.HEALTH_LOST], P.STARTING),
    "it is ready again when it answers and was rehearsed": (
        [*STARTED, E.HEALTH_LOST, E.HEALTH_OK, E.REHEARSED],
        P.READY,
    ),
    "an engine asked to sleep is not asleep yet": ([*STARTED, E.SLEEP_ASKED], P.STARTING),
    "it is asleep once that was verified": (ASLEEP, P.ASLEEP),
    "asleep, its health tells nothing": ([*ASLEEP, E.HEALTH_OK, E.HEALTH_LOST], P.ASLEEP),
    "an engine that dies in its sleep has failed": ([*ASLEEP, E.PROCESS_EXITED], P.FAILED),
    "a woken engine is not ready before it was rehearsed": (
        [*ASLEEP, E.WAKE_ASKED, E.WAKE_DONE, E.HEALTH_OK],
        P.STARTING,
    ),
    "and then it is": ([*ASLEEP, E.WAKE_ASKED, E.WAKE_DONE, E.REHEARSED], P.READY),
    "a sleep that could not be verified ends in a rehearsal": ([*STARTED, E.SLEEP_ASKED, E.REHEARSED], P.READY),
    "a drain of a starting engine": ([E.PROCESS_STARTED, E.DRAIN_ASKED], P.DRAINING),
    "a drain of a sleeping engine": ([*ASLEEP, E.DRAIN_ASKED], P.DRAINING),
    "a drain finishes what runs": ([*STARTED, E.DRAIN_ASKED, E.DRAIN_ASKED, E.HEALTH_OK, E.HEALTH_LOST], P.DRAINING),
    "what came back late does not undo a drain": (
        [*STARTED, E.SLEEP_ASKED, E.DRAIN_ASKED, E.SLEEP_DONE, E.WAKE_DONE, E.REHEARSED],
        P.DRAINING,
    ),
    "drained and ended is stopped": ([*STARTED, E.DRAIN_ASKED, E.DRAINED, E.PROCESS_EXITED, E.DRAIN_ASKED], P.STOPPED),
    "dead before it was drained has failed": ([*STARTED, E.DRAIN_ASKED, E.PROCESS_EXITED, E.DRAIN_ASKED], P.FAILED),
}


@pytest.mark.parametrize(("events", "phase"), STORIES.values(), ids=STORIES)
def test_a_life(events: list[EngineEvent], phase: EnginePhase) -> None:
    now = P.STARTING
    for event in events:
        now = next_phase(now, event)
    assert now == phase


def test_every_transition_is_in_the_table_or_a_named_error() -> None:
    for phase in EnginePhase:
        for event in EngineEvent:
            if event in TRANSITIONS[phase]:
                assert next_phase(phase, event) == TRANSITIONS[phase][event]
            else:
                with pytest.raises(LifecycleError, match=f"{event} makes no sense"):
                    next_phase(phase, event)


def test_the_stories_use_every_transition_that_moves() -> None:
    used = set()
    for events, _ in STORIES.values():
        now = P.STARTING
        for event in events:
            used.add((now, event))
            now = next_phase(now, event)
    moving = {(p, e) for p, row in TRANSITIONS.items() for e, after in row.items() if after != p}
    assert moving - used == set()


@pytest.mark.parametrize("phase", [P.STOPPED, P.FAILED])
def test_an_end_is_final(phase: EnginePhase) -> None:
    assert set(TRANSITIONS[phase].values()) == {phase}


def test_a_death_is_understood_in_every_phase() -> None:
    assert all(E.PROCESS_EXITED in row and E.DRAIN_ASKED in row for row in TRANSITIONS.values())
