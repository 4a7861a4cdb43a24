"""The clockwork of one service: what is due next happens next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.engine_model.bank import LANES
from forebay.sim.datapath.engines import finish_step
from forebay.sim.datapath.gateway import arrive, open_lanes, poll, release_held
from forebay.sim.datapath.layout import NEVER_US, NEXT_ARRIVAL, NEXT_OPEN_US, NEXT_POLL_US, NOW_US, POLL_US

if TYPE_CHECKING:
    from forebay.sim.datapath.layout import DataPath


def advance(path: DataPath, until_us: int) -> None:
    """Let the service run until a time. At one instant: promotions, polls, arrivals, steps."""
    lanes, clock = path.bank.size[LANES], path.clock
    requests = len(path.trace_us)
    while True:
        due_us, number = NEVER_US, -1
        if clock[NEXT_ARRIVAL] < requests:
            due_us = path.trace_us[clock[NEXT_ARRIVAL]]
        for index in range(lanes):
            if path.step_end[index] < due_us:
                due_us, number = path.step_end[index], index
        if clock[NEXT_OPEN_US] <= min(due_us, until_us, clock[NEXT_POLL_US]):
            clock[NOW_US] = clock[NEXT_OPEN_US]
            open_lanes(path, clock[NOW_US])
            continue
        if clock[NEXT_POLL_US] <= min(due_us, until_us):
            clock[NOW_US] = clock[NEXT_POLL_US]
            poll(path, clock[NOW_US])
            clock[NEXT_POLL_US] += POLL_US
            continue
        if due_us > until_us:
            clock[NOW_US] = until_us
            return
        clock[NOW_US] = due_us
        if number < 0:
            arrive(path, due_us)
        elif finish_step(path, number, due_us) > 0:
            release_held(path, due_us)
