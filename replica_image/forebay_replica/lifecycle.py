"""The life of an engine, as a table: every transition that exists stands here, and nothing else moves a phase.

The table knows no process and no clock; the supervisor observes events and asks what they mean.

                       DRAIN_ASKED from every living phase
    STARTING --REHEARSED--> READY                DRAINING --DRAINED--> STOPPED
       ^  ^ --SLEEP_ASKED/HEALTH_LOST--/
       |  |
       |  `--- SLEEP_DONE --> ASLEEP             PROCESS_EXITED, START_DEADLINE --> FAILED
       `------ WAKE_ASKED ----/

A phase is only claimed when it was verified: an engine that was asked to sleep or to wake is STARTING until its
metrics, or a rehearsal, say what it is. So nothing is routed to it, and no memory is counted as given back, on its
word alone.
"""

from __future__ import annotations

from enum import StrEnum

from forebay.wire.lifecycle import EnginePhase


class EngineEvent(StrEnum):
    """What a supervisor can see happen to its engine, or be asked to do with it."""

    PROCESS_STARTED = "process started"
    HEALTH_OK = "health ok"  # /health answered
    REHEARSED = "rehearsed"  # a first token came back
    HEALTH_LOST = "health lost"  # /health failed several times in a row
    PROCESS_EXITED = "process exited"
    SLEEP_ASKED = "sleep asked"
    SLEEP_DONE = "sleep done"  # verified: the memory is given back
    WAKE_ASKED = "wake asked"
    WAKE_DONE = "wake done"  # verified: the memory is held again; not yet rehearsed
    DRAIN_ASKED = "drain asked"
    DRAINED = "drained"  # what ran has finished, or its time was over, and the engine was told to end
    START_DEADLINE = "start deadline"  # too long not READY


class LifecycleError(Exception):
    """An event that cannot happen in this phase, such as a request to wake an engine that is awake."""

    def __init__(self, phase: EnginePhase, event: EngineEvent) -> None:
        super().__init__(f"{event} makes no sense for an engine that is {phase}")
        self.phase = phase
        self.event = event


_E, _P = EngineEvent, EnginePhase

TRANSITIONS: dict[EnginePhase, dict[EngineEvent, EnginePhase]] = {
    _P.STARTING: {
        _E.PROCESS_STARTED: _P.STARTING,
        _E.HEALTH_OK: _P.STARTING,
        _E.REHEARSED: _P.READY,
        _E.HEALTH_LOST: _P.STARTING,
        _E.PROCESS_EXITED: _P.FAILED,
        _E.SLEEP_DONE: _P.ASLEEP,
        _E.WAKE_DONE: _P.STARTING,
        _E.DRAIN_ASKED: _P.DRAINING,
        _E.START_DEADLINE: _P.FAILED,
    },
    _P.READY: {
        _E.HEALTH_OK: _P.READY,
        # The process lives and may come back: its streams are left alone, new requests go elsewhere.
        _E.HEALTH_LOST: _P.STARTING,
        _E.PROCESS_EXITED: _P.FAILED,
        _E.SLEEP_ASKED: _P.STARTING,
        _E.DRAIN_ASKED: _P.DRAINING,
    },
    _P.ASLEEP: {
        _E.HEALTH_OK: _P.ASLEEP,
        _E.HEALTH_LOST: _P.ASLEEP,
        _E.PROCESS_EXITED: _P.FAILED,
        _E.WAKE_ASKED: _P.STARTING,
        _E.DRAIN_ASKED: _P.DRAINING,
    },
    _P.DRAINING: {
        _E.HEALTH_OK: _P.DRAINING,
        _E.HEALTH_LOST: _P.DRAINING,
        _E.REHEARSED: _P.DRAINING,
        _E.SLEEP_DONE: _P.DRAINING,
        _E.WAKE_DONE: _P.DRAINING,
        _E.PROCESS_EXITED: _P.FAILED,  # with its streams: nobody had asked it to stop yet
        _E.DRAIN_ASKED: _P.DRAINING,
        _E.DRAINED: _P.STOPPED,
    },
    _P.STOPPED: {_E.PROCESS_EXITED: _P.STOPPED, _E.DRAIN_ASKED: _P.STOPPED},
    _P.FAILED: {_E.PROCESS_EXITED: _P.FAILED, _E.DRAIN_ASKED: _P.FAILED},
}


def next_phase(phase: EnginePhase, event: EngineEvent) -> EnginePhase:
    """Return the phase after an event.

    Raises
    ------
    LifecycleError
        When the table has no such transition.
    """
    try:
        return TRANSITIONS[phase][event]
    except KeyError:
        raise LifecycleError(phase, event) from None
