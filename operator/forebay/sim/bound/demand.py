"""The least work that each request asks of any fleet, and between which two instants.

Every inequality here is argued in docs/concepts/clairvoyant-bound.md. Work is the time of one replica; each piece of a
request's work must be done inside its window by whoever answers the request in time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from forebay.sim.bound.prefix import reuse

if TYPE_CHECKING:
    from forebay.core.goodness import Targets
    from forebay.core.units import I64, Bool
    from forebay.engine_model.step_time import StepTimes
    from forebay.sim.trace import Trace

F64: TypeAlias = NDArray[np.float64]

PS_PER_US = 1e6
FS_PER_US = 1e9
US_PER_MS = 1000
CLOCK_US = 1000  # promises are judged in whole milliseconds, so whoever is late by less may still count as good
SEGMENTS = 4  # of an answer; against one, the bound of a chat trace rises by 0.7 % and with tight targets by 2 %
PIECES = 1 + SEGMENTS + 1  # prefill, segments of the answer, and what is known of the answer only as a whole


class Scarce(StrEnum):
    """What keeps a batch small, and so a step's fixed cost dear; the dearest over the whole trace."""

    SEATS = "seats"
    KV = "kv"
    ITL = "itl"


@dataclass(frozen=True, slots=True)
class Demand:
    """N requests in PIECES pieces each; times in microseconds."""

    servable: Bool  # [N] False: late even when alone on a replica with all of its prefix cached
    work_us: F64  # [N, PIECES] of one replica; 0 for those that are not servable
    release_us: F64  # [N, PIECES]
    deadline_us: F64  # [N, PIECES]
    scarce: Scarce


@dataclass(frozen=True, slots=True)
class _Answers:
    """What follows of the lengths alone; [N] each, [N, SEGMENTS + 1] for the edges of the segments."""

    edges: F64  # tokens after the first one at which a segment begins; the last: all of them
    edge_context: F64  # tokens of context of all decodes up to there, summed
    edge_us: F64  # how long those decodes take alone on a replica
    isolated_us: F64  # the prefill, alone and with everything cached that could be
    prefill_us: F64  # the same without the step's fixed cost
    ttft_us: F64  # most that the first token may take
    rest_us: F64  # most that all others may take


def _triangle(count: F64) -> F64:
    return count * (count + 1) / 2


