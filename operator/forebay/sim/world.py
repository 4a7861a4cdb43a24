"""The world that nobody may read: true step times of each replica, its noise, how long it starts, what befalls it.

The judgement knows the prior. What is drawn here differs from it as real machines differ from a table; it reaches the
judgement only through what a `/metrics` page offers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from forebay.core.units import I64

STRAGGLER_SHARE = 0.02  # of the replicas: a hot card, a noisy neighbour
STRAGGLER_FACTOR = 2
_START_LEAST_S = 20.0


@dataclass(frozen=True, slots=True)
class World:
    """How the simulated world draws; equal seeds draw equally.

    Attributes
    ----------
    seed
        Of all dice.
    model_error
        Standard deviation of the logarithm of (true constant / prior), of each replica and constant.
    noise_milli
        Standard deviation of a step's time, in thousandths of it.
    stragglers
        Whether STRAGGLER_SHARE of the replicas are STRAGGLER_FACTOR times as slow.
    cold_s, cold_sd_s
        Mean and standard deviation of a cold start.
    promote_ms
        From the decision until traffic arrives at a warm replica.
    """

    seed: int
    model_error: float = 0.25
    noise_milli: int = 50
    stragglers: bool = True
    cold_s: float = 110.0
    cold_sd_s: float = 20.0
    promote_ms: int = 200

    @property
    def exact(self) -> World:
        """The same world without any error of the model: what regret is also reported for."""
        return World(self.seed, 0.0, self.noise_milli, False, self.cold_s, self.cold_sd_s, self.promote_ms)

    def replica(self, prior: I64, service: int, number: int) -> tuple[I64, int, int]:
        """Draw one replica.

        Parameters
        ----------
        prior
            [5] constants of the step time.
        service, number
            Which replica of which service, counted from the beginning.

        Returns
        -------
        tuple
            True constants, the time of its cold start in us, and the seed of its step noise.
        """
        dice = np.random.default_rng((self.seed, service, number))
        factors = np.exp(dice.normal(0.0, 1.0, 5) * self.model_error)
        slow = STRAGGLER_FACTOR if self.stragglers and dice.random() < STRAGGLER_SHARE else 1
        true = np.rint(prior * factors * slow).astype(np.int64)
        cold_s = max(_START_LEAST_S, dice.normal(self.cold_s, self.cold_sd_s))
        return true, int(cold_s * 1_000_000), int(dice.integers(0, 2**48))
