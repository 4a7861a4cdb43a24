"""What befalls a fleet, by a seeded schedule, and the judgement that has to live with it.

Readings grow old, are missing or lie; engines start slowly and die; GPUs are lost; writes are refused; the operator
restarts; clocks jump. Each is done to the world or to what is seen of it; `core.step` is called as ever.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from forebay.core import codec
from forebay.core.memory import initial_memory
from forebay.core.snapshot import GatewayRows, ReplicaRows
from forebay.core.units import UNKNOWN
from forebay.sim.datapath.layout import SECOND_US
from forebay.sim.run import CLOCK_STARTS_MS, ForebayJudge
from forebay.sim.service import EMPTY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay.core.decision import Decisions
    from forebay.core.fleet import FleetSpec
    from forebay.core.memory import Memory
    from forebay.core.snapshot import Snapshot
    from forebay.core.units import Bool
    from forebay.sim.run import Pool
    from forebay.sim.service import SimulatedService

LEAST_US, MOST_US = 3 * SECOND_US, 25 * SECOND_US  # how long one lasts
CHECKPOINT_US = 60 * SECOND_US  # the operator's is ten minutes, which no short world would see
SLOW_TIMES = 4
SWAMPED, LEAP = 10**6, 10**12
JUMP_MOST_MS = 3_600_000

# What is read of an engine, as opposed to what the API server says of its pod.
_TOTALS = (
    "prompt_tokens_total",
    "generation_tokens_total",
    "prefix_query_tokens_total",
    "prefix_hit_tokens_total",
    "preemptions_total",
    "requests_finished_total",
    "ttft_sum_ms",
    "itl_sum_ms",
    "ttft_buckets",
    "itl_buckets",
)
_READINGS = ("age_ms", "requests_running", "requests_waiting", "kv_tokens_total", "kv_tokens_used", *_TOTALS)


class Kind(StrEnum):
    """What can befall one service, its pool or the operator."""

    STALE = "stale"  # its readings stay what they were
    MISSING = "missing"  # half of its replicas, its gateway or its pool's nodes cannot be read
    LYING = "lying"  # its engines' numbers are wrong
    SLOW_START = "slow-start"  # what starts meanwhile takes SLOW_TIMES as long
    DEATH = "death"  # one replica dies
    LOST_GPUS = "lost-gpus"  # half of the pool's GPUs are gone, with what ran on them
    CONFLICT = "conflict"  # nothing can be written for it
    RESTART = "restart"  # the operator is away, and comes back with what it had stored
    CLOCK_JUMP = "clock-jump"  # the loop's clock goes forward, the wall clock anywhere


class Lie(StrEnum):
    """What engines say that is not so."""

    IDLE = "idle"  # nothing runs, nothing waits
    SWAMPED = "swamped"  # a million requests wait
    RESET = "reset"  # all counters are 0
    LEAP = "leap"  # all counters are 10^12 further
    NO_CACHE = "no-cache"  # the KV cache has no slot, and more than that are in use


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one service, and the seed of what it leaves open."""

    kind: Kind
    row: int
    from_us: int
    until_us: int
    seed: int

    def lasts(self, now_us: int) -> bool:
        """Say whether it goes on."""
        return self.from_us <= now_us < self.until_us

    def dice(self) -> np.random.Generator:
        """Return its own dice, from their beginning."""
        return np.random.default_rng(self.seed)


def schedule(seed: int, services: int, from_us: int, until_us: int) -> tuple[Fault, ...]:
    """Draw a schedule in which every kind comes once, to services and at times by chance.

    Parameters
    ----------
    seed
        Equal seeds draw equally.
    services
        How many there are.
    from_us, until_us
        All begin and end between.
    """
    dice = np.random.default_rng(seed)
    drawn = []
    for kind in Kind:
        lasts_us = int(dice.integers(LEAST_US, MOST_US))
        begins_us = int(dice.integers(from_us, max(from_us + 1, until_us - lasts_us)))
        row, own = int(dice.integers(services)), int(dice.integers(2**32))
        drawn.append(Fault(kind, row, begins_us, begins_us + lasts_us, own))
    return tuple(sorted(drawn, key=lambda fault: fault.from_us))


