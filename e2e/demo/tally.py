"""How many decisions the operator's journal holds, how many changed something, and whether all can be made again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.core import codec
from forebay.report import journal

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Tally:
    """Of the operator's whole life, its start included."""

    ticks: int
    decisions: int  # a tick decides for each service
    changes: int  # decisions that wanted other numbers than the one before
    replay_differences: tuple[str, ...]  # empty: replayed to the same bytes


def tally(folder: Path) -> Tally:
    """Count a journal's decisions and replay it.

    Raises
    ------
    JournalError
        When it cannot be read.
    """
    decisions = changes = 0
    wanted: dict[str, tuple[int, int]] = {}
    for file in journal.segments(folder):
        for record in journal.read(file):
            if not isinstance(record, journal.Tick):
                continue
            said = codec.decode_decisions(record.decisions)
            numbers = zip(said.replicas_serving.tolist(), said.replicas_warm.tolist(), strict=True)
            now = dict(zip(said.services, numbers, strict=True))
            decisions += len(now)
            changes += sum(wanted.get(service) != pair for service, pair in now.items())
            wanted = now
    replayed = journal.replay(folder)
    return Tally(replayed.ticks, decisions, changes, replayed.differences)
