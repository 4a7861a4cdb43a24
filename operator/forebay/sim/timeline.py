"""What a simulated run looked like over time: one row a second, for plots and for whoever wants the numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forebay.core.snapshot import State
from forebay.sim.datapath import layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.core.units import I64
    from forebay.sim.service import SimulatedService

COUNTERS = (layout.TTFT_SUM_US, layout.TTFT_COUNT, layout.ITL_SUM_US, layout.ITL_COUNT)


class Timeline:
    """Notes every second of each service.

    Parameters
    ----------
    services
        Before their run.
    """

    def __init__(self, services: Sequence[SimulatedService]) -> None:
        self._services = services
        self._states: list[list[list[int]]] = [[] for _ in services]
        self._counters: list[list[list[int]]] = [[] for _ in services]

    def note(self) -> None:
        """Write down what is there now."""
        for place, service in enumerate(self._services):
            self._states[place].append([service.count(state) for state in State])
            self._counters[place].append([service.total(field) for field in COUNTERS])

    def replicas(self, place: int) -> I64:
        """Return [seconds, states] replicas of one service, states in the order of `State`."""
        return np.array(self._states[place], np.int64).reshape(-1, len(State))

    def counters(self, place: int) -> I64:
        """Return [seconds, 4] totals since the beginning: TTFT in us and its count, ITL in us and its count."""
        return np.array(self._counters[place], np.int64).reshape(-1, len(COUNTERS))
