"""What another policy would have done to what a journal recorded: the past, its requests, and a scenario of both.

A journal knows the engines' histograms and the pods' states, not single requests: what it says of the past is an upper
bound of what was good. What is simulated is judged request by request.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from forebay.core import codec
from forebay.core.memory import carry, initial_memory
from forebay.core.snapshot import State
from forebay.core.units import UNKNOWN
from forebay.report.attainment import Attainment
from forebay.report.journal import FleetChange, JournalError, Keyframe, Tick, read
from forebay.sim.run import CLOCK_STARTS_MS, ForebayJudge
from forebay.sim.scenario import Scenario, ScenarioError
from forebay.sim.traces.journal import OTHER_CLOCK_MS, from_journal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from forebay.api.slo_policy import SLOPolicySpec
    from forebay.core.fleet import FleetSpec
    from forebay.core.memory import Memory
    from forebay.core.snapshot import Snapshot
    from forebay.core.units import I64

_FOREVER_MS = 2**62
_FLEET_WIDE = {"services", "pools", "gpus_max"}


@dataclass(slots=True)
class Past:
    """What really happened to one service."""

    service: str
    seconds: float = 0.0
    gpu_us: dict[State, int] = field(default_factory=lambda: dict.fromkeys(State, 0))
    arrivals: int = 0
    refused: int = 0
    failed: int = 0
    attained_permille: int | None = None  # at most; None: no engine told of a token
    replicas_first: int = 0  # that served at the first look
    gpus_offered: int = UNKNOWN  # most that the pool's nodes had for us
    at_s: list[float] = field(default_factory=list)
    replicas: list[int] = field(default_factory=list)  # that existed, at those times


def with_policy(fleet: FleetSpec, row: int, slo: SLOPolicySpec) -> FleetSpec:
    """Return the fleet as if one service had this policy."""
    told = {
        "priority": slo.priority,
        "ttft_target_ms": slo.ttft.target_milliseconds,
        "ttft_per_1k_prompt_tokens_ms": slo.ttft.per_thousand_prompt_tokens_milliseconds,
        "itl_mean_ms": slo.itl.mean_milliseconds,
        "itl_worst_second_ms": slo.itl.worst,
        "attainment_permille": slo.attainment_permille,
        "burst_multiplier_milli": slo.burst.multiplier * 1000,
        "burst_within_ms": slo.burst.within_seconds * 1000,
        "headroom_milli": slo.headroom_percent * 10,
        "warm_gpus_max": slo.max_idle_gpus,
    }
    changed = {name: getattr(fleet, name).copy() for name in told}
    for name, value in told.items():
        changed[name][row] = value
    return replace(fleet, **changed)


def alone(fleet: FleetSpec, row: int, gpus: int) -> FleetSpec:
    """Return the fleet of one service, its pool of so many GPUs with it."""
    columns: dict[str, Any] = {
        one.name: getattr(fleet, one.name)[row : row + 1] for one in fields(fleet) if one.name not in _FLEET_WIDE
    }
    columns["pool"] = np.zeros(1, np.int64)
    pool = fleet.pools[int(fleet.pool[row])]
    return replace(fleet, services=(fleet.services[row],), pools=(pool,), gpus_max=np.array([gpus]), **columns)


class _Reader:
    """Follows one service through a journal."""

    def __init__(self, service: str, slo: SLOPolicySpec) -> None:
        self.past = Past(service)
        self.fleet: FleetSpec | None = None
        self.memory: Memory | None = None
        self._slo = slo
        self._attainment = Attainment(_FOREVER_MS)
        self._row: int | None = None
        self._judged: FleetSpec | None = None
        self._last_ms: int | None = None
        self._counted: dict[str, I64] = {}

    def read_file(self, path: Path) -> None:
        begins = True
        try:
            for record in read(path):
                match record:
                    case Keyframe(fleet=fleet, memory=memory):
                        self._told(codec.decode_fleet(fleet))
                        if self.memory is None and self._row is not None:
                            self.memory = codec.decode_memory(memory)
                    case FleetChange(fleet=fleet):
                        self._told(codec.decode_fleet(fleet))
                    case Tick(snapshot=snapshot):
                        self._tick(codec.decode_snapshot(snapshot), begins=begins)
                        begins = False
        except codec.CodecError as error:
            raise JournalError(f"{path.name}: {error}") from error

    def _told(self, fleet: FleetSpec) -> None:
        self._row = fleet.services.index(self.past.service) if self.past.service in fleet.services else None
        if self._row is not None:
            self.fleet, self._judged = fleet, with_policy(fleet, self._row, self._slo)

    def _tick(self, snapshot: Snapshot, *, begins: bool) -> None:
        last_ms, self._last_ms = self._last_ms, snapshot.now_ms
        passed_ms = 0 if last_ms is None else snapshot.now_ms - last_ms
        if begins and not 0 <= passed_ms <= OTHER_CLOCK_MS:  # another process's clock: as from_journal has it
            passed_ms = 0
        self.past.seconds += passed_ms / 1000
        if self._row is None or self._judged is None:
            return
        rows = snapshot.replicas
        mine = rows.service == self._row
        for state in State:
            self.past.gpu_us[state] += passed_ms * 1000 * int(rows.gpus[mine & (rows.state == state)].sum())
        if not self.past.at_s:
            self.past.replicas_first = int((mine & (rows.state == State.SERVING)).sum())
        self.past.at_s.append(self.past.seconds)
        self.past.replicas.append(int(mine.sum()))
        pool = int(self._judged.pool[self._row])
        if snapshot.gpus_allocatable[pool] != UNKNOWN and snapshot.gpus_foreign[pool] != UNKNOWN:
            offered = int(snapshot.gpus_allocatable[pool] - snapshot.gpus_foreign[pool])
            self.past.gpus_offered = max(self.past.gpus_offered, offered)
        self._attainment.take(self._judged, snapshot)
        self._count(snapshot)

    def _count(self, snapshot: Snapshot) -> None:
        """Add what gateways counted; the first reading of each, and one that went back, is where it begins."""
        rows = snapshot.gateways
        for row in np.flatnonzero((rows.service == self._row) & (rows.arrivals_total != UNKNOWN)).tolist():
            now = np.array([rows.arrivals_total[row], rows.refused_total[row], rows.failed_total[row]])
            before = self._counted.get(rows.uid[row], now)
            self._counted[rows.uid[row]] = now
            if (now >= before).all():
                arrivals, refused, failed = (now - before).tolist()
                self.past.arrivals += arrivals
                self.past.refused += refused
                self.past.failed += failed

    def finish(self) -> Past:
        self.past.attained_permille = self._attainment.permille().get(self.past.service)
        return self.past


def from_past(
    files: Sequence[Path], service: str | None, slo: SLOPolicySpec, gpus: int | None
) -> tuple[Past, Scenario, ForebayJudge]:
    """Read a journal, and make of one of its services a scenario under another policy.

    Parameters
    ----------
    files
        As `forebay.report.journal.segments` lists them.
    service
        NAMESPACE/NAME; None: the only one.
    slo
        The policy.
    gpus
        Of its pool; None: what the journal says.

    Returns
    -------
    tuple
        What really happened, what is to be simulated, and the judgement, which knows what was learned before.

    Raises
    ------
    JournalError, forebay.sim.traces.journal.ServiceUnknownError
        As `forebay.sim.traces.journal.from_journal` does.
    ScenarioError
        When the service cannot be simulated.
    """
    recording = from_journal(files, service)
    reader = _Reader(recording.service, slo)
    for path in files:
        reader.read_file(path)
    past, fleet = reader.finish(), reader.fleet
    if fleet is None:
        raise ScenarioError(f"{recording.service}: the journal does not say what it was told to be")
    row = fleet.services.index(recording.service)
    if int(fleet.step_c0_ps[row]) <= 0 or int(fleet.kv_tokens_prior[row]) <= 0:
        raise ScenarioError(f"{recording.service}: nothing is known of its speed, so nothing can be simulated")
    told = alone(with_policy(fleet, row, slo), row, _gpus(fleet, row, past, gpus))
    scenario = Scenario(told, (recording.trace,))
    judge = ForebayJudge(told, scenario.pools())
    if reader.memory is not None:
        known = carry(reader.memory, told, CLOCK_STARTS_MS)
        judge.memory = replace(initial_memory(told, CLOCK_STARTS_MS), learned=known.learned)
    return past, scenario, judge


def _gpus(fleet: FleetSpec, row: int, past: Past, gpus: int | None) -> int:
    if gpus is not None:
        return gpus
    most = int(fleet.gpus_max[int(fleet.pool[row])])
    known = [number for number in (most, past.gpus_offered) if number >= 0]
    if not known:
        raise ScenarioError(f"{past.service}: the journal does not say how many GPUs its pool has: write --gpus")
    return min(known)
