"""What a simulated run was worth: who got what was promised, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from forebay.sim.datapath import layout
from forebay.sim.datapath.layout import SCORES

if TYPE_CHECKING:
    from forebay.core.units import I64
    from forebay.sim.service import SimulatedService

HOUR_US = 3_600_000_000
# Recovery from a step, as the demo's scorecard has it: the first ten seconds of which 99 % of the arrivals were good.
RECOVERY_WINDOW_S = 10
RECOVERY_PERMILLE = 990


@dataclass(frozen=True, slots=True)
class Score:
    """One service's run. Shares are of all requests that arrived: who was refused or never answered had nothing."""

    requests: int
    answered: int
    refused: int
    failed: int
    unfinished: int
    goodput: float  # of the service's own targets
    goodput_by_class: tuple[float, ...]  # of every class that was scored, the service's own first
    ttft_attained: float
    itl_attained: float
    ttft_ms: tuple[int, int, int]  # p50, p95, p99 of the answered ones
    itl_ms: tuple[float, float, float]  # of the requests' mean ITL
    gpu_hours: float  # held until the trace's end: starting, warm, serving, draining
    gpu_hours_by_state: dict[str, float]
    generation_tokens: int
    scale_actions: int
    steps: int


def score_of(service: SimulatedService) -> Score:
    """Read a service's run off its arrays."""
    clock, path = service.path.clock, service.path
    requests = len(service.trace)
    shares = np.asarray(path.score).reshape(-1, SCORES) / requests
    answered, refused, failed = (int(clock[field]) for field in (layout.ANSWERED, layout.REFUSED, layout.FAILED))
    by_state = {state.name.lower(): us / HOUR_US for state, us in service.gpu_us.items()}
    return Score(
        requests=requests,
        answered=answered,
        refused=refused,
        failed=failed,
        unfinished=requests - answered - refused - failed,
        goodput=float(shares[0, layout.GOOD]),
        goodput_by_class=tuple(float(row[layout.GOOD]) for row in shares),
        ttft_attained=float(shares[0, layout.GOOD_TTFT]),
        itl_attained=float(shares[0, layout.GOOD_ITL]),
        ttft_ms=_quantiles(np.asarray(path.ttft_ms)),
        itl_ms=tuple(tenth / 10 for tenth in _quantiles(np.asarray(path.itl_10th_ms))),  # type: ignore[arg-type]
        gpu_hours=sum(by_state.values()),
        gpu_hours_by_state=by_state,
        generation_tokens=service.total(layout.GENERATION_TOTAL),
        scale_actions=service.actions,
        steps=int(clock[layout.STEPS]),
    )


def _quantiles(bins: I64) -> tuple[int, int, int]:
    below = np.cumsum(bins)
    if below[-1] == 0:
        return 0, 0, 0
    return tuple(int(np.searchsorted(below, below[-1] * share)) for share in (0.5, 0.95, 0.99))  # type: ignore[return-value]


def recovery_s(service: SimulatedService, step_s: int) -> int | None:
    """Return the seconds from a step until users have what was promised again.

    Parameters
    ----------
    service
        After its run.
    step_s
        When demand rose.

    Returns
    -------
    int or None
        From the step to the start of the first ten seconds of which 99 % of the arrivals were good; None: never.
    """
    arrived = np.asarray(service.path.second_arrived)[step_s:]
    good = np.asarray(service.path.second_good)[step_s:]
    if len(arrived) < RECOVERY_WINDOW_S:
        return None
    window = np.ones(RECOVERY_WINDOW_S, np.int64)
    came, had = np.convolve(arrived, window, "valid"), np.convolve(good, window, "valid")
    recovered = np.flatnonzero(had * 1000 >= came * RECOVERY_PERMILLE)
    return int(recovered[0]) if len(recovered) else None
