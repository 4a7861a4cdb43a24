"""The world that nobody may read: this replica's true step times, its noise, and how long its start takes.

The operator knows the prior. What is drawn here differs from it as real machines differ from a table, and stays in this
process: it is in no metric and in no log above DEBUG.
"""

from __future__ import annotations

import math
from dataclasses import astuple
from random import Random
from typing import TYPE_CHECKING

from forebay.engine_model.step_time import StepTimes

if TYPE_CHECKING:
    from forebay.wire.replica_config import Emulation

STRAGGLER_PERMILLE = 20  # of the replicas: a hot card, a noisy neighbour
STRAGGLER_FACTOR = 2
START_SIGMA_PERMILLE = 100  # 90 s become 74 to 110 s in 19 of 20 starts
_PERMILLE = 1000


class World:
    """One replica's draws: the same for the same seed and pod name.

    Parameters
    ----------
    emulation
        The prior and how far the world may be from it.
    pod_name
        Tells replicas apart.
    """

    def __init__(self, emulation: Emulation, pod_name: str) -> None:
        self._dice = Random(f"{emulation.seed}/{pod_name}")  # noqa: S311 - a repeatable world, not a secret
        self._noise = emulation.step_noise_permille / _PERMILLE
        prior = StepTimes(
            emulation.step_c0_ps,
            emulation.step_c1_ps,
            emulation.step_c2_ps,
            emulation.step_p1_ps,
            emulation.step_p2_fs,
        )
        error = emulation.model_error_permille / _PERMILLE
        constants = [round(value * self._lognormal(error)) for value in astuple(prior)]
        self.straggles = self._dice.randrange(_PERMILLE) < STRAGGLER_PERMILLE
        slow = STRAGGLER_FACTOR if self.straggles else 1
        self.step_times = StepTimes(*(value * slow for value in constants))
        self.cold_start_s = emulation.cold_start_ms / 1000 * self._lognormal(START_SIGMA_PERMILLE / _PERMILLE)

    def step_ps(self, duration_ps: int) -> int:
        """Return how long a step takes this time."""
        return round(duration_ps * self._lognormal(self._noise))

    def _lognormal(self, sigma: float) -> float:
        return math.exp(self._dice.gauss(0.0, sigma))
