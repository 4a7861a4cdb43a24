"""What the generator writes down about each request, and reads back to score it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class Outcome(StrEnum):
    """How a request ended. Every request that was sent ends in exactly one; one without is lost."""

    ANSWERED = "answered"  # the whole stream came, to its end mark
    REFUSED = "refused"  # 429 or 503: told to come again later
    ABORTED = "aborted"  # we left: our patience or the demo ended
    FAILED = "failed"  # anything else: another status, a broken stream, no connection


@dataclass(slots=True)
class Record:
    """One request. Times are milliseconds: `*_at_ms` since the start of the traffic, the others since it was sent."""

    number: int
    service: str
    scheduled_at_ms: int
    sent_at_ms: int
    prompt_tokens: int  # as planned; `usage_prompt_tokens` is what the engine counted
    output_tokens: int
    outcome: Outcome | None = None
    status: int | None = None
    finish_reason: str | None = None
    usage_prompt_tokens: int | None = None
    usage_output_tokens: int | None = None
    error: str | None = None
    end_ms: int | None = None
    token_ms: list[int] = field(default_factory=list)  # when each token came

    @property
    def prompt_tokens_counted(self) -> int:
        """The engine's count where there is one: that is the length it had to work for."""
        return self.prompt_tokens if self.usage_prompt_tokens is None else self.usage_prompt_tokens


def write(path: Path, records: Iterable[Record]) -> None:
    """Write one JSON document a line."""
    with path.open("wb") as file:
        file.writelines(orjson.dumps(asdict(record), option=orjson.OPT_APPEND_NEWLINE) for record in records)


def read(path: Path) -> list[Record]:
    """Read what `write` wrote; a last line that was cut off is an error, for it is a request lost."""
    records = []
    for line in path.read_bytes().splitlines():
        raw = orjson.loads(line)
        raw["outcome"] = None if raw["outcome"] is None else Outcome(raw["outcome"])
        records.append(Record(**raw))
    return records
