"""From recordings to the five constants of a step, and what a request costs outside of it: robust least squares.

The recordings say how long each step took, the scheduling rules say what was in it (`follow`), and the step
time is a straight line in that. Which request joined which step depends a little on the constants themselves, so a
first fit leads the second. Nothing here is tuned to an engine: only loads that set the terms apart make a fit good,
which the standard errors show.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import least_squares  # type: ignore[import-untyped]  # scipy ships no types

from forebay.engine_model.step_time import FS_PER_PS, StepTimes
from forebay.sim.calibrate.follow import follow, gather
from forebay.sim.calibrate.replay import PS_PER_US

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.sim.calibrate.follow import F64
    from forebay.sim.calibrate.recording import Recording

ROUNDS = 2  # of leading and fitting: a third changes no constant by more than 0.3 % (measured on a real vLLM)
_TELLING_US = 1  # a shorter gap is two tokens read from the network at once, and says nothing of a step
_CONDITION_MAX = 1e6  # of the scaled columns; 10 to 100 with the loads of `loads.sweep`
_OUTLIER = 0.05  # residuals beyond this share of a step count linearly, not squared: pauses of either program
_NORMAL_MAD = 1.4826  # standard deviation of a normal distribution over its median absolute deviation


class UnfitError(ValueError):
    """These recordings do not determine the constants; the message says which and what to record."""


NAMES = ("front", "c0", "c1", "c2", "p1", "p2")  # the prices of follow.WORK


@dataclass(frozen=True, slots=True)
class Fit:
    """The constants of one engine."""

    times: StepTimes
    front_us: int  # of a request outside the engine's loop
    noise_permille: int  # spread of one step about its price
    errors_permille: dict[str, int]  # standard error of each constant, by its name in NAMES
    rows: int  # steps used
    rows_left_out: int  # steps whose tokens did not come together, so that the model took another step


def fit(recordings: Sequence[Recording], until_us: Sequence[int | None] | None = None) -> Fit:
    """Fit the constants.

    Parameters
    ----------
    recordings
        Of one engine; together they must vary the batch, the context and the prompts.
    until_us
        For each recording the time after which it is not looked at; None: to its end.

    Raises
    ------
    UnfitError
        When some constant does not matter in any step, as prompts of equal length cannot tell p1 from p2.
    """
    ends = until_us if until_us is not None else [None] * len(recordings)
    prices = np.array([0.0, *_crude(recordings)])
    for _ in range(ROUNDS):
        times, front_us = _times(prices), round(float(prices[0]))
        steps = gather(
            [follow(recording, times, front_us, end) for recording, end in zip(recordings, ends, strict=True)]
        )
        together = (steps.gap_us > _TELLING_US) & (steps.apart_us < steps.gap_us / 2)
        work, gap_us = steps.work[together], steps.gap_us[together]
        expected_us = work @ prices if prices[0] else gap_us
        prices, errors, noise = _solve(work / expected_us[:, None], gap_us / expected_us)
    return Fit(
        times=_times(prices),
        front_us=round(float(prices[0])),
        noise_permille=round(1000 * noise),
        errors_permille=dict(zip(NAMES, errors, strict=True)),
        rows=int(together.sum()),
        rows_left_out=int((~together).sum()),
    )


def _crude(recordings: Sequence[Recording]) -> list[float]:
    """Start from a step that costs as much as the median gap, whatever is in it."""
    gaps = np.concatenate([np.diff(recording.token_us) for recording in recordings])
    return [float(np.median(gaps[gaps > _TELLING_US])), 0, 0, 0, 0]


def _solve(work: F64, gap: F64) -> tuple[F64, list[int], float]:
    """Fit gaps near 1: the prices, their standard errors in permille of themselves, and the spread of a step."""
    scale = np.sqrt((work**2).sum(axis=0))
    if (scale == 0).any() or np.linalg.cond(work / scale) > _CONDITION_MAX:
        idle = [name for name, size in zip(NAMES, scale, strict=True) if size == 0]
        raise UnfitError(
            f"the recordings do not set the constants apart ({', '.join(idle) or 'all vary together'}): record batches "
            f"and prompts of several sizes, as `forebay calibrate --url` does"
        )
    scaled = work / scale
    start = np.linalg.lstsq(scaled, gap, rcond=None)[0].clip(0)
    solution = least_squares(
        lambda prices: scaled @ prices - gap,
        start,
        jac=lambda _: scaled,
        bounds=(0, np.inf),
        loss="soft_l1",
        f_scale=_OUTLIER,
    )
    noise = float(_NORMAL_MAD * np.median(np.abs(scaled @ solution.x - gap)))
    spread = np.sqrt(np.diag(np.linalg.inv(scaled.T @ scaled))) * noise
    errors = [
        round(1000 * min(1.0, float(error / price))) if price else 1000
        for error, price in zip(spread, solution.x, strict=True)
    ]
    return solution.x / scale, errors, noise


def _times(prices: F64) -> StepTimes:
    """Round microseconds to the model's whole picoseconds."""
    c0, c1, c2, p1, p2 = (float(price) * PS_PER_US for price in prices[1:])
    return StepTimes(max(1, round(c0)), round(c1), round(c2), round(p1), round(p2 * FS_PER_PS))