class Faults:
    """What surrounds a judgement while things go wrong: a `forebay.sim.run.Surroundings`.

    Parameters
    ----------
    pools
        As the judgement has them.
    schedule
        What befalls them, and when.
    """

    def __init__(self, pools: Sequence[Pool], schedule: Sequence[Fault]) -> None:
        self._pools, self._schedule = pools, schedule
        self._begun: set[Fault] = set()
        self._frozen: dict[Fault, ReplicaRows] = {}
        self._ahead_ms = 0  # how far the loop's clock is ahead of the world's
        self._jumped_ms = 0  # since the last look

    def now(self, kind: Kind, now_us: int) -> list[Fault]:
        """List what goes on of a kind."""
        return [fault for fault in self._schedule if fault.kind is kind and fault.lasts(now_us)]

    def befall(self, services: Sequence[SimulatedService], now_us: int) -> None:
        """Do to the world what is due."""
        for fault in self._schedule:
            if fault.lasts(now_us) and fault not in self._begun:
                self._begun.add(fault)
                self._begin(fault, services, now_us)
        slow = {fault.row for fault in self.now(Kind.SLOW_START, now_us)}
        for row, service in enumerate(services):
            service.start_times = SLOW_TIMES if row in slow else 1

    def _begin(self, fault: Fault, services: Sequence[SimulatedService], now_us: int) -> None:
        dice = fault.dice()
        if fault.kind is Kind.CLOCK_JUMP:
            self._jumped_ms = int(dice.integers(1000, JUMP_MOST_MS))
            self._ahead_ms += self._jumped_ms
        elif fault.kind is Kind.DEATH:
            _kill_one([services[fault.row]], dice)
        elif fault.kind is Kind.LOST_GPUS:
            pool = self._pool_of(fault)
            living = [services[row] for row in self._pools[pool].rows]
            while sum(service.gpus for service in living) > self.gpus(pool, now_us):
                _kill_one(living, dice)

    def _pool_of(self, fault: Fault) -> int:
        return next(place for place, pool in enumerate(self._pools) if fault.row in pool.rows)

    def begin_clock_anew(self, restart: Fault, now_us: int) -> None:
        """Count from where a process that starts on another machine would: earlier than before."""
        self._ahead_ms, self._jumped_ms = -int(restart.dice().integers(CLOCK_STARTS_MS + now_us // 1000)), 0

    def clock_ms(self, now_us: int) -> int:
        """Read the loop's clock."""
        return CLOCK_STARTS_MS + now_us // 1000 + self._ahead_ms

    def gpus(self, pool: int, now_us: int) -> int:
        """Return how many GPUs a pool offers."""
        lost = any(self._pool_of(fault) == pool for fault in self.now(Kind.LOST_GPUS, now_us))
        return self._pools[pool].gpus // (2 if lost else 1)

    def writes(self, row: int, now_us: int) -> bool:
        """Say whether anything can be written for a service."""
        return all(fault.row != row for fault in self.now(Kind.CONFLICT, now_us))

    def seen(self, snapshot: Snapshot, now_us: int) -> Snapshot:
        """Show of what there is what can be seen."""
        jumped_ms, self._jumped_ms = self._jumped_ms, 0
        rows = snapshot.replicas
        rows = replace(rows, age_ms=np.where(rows.age_ms == UNKNOWN, UNKNOWN, rows.age_ms + jumped_ms))
        for fault in self.now(Kind.LYING, now_us):
            rows = _lied(rows, rows.service == fault.row, list(Lie)[int(fault.dice().integers(len(Lie)))])
        for fault in self.now(Kind.CLOCK_JUMP, now_us):
            moved = rows.since_created_ms + int(fault.dice().integers(-JUMP_MOST_MS, JUMP_MOST_MS))
            rows = replace(rows, since_created_ms=np.maximum(moved, 0))
        for fault in self.now(Kind.STALE, now_us):
            rows = _as_before(rows, rows.service == fault.row, self._frozen.setdefault(fault, rows), fault, now_us)
        snapshot = replace(snapshot, replicas=rows)
        for fault in self.now(Kind.MISSING, now_us):
            snapshot = _unread(snapshot, fault, self._pool_of(fault))
        return snapshot


class FaultyJudge:
    """The product's judgement, in a world where things go wrong.

    Parameters
    ----------
    fleet, pools, tell
        As for ForebayJudge.
    schedule
        What befalls it.
    """

    hears_pushes = True

    def __init__(
        self,
        fleet: FleetSpec,
        pools: Sequence[Pool],
        schedule: Sequence[Fault],
        tell: Callable[[Snapshot, Decisions], None] | None = None,
    ) -> None:
        self.faults = Faults(pools, schedule)
        self.judgement = ForebayJudge(fleet, pools, tell, self.faults)
        self._checkpoint: dict[str, str] = {}
        self._checkpoint_due_us = CHECKPOINT_US
        self._away: Fault | None = None

    def judge(self, services: Sequence[SimulatedService], now_us: int) -> None:
        """Let happen what is due, and judge unless the operator is away."""
        self.faults.befall(services, now_us)
        for restart in self.faults.now(Kind.RESTART, now_us):
            self._away = restart
            return
        if self._away is not None:
            self.faults.begin_clock_anew(self._away, now_us)
            self._away = None
            self._remember(now_us)
        self.judgement.judge(services, now_us)
        if now_us >= self._checkpoint_due_us:
            self._checkpoint_due_us += CHECKPOINT_US
            self._checkpoint = self._stored(codec.encode_learned)

    def _stored(self, encode: Callable[[Memory, int], str]) -> dict[str, str]:
        memory = self.judgement.memory
        return {key: encode(memory, row) for row, key in enumerate(memory.services)}

    def _remember(self, now_us: int) -> None:
        """Find what an operator that starts finds in Kubernetes."""
        safety = self._stored(codec.encode_safety)
        self.judgement.memory = codec.restore(
            initial_memory(self.judgement.fleet, self.faults.clock_ms(now_us)),
            {key: codec.decode_safety(text) for key, text in safety.items()},
            {key: codec.decode_learned(text) for key, text in self._checkpoint.items()},
        )


def _kill_one(services: Sequence[SimulatedService], dice: np.random.Generator) -> None:
    living = [(service, int(lane)) for service in services for lane in np.flatnonzero(service.state != EMPTY)]
    if living:
        service, lane = living[int(dice.integers(len(living)))]
        service.kill(lane)


def _told(rows: ReplicaRows, where: Bool, **columns: Any) -> ReplicaRows:
    """Write other values into some rows."""
    changed = {}
    for name, value in columns.items():
        column = getattr(rows, name).copy()
        column[where] = value
        changed[name] = column
    return replace(rows, **changed)


def _lied(rows: ReplicaRows, where: Bool, lie: Lie) -> ReplicaRows:
    where = where & (rows.age_ms != UNKNOWN)  # who was never read says nothing
    match lie:
        case Lie.IDLE:
            return _told(rows, where, requests_running=0, requests_waiting=0, kv_tokens_used=0)
        case Lie.SWAMPED:
            return _told(rows, where, requests_waiting=SWAMPED)
        case Lie.RESET:
            return _told(rows, where, **dict.fromkeys(_TOTALS, 0))
        case Lie.LEAP:
            return _told(rows, where, **{name: getattr(rows, name)[where] + LEAP for name in _TOTALS})
        case Lie.NO_CACHE:
            return _told(rows, where, kv_tokens_total=0, kv_tokens_used=SWAMPED)


def _as_before(rows: ReplicaRows, where: Bool, before: ReplicaRows, fault: Fault, now_us: int) -> ReplicaRows:
    """Show the readings of a while ago, and their age; of who came since, none."""
    place = {uid: row for row, uid in enumerate(before.uid)}
    old = np.array([place.get(uid, -1) for uid in rows.uid], np.int64)
    kept = where & (old >= 0)
    rows = _told(rows, where & (old < 0), **dict.fromkeys(_READINGS, UNKNOWN))
    rows = _told(rows, kept, **{name: getattr(before, name)[old[kept]] for name in _READINGS})
    read = kept & (rows.age_ms != UNKNOWN)
    return _told(rows, read, age_ms=rows.age_ms[read] + (now_us - fault.from_us) // 1000)


def _unread(snapshot: Snapshot, fault: Fault, pool: int) -> Snapshot:
    dice = fault.dice()
    rows, gateways = snapshot.replicas, snapshot.gateways
    match dice.integers(3):
        case 0:
            half = np.array([(crc32(uid.encode()) ^ fault.seed) % 2 == 0 for uid in rows.uid], bool)
            rows = _told(rows, half & (rows.service == fault.row), **dict.fromkeys(_READINGS, UNKNOWN))
            return replace(snapshot, replicas=rows)
        case 1:
            kept = gateways.service != fault.row
            columns = {field.name: getattr(gateways, field.name)[kept] for field in fields(GatewayRows)[1:]}
            return replace(snapshot, gateways=GatewayRows(uid=gateways.uid[: int(kept.sum())], **columns))
        case _:
            allocatable = snapshot.gpus_allocatable.copy()
            allocatable[pool] = UNKNOWN
            return replace(snapshot, gpus_allocatable=allocatable)