def _answers(trace: Trace, times: StepTimes, targets: Targets, cached: I64) -> _Answers:
    prompt = trace.prompt_tokens.astype(np.float64)
    edges = ((trace.output_tokens - 1)[:, None] * np.arange(SEGMENTS + 1) // SEGMENTS).astype(np.float64)
    context = edges * prompt[:, None] + _triangle(edges)
    edge_us = ((times.c0_ps + times.c1_ps) * edges + times.c2_ps * context) / PS_PER_US
    pairs = prompt**2 - cached.astype(np.float64) ** 2
    prefill_us = times.p1_ps * (prompt - cached) / PS_PER_US + times.p2_fs * pairs / FS_PER_US
    per_1k = targets.ttft_per_1k_prompt_tokens_ms * trace.prompt_tokens // 1000
    return _Answers(
        edges=edges,
        edge_context=context,
        edge_us=edge_us,
        isolated_us=times.c0_ps / PS_PER_US + prefill_us,
        prefill_us=prefill_us,
        ttft_us=((targets.ttft_ms + per_1k) * US_PER_MS + CLOCK_US).astype(np.float64),
        rest_us=targets.itl_mean_ms * US_PER_MS * edges[:, -1] + CLOCK_US,
    )


def _itl_steps(answers: _Answers, prompt: F64, times: StepTimes) -> F64:
    """Return the least steps that an answer pays for when its mean ITL is kept.

    A step's price is shared by what each decode in it costs; by Cauchy and Schwarz the sum of shares is least when the
    longer decodes run in the longer steps.
    """
    decodes = answers.edges[:, -1]
    first_us = (times.c1_ps + times.c2_ps * (prompt + 1)) / PS_PER_US
    last_us = (times.c1_ps + times.c2_ps * (prompt + decodes)) / PS_PER_US
    root = (np.sqrt(first_us) + np.sqrt(last_us)) / 2  # below the mean root, which is concave in the context
    spare_us = answers.rest_us - decodes * (times.c0_ps / PS_PER_US)
    steps: F64 = np.divide((decodes * root) ** 2, spare_us, out=np.zeros_like(root), where=spare_us > 0)
    return steps


def demand(trace: Trace, times: StepTimes, batch_max: int, kv_tokens: int, targets: Targets) -> Demand:
    """Work out the pieces of every request.

    Parameters
    ----------
    trace
        N requests.
    times
        Of the fastest replica of the world.
    batch_max
        Most requests in one step (`max_num_seqs`).
    kv_tokens
        Tokens that one replica's KV cache holds, or more.
    targets
        What makes a request good.

    Raises
    ------
    ValueError
        When a replica has no seat or no cache.
    """
    if batch_max < 1 or kv_tokens < 1:
        raise ValueError(f"a replica needs batch_max >= 1 and kv_tokens >= 1, got {batch_max} and {kv_tokens}")
    shared = reuse(trace)
    prompt = trace.prompt_tokens.astype(np.float64)
    answers = _answers(trace, times, targets, shared.earlier)
    decodes = answers.edges[:, -1]
    servable = (
        (answers.isolated_us <= answers.ttft_us)
        & ((decodes == 0) | (answers.edge_us[:, -1] <= answers.rest_us))
        & (prompt + decodes <= kv_tokens)
    )
    held = prompt - shared.anyone  # KV that nobody else can hold for it
    steps = {scarce: np.zeros((len(trace), PIECES)) for scarce in Scarce}
    steps[Scarce.SEATS][:, 0] = 1 / batch_max
    steps[Scarce.SEATS][:, 1:-1] = np.diff(answers.edges) / batch_max
    steps[Scarce.KV][:, 0] = held / kv_tokens
    steps[Scarce.KV][:, 1:-1] = np.diff(answers.edges * held[:, None] + _triangle(answers.edges)) / kv_tokens
    steps[Scarce.ITL][:, -1] = _itl_steps(answers, prompt, times)
    scarce = max(Scarce, key=lambda each: float(steps[each][servable].sum()))
    work_us = steps[scarce] * (times.c0_ps / PS_PER_US)
    work_us[:, 0] += answers.prefill_us
    work_us[:, 1:-1] += (times.c1_ps * np.diff(answers.edges) + times.c2_ps * np.diff(answers.edge_context)) / PS_PER_US
    release_us, deadline_us = _windows(trace.arrival_us.astype(np.float64), answers)
    return Demand(servable, np.where(servable[:, None], work_us, 0), release_us, deadline_us, scarce)


def _windows(arrival_us: F64, answers: _Answers) -> tuple[F64, F64]:
    """Return when each piece can begin and must have ended, [N, PIECES]: nobody is faster than alone on a replica."""
    first_us = arrival_us + answers.ttft_us
    end_us = first_us + answers.rest_us
    prefilled_us = arrival_us + answers.isolated_us
    release_us, deadline_us = np.empty((2, len(arrival_us), PIECES))
    release_us[:, 0], deadline_us[:, 0] = arrival_us, first_us
    release_us[:, 1:-1] = prefilled_us[:, None] + answers.edge_us[:, :-1]
    deadline_us[:, 1:-1] = end_us[:, None] - (answers.edge_us[:, -1:] - answers.edge_us[:, 1:])
    release_us[:, -1], deadline_us[:, -1] = prefilled_us, end_us
    return release_us, deadline_us


def work_us(trace: Trace, times: StepTimes, batch_max: int, kv_tokens: int, targets: Targets) -> I64:
    """Return the least time of one replica that each request takes, [N] in microseconds, rounded down.

    Parameters and errors are those of `demand`. 0 for a request that no replica can serve in time.
    """
    whole: I64 = np.floor(demand(trace, times, batch_max, kv_tokens, targets).work_us.sum(axis=1)).astype(np.int64)
    return whole
