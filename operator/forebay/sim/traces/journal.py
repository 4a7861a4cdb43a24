"""From the journal of a live fleet to one service's requests.

Gateways count requests when they come, with their estimate of the prompts' tokens; replicas count tokens made and
requests ended. Both are read about once a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from forebay.core import codec
from forebay.core.units import UNKNOWN
from forebay.report.journal import FleetChange, JournalError, Keyframe, Tick, read
from forebay.sim.traces.recorded import Counters, estimate

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from forebay.core.snapshot import Snapshot
    from forebay.sim.trace import Trace

MS_US = 1000
# Between two files the operator may have moved to a machine whose clock, which counts from its boot, is another. Back
# in time is surely that, and so is forward by more than this: nobody leaves a fleet without its operator for so long.
OTHER_CLOCK_MS = 3_600_000


class ServiceUnknownError(ValueError):
    """The journal holds several services and none was chosen, or not the one that was."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What a journal had of one service."""

    service: str
    trace: Trace
    ticks: int
    seams: int  # times that the clock changed; what came in between is unknown, and the time is closed up


def from_journal(files: Iterable[Path], service: str | None) -> Recording:
    """Read a journal's files, oldest first.

    Parameters
    ----------
    files
        As `forebay.report.journal.segments` lists them.
    service
        NAMESPACE/NAME; None: the only one.

    Raises
    ------
    JournalError
        When a file cannot be read: which, and where.
    ServiceUnknownError
        With the services that there are.
    ValueError
        When the service had no traffic.
    """
    reader = _Reader(service)
    for path in files:
        reader.read_file(path)
    return reader.recording()


class _Reader:
    def __init__(self, service: str | None) -> None:
        self._service = service
        self._row: int | None = None
        self._seen: set[str] = set()
        self._arrivals, self._ends = Counters(), Counters()
        self._ticks, self._seams = 0, 0
        self._shift_ms = 0  # what makes this file's clock go on from the last one's
        self._started_ms: int | None = None
        self._last_ms: int | None = None

    def read_file(self, path: Path) -> None:
        begins, records = True, 0
        try:
            for record in read(path):
                match record:
                    case Keyframe(fleet=fleet) | FleetChange(fleet=fleet):
                        self._find_row(codec.decode_fleet(fleet).services)
                    case Tick(snapshot=snapshot):
                        self._tick(codec.decode_snapshot(snapshot), begins=begins)
                        begins = False
                records += 1
        except (JournalError, codec.CodecError) as error:
            raise JournalError(f"{path}: after {records} good records: {error}") from error

    def _find_row(self, services: tuple[str, ...]) -> None:
        self._seen.update(services)
        if self._service is None and len(self._seen) > 1:
            raise ServiceUnknownError(
                f"the journal holds several services, choose one: {', '.join(sorted(self._seen))}"
            )
        wanted = self._service or next(iter(services), None)
        self._row = services.index(wanted) if wanted in services else None

    def _tick(self, snapshot: Snapshot, *, begins: bool) -> None:
        now_ms = snapshot.now_ms + self._shift_ms
        if begins and self._last_ms is not None and not 0 <= now_ms - self._last_ms <= OTHER_CLOCK_MS:
            self._seams += 1
            self._shift_ms += self._last_ms - now_ms
            now_ms = self._last_ms
            self._arrivals.begin_anew()
            self._ends.begin_anew()
        self._started_ms = now_ms if self._started_ms is None else self._started_ms
        self._last_ms = now_ms
        self._ticks += 1
        if self._row is not None:
            self._gateways(snapshot, now_ms)
            self._replicas(snapshot, now_ms)

    def _gateways(self, snapshot: Snapshot, now_ms: int) -> None:
        rows = snapshot.gateways
        for row in np.flatnonzero((rows.service == self._row) & (rows.arrivals_total != UNKNOWN)).tolist():
            at_us = (now_ms - int(rows.age_ms[row])) * MS_US
            self._arrivals.see(
                rows.uid[row], at_us, int(rows.arrivals_total[row]), int(rows.arrival_prompt_tokens_total[row])
            )

    def _replicas(self, snapshot: Snapshot, now_ms: int) -> None:
        rows = snapshot.replicas
        known = (rows.requests_finished_total != UNKNOWN) & (rows.generation_tokens_total != UNKNOWN)
        for row in np.flatnonzero((rows.service == self._row) & known & (rows.age_ms != UNKNOWN)).tolist():
            at_us = (now_ms - int(rows.age_ms[row])) * MS_US
            ended, tokens = int(rows.requests_finished_total[row]), int(rows.generation_tokens_total[row])
            self._ends.see(rows.uid[row], at_us, ended, 0, tokens)

    def recording(self) -> Recording:
        name = self._service or next(iter(self._seen), "")
        if name not in self._seen:
            held = ", ".join(sorted(self._seen)) or "no service at all"
            raise ServiceUnknownError(f"{name or 'a service'} is not in the journal, which holds {held}")
        arrivals, ends = self._arrivals.growth, self._ends.growth
        from_us = min((growth.from_us for growth in arrivals), default=0)
        if self._started_ms is not None:
            from_us = min(from_us, self._started_ms * MS_US)
        trace = estimate(name, arrivals, ends, from_us=from_us, prompts_on_arrival=True)
        return Recording(name, trace, self._ticks, self._seams)
