"""What one tick leaves for the next. Three parts, by what becomes of them when the operator restarts.

- `Safety` is stored in each service's `status.memory` and changes only with a decision: a restart resumes from it.
- `Learned` is stored in a ServiceCheckpoint at most once in ten minutes: losing it costs caution, not correctness.
- `Recent` lives in the process and in the journal's keyframes only. It holds times of the loop's own clock, which mean
  nothing to another process; without it nothing is removed for one stable window.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from forebay.core.units import UNKNOWN

if TYPE_CHECKING:
    from forebay.core.fleet import FleetSpec
    from forebay.core.units import I64

# 60 whole seconds of the stable window, the second that is filling, and room for readings that arrive late.
RING_SECONDS: Final = 64
SCALE_BINS: Final = 26  # of 1/10 each: 0.5 to 3.0
LEAD_BINS: Final = 32  # of a fifth of an octave or so each: 50 ms to about 35 min
RISE_BINS: Final = 48  # see learning.RISE_BOUNDS

# A checkpoint that was never written: an answer of 256 tokens and a prompt of 512 are what chat traffic averages, and
# weigh as much as 4 requests, so that the first ten real ones outweigh them.
PRIOR_REQUESTS: Final = 4
PRIOR_ANSWER_TOKENS: Final = 256
PRIOR_PROMPT_TOKENS: Final = 512
# So long a service without traffic is new, and its demand unknown, not zero: minReplicas stands for it. After that it
# is a service that nobody uses, and keeps no warm pool.
NEW_MS: Final = 600_000
# Poisson traffic has a dispersion of 1: as much evidence as half a minute of arrivals gives.
PRIOR_DISPERSION: Final = 32


@dataclass(frozen=True, slots=True)
class Safety:
    """What must never be forgotten: the last decision. UNKNOWN before the first one. [S]."""

    replicas_serving: I64
    replicas_warm: I64


@dataclass(frozen=True, slots=True)
class Learned:
    """What was measured of a service's engine and traffic. Sums that grow large are halved: old news fades. [S]."""

    time_scale: I64  # [S, SCALE_BINS] seconds in which steps took that many tenths of what the model says
    lead_cold: I64  # [S, LEAD_BINS] starts that took that long, pod created until ready
    lead_promote: I64  # [S, LEAD_BINS] promotions that took that long, decided until the label was seen
    rise: I64  # [S, RISE_BINS] periods of one cold lead time in which the need rose so far above the base
    answers_twice: I64  # answers ended, twice; a running one counts once, as half of it is written on the mean
    answer_tokens: I64
    prompts: I64
    prompt_tokens: I64
    prefix_query_tokens: I64
    prefix_hit_tokens: I64
    arrivals_square_error: I64  # squared distance of a second's arrivals from their mean, in thousandths
    arrivals_expected: I64  # those means, in thousandths: the quotient is the dispersion, 1 for Poisson traffic
    base_micro: I64  # need between bursts, in millionths of a replica; 0: no traffic yet


@dataclass(frozen=True, slots=True)
class Ring:
    """One row a second, one column a service: row `second % RING_SECONDS`. [RING_SECONDS, S]."""

    arrivals: I64  # requests that gateways saw
    arrival_prompt_tokens: I64
    entered: I64  # requests that engines saw
    entered_prompt_tokens: I64
    running: I64  # requests in the batches x milliseconds
    running_ms: I64  # milliseconds that `running` speaks of


@dataclass(frozen=True, slots=True)
class ReplicaBaseline:
    """The last reading of each replica, which the next one is compared with. One row a replica, sorted by uid. [R]."""

    uid: tuple[str, ...]
    state: I64
    ready: I64  # 0 or 1
    read_ms: I64  # when the numbers below were read; UNKNOWN: never
    progress_ms: I64  # when it last made a token, or had nothing to do
    prompt_tokens_total: I64
    generation_tokens_total: I64
    prefix_query_tokens_total: I64
    prefix_hit_tokens_total: I64
    requests_finished_total: I64
    ttft_sum_ms: I64
    ttft_count: I64
    itl_sum_ms: I64
    itl_count: I64
    requests_running: I64
    requests_waiting: I64


