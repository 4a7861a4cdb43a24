"""How well the engine model, with the constants of one half of the time, predicts the other half.

A load is recorded several times. The same requests at the same times do not get the same answer times twice, from the
same engine: that difference is the yardstick beside which a prediction's error has to be seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from forebay.sim.calibrate.fit import Fit, fit
from forebay.sim.calibrate.loads import SWEEP
from forebay.sim.calibrate.replay import predict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.core.units import I64
    from forebay.sim.calibrate.recording import Recording
    from forebay.sim.trace import Trace

AIMS_PERMILLE = {50: 50, 99: 100}  # by percentile: how far a prediction may be off
RUN_FACTOR_PERMILLE = 1500  # or so much of the engine's own difference between runs, whichever is more


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one load."""

    load: str
    signal: str  # TTFT or ITL
    percentile: int
    predicted_us: int
    measured_us: int  # mean over the runs
    error_permille: int  # of the prediction, signed
    between_runs_permille: int  # largest less smallest of the runs; 0 with one run

    @property
    def allowed_permille(self) -> int:
        """How far off the prediction may be."""
        return max(AIMS_PERMILLE[self.percentile], self.between_runs_permille * RUN_FACTOR_PERMILLE // 1000)

    @property
    def within(self) -> bool:
        """Whether the prediction is good enough."""
        return abs(self.error_permille) <= self.allowed_permille


@dataclass(frozen=True, slots=True)
class Comparison:
    """Fit and judgement of one engine's recordings."""

    fit: Fit
    rows: tuple[Row, ...]
    preemptions: dict[str, tuple[int, int]]  # by load: predicted and measured, of the first run


def half_us(trace: Trace) -> int:
    """Split a recorded load: requests sent before are fitted, requests sent from here on are predicted."""
    return trace.duration_us // 2


def calibrate(recordings: Sequence[Recording]) -> Comparison:
    """Fit on the sweep and on the first half of each load's first run; predict the second half of all runs.

    Raises
    ------
    UnfitError
        When the recordings do not determine the constants.
    """
    learned = [recording for recording in recordings if recording.load == SWEEP or recording.run == 1]
    ends = [None if recording.load == SWEEP else half_us(recording.trace) for recording in learned]
    constants = fit(learned, ends)
    rows: list[Row] = []
    preemptions: dict[str, tuple[int, int]] = {}
    served = sorted((r for r in recordings if r.load != SWEEP), key=lambda recording: recording.load)
    for load, group in groupby(served, key=lambda recording: recording.load):
        runs = list(group)
        predicted = [_predict(run, constants) for run in runs]
        preemptions[load] = (predicted[0][1], runs[0].preemptions)
        rows += _rows(load, runs, [tokens for tokens, _ in predicted])
    return Comparison(constants, tuple(rows), preemptions)


def _predict(run: Recording, constants: Fit) -> tuple[Recording, int]:
    settings = run.facts.settings(constants.times)
    told = predict(run.trace, settings, constants.front_us, noise_permille=constants.noise_permille, seed=run.run)
    return replace(run, token_us=told.token_us), told.preemptions


def _rows(load: str, runs: list[Recording], predicted: list[Recording]) -> list[Row]:
    rows = []
    for signal, read in (("TTFT", ttft_us), ("ITL", itl_us)):
        for percentile in AIMS_PERMILLE:
            measured = [float(np.percentile(read(run), percentile)) for run in runs]
            told = float(np.mean([np.percentile(read(run), percentile) for run in predicted]))
            mean = float(np.mean(measured))
            rows.append(
                Row(
                    load=load,
                    signal=signal,
                    percentile=percentile,
                    predicted_us=round(told),
                    measured_us=round(mean),
                    error_permille=round(1000 * (told - mean) / mean),
                    between_runs_permille=round(1000 * (max(measured) - min(measured)) / mean),
                )
            )
    return rows


def ttft_us(run: Recording) -> I64:
    """Return the TTFT of each request of the second half."""
    late = run.trace.arrival_us >= half_us(run.trace)
    waits: I64 = (run.token_us[run.offsets[:-1]] - run.trace.arrival_us)[late]
    return waits


def itl_us(run: Recording) -> I64:
    """Return the gap before each further token of the second half's requests."""
    owner = np.repeat(np.arange(len(run.trace)), run.trace.output_tokens)
    late = (run.trace.arrival_us >= half_us(run.trace))[owner]
    gaps: I64 = np.diff(run.token_us)[(owner[1:] == owner[:-1]) & late[1:]]
    return gaps
