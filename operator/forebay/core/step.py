"""DECIDE: the whole judgement, top to bottom, a stage a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.core.decision import Decisions
    from forebay.core.fleet import FleetSpec
    from forebay.core.memory import Memory
    from forebay.core.snapshot import Snapshot

STAGES = ("demand", "backlog", "headroom", "warm-pool", "consolidation", "bounds", "gpu-budget", "disruption")


def step(fleet: FleetSpec, memory: Memory, snapshot: Snapshot) -> tuple[Memory, Decisions]:
    """Judge the whole fleet once.

    Parameters
    ----------
    fleet
        What every service is told to be.
    memory
        What the last tick left; its services must be the fleet's (see `forebay.core.memory.carry`).
    snapshot
        What is seen now; `now_ms` must not lie before the last tick's.

    Returns
    -------
    tuple
        The memory for the next tick, and the verdicts. The arguments are left as they were.
    """
    raise NotImplementedError