@dataclass(frozen=True, slots=True)
class GatewayBaseline:
    """The last reading of each (gateway, service) pair, sorted likewise. [G]."""

    uid: tuple[str, ...]
    service: I64
    read_ms: I64
    arrivals_total: I64
    arrival_prompt_tokens_total: I64


@dataclass(frozen=True, slots=True)
class Timers:
    """Clocks and charts of each service, in milliseconds of the loop's clock. [S]."""

    since_ms: I64  # when this row was made: the windows hold nothing older
    new_until_ms: I64  # until when a service without traffic is new rather than unused; UNKNOWN: it has had a base
    busy_ms: I64  # when a request was last seen
    traffic_since_ms: I64  # when traffic began; UNKNOWN while there is none
    chart: I64  # evidence that arrivals have risen, in thousandths of a nat
    chart_since_s: I64  # the second in which that evidence began
    expected_milli: I64  # arrivals a second that the next look is expected to bring, in thousandths
    burst_since_s: I64  # the second in which a detected burst began; UNKNOWN: none
    above_base_since_ms: I64  # since when the need is twice that; UNKNOWN: it is not
    period_since_ms: I64  # the period of one cold lead time that `Learned.rise` counts
    period_most: I64  # the most replicas that were needed above the base in it
    needed: I64  # serving replicas that the last decision had a need for; UNKNOWN: there was none
    shrink_half_ms: I64  # when this half of the scale-down delay began; UNKNOWN: all of them are needed
    shrink_most: I64  # the most that were needed in this half
    shrink_before: I64  # ... and in the half before; UNKNOWN: there was none
    shrink_to: I64  # what has sufficed for a whole delay; UNKNOWN: it has not passed
    release_half_ms: I64  # likewise for serving and warm replicas together
    release_most: I64
    release_before: I64
    release_to: I64
    shrunk_ms: I64  # when fewer serving replicas were last needed; UNKNOWN: never
    shrunk_from: I64
    shrunk_need_milli: I64
    regret_until_ms: I64  # until when a removal that was taken back is not tried again; UNKNOWN: none was
    regret_replicas: I64
    regret_need_milli: I64
    high_milli: I64  # what the need comes back to, in thousandths of a replica; it falls over minutes
    low_ms: I64  # since when the need is less than half of that; UNKNOWN: it is not
    delay_ms: I64  # the scale-down delay as gaps between bursts have stretched it; UNKNOWN: as the service says
    delayed_ms: I64  # when that last changed; UNKNOWN: never
    raised_ms: I64  # when more serving replicas were last asked for; UNKNOWN: never, or they have come
    retry_ms: I64  # when replicas that found no node are tried again; UNKNOWN: none is withdrawn
    backoff_ms: I64


@dataclass(frozen=True, slots=True)
class Recent:
    """What only this process needs."""

    now_ms: int  # of the last tick
    ring: Ring
    timers: Timers
    replicas: ReplicaBaseline
    gateways: GatewayBaseline


@dataclass(frozen=True, slots=True)
class Memory:
    """Everything that one tick leaves for the next; rows as in `services`."""

    services: tuple[str, ...]
    safety: Safety
    learned: Learned
    recent: Recent


Columns = TypeVar("Columns", Safety, Learned, Ring, Timers)


def initial_memory(fleet: FleetSpec, now_ms: int) -> Memory:
    """Remember nothing yet.

    Parameters
    ----------
    fleet
        The services to remember.
    now_ms
        Of the loop's clock. Nothing is removed for one stable window from here.

    Returns
    -------
    Memory
        The first tick keeps as many replicas as it finds.
    """
    count = len(fleet.services)
    return Memory(
        services=fleet.services,
        safety=Safety(*(np.full(count, UNKNOWN) for _ in fields(Safety))),
        learned=_prior(fleet),
        recent=Recent(
            now_ms=now_ms,
            ring=Ring(*(np.zeros((RING_SECONDS, count), np.int64) for _ in fields(Ring))),
            timers=_fresh_timers(count, now_ms),
            replicas=ReplicaBaseline((), *(np.zeros(0, np.int64) for _ in fields(ReplicaBaseline)[1:])),
            gateways=GatewayBaseline((), *(np.zeros(0, np.int64) for _ in fields(GatewayBaseline)[1:])),
        ),
    )


def carry(memory: Memory, fleet: FleetSpec, now_ms: int) -> Memory:
    """Bring memory into the rows of a changed fleet: services stay, come and go; each keeps what is its own.

    Parameters
    ----------
    memory
        Of the last tick.
    fleet
        The specification from now on.
    now_ms
        When services that are new here begin to be remembered.

    Returns
    -------
    Memory
        The same object where the services are the same ones.
    """
    if memory.services == fleet.services:
        return memory
    row = {service: place for place, service in enumerate(memory.services)}
    source = np.array([row.get(service, len(row)) for service in fleet.services], np.int64)
    fresh = initial_memory(fleet, now_ms)
    gateways = memory.recent.gateways
    target = np.full(len(row) + 1, -1, np.int64)
    target[source] = np.arange(len(source))
    target[-1] = -1
    moved = target[gateways.service]
    kept = moved >= 0
    return Memory(
        services=fleet.services,
        safety=_pick(memory.safety, fresh.safety, source),
        learned=_pick(memory.learned, fresh.learned, source),
        recent=Recent(
            now_ms=memory.recent.now_ms,
            ring=_pick(memory.recent.ring, fresh.recent.ring, source, axis=1),
            timers=_pick(memory.recent.timers, fresh.recent.timers, source),
            replicas=memory.recent.replicas,
            gateways=GatewayBaseline(
                tuple(uid for uid, keep in zip(gateways.uid, kept, strict=True) if keep),
                moved[kept],
                *(getattr(gateways, field.name)[kept] for field in fields(GatewayBaseline)[2:]),
            ),
        ),
    )


def with_rows(columns: Columns, rows: list[int], values: dict[str, Any]) -> Columns:
    """Return the columns with some services' rows written anew; the columns that `values` lacks stay."""
    changed = {name: getattr(columns, name).copy() for name in values}
    for name, value in values.items():
        changed[name][rows] = value
    return replace(columns, **changed)


def _pick(old: Columns, fresh: Columns, source: I64, axis: int = 0) -> Columns:
    """Take each row from `old` where `source` names one, from `fresh` where it points past the end."""
    picked = {}
    for field in fields(old):
        before, new = getattr(old, field.name), getattr(fresh, field.name)
        is_old = source < before.shape[axis]
        chosen = new.copy()
        if axis == 0:
            chosen[is_old] = before[source[is_old]]
        else:
            chosen[:, is_old] = before[:, source[is_old]]
        picked[field.name] = chosen
    return type(old)(**picked)


def _fresh_timers(count: int, now_ms: int) -> Timers:
    """Start every clock; what has not happened yet is UNKNOWN."""
    zero = ("chart", "expected_milli", "period_most", "high_milli", "backoff_ms")
    started = ("since_ms", "busy_ms", "period_since_ms")
    start = dict.fromkeys(zero, 0) | dict.fromkeys(started, now_ms) | {"new_until_ms": now_ms + NEW_MS}
    return Timers(**{field.name: np.full(count, start.get(field.name, UNKNOWN), np.int64) for field in fields(Timers)})


def _prior(fleet: FleetSpec) -> Learned:
    """Know nothing of the engine but that the model may be right, and nothing of traffic but what is usual."""
    count = len(fleet.services)

    def column(value: int) -> I64:
        return np.full(count, value, np.int64)

    return Learned(
        time_scale=np.zeros((count, SCALE_BINS), np.int64),
        lead_cold=np.zeros((count, LEAD_BINS), np.int64),
        lead_promote=np.zeros((count, LEAD_BINS), np.int64),
        rise=np.zeros((count, RISE_BINS), np.int64),
        answers_twice=column(2 * PRIOR_REQUESTS),
        answer_tokens=column(PRIOR_REQUESTS * PRIOR_ANSWER_TOKENS),
        prompts=column(PRIOR_REQUESTS),
        prompt_tokens=column(PRIOR_REQUESTS * PRIOR_PROMPT_TOKENS),
        prefix_query_tokens=column(0),
        prefix_hit_tokens=column(0),
        arrivals_square_error=column(PRIOR_DISPERSION * 1000),
        arrivals_expected=column(PRIOR_DISPERSION * 1000),
        base_micro=column(0),
    )
