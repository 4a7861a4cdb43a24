"""From a recorded trace to a schedule: every request's time and lengths, before the first is sent.

The same seed gives the same schedule on every machine. Shape comes from the recording; only its rate is changed, by
keeping each request with one probability (thinning), and the burst is several such streams from different parts of the
recording at once.
"""

from __future__ import annotations

import csv
import gzip
import random
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from e2e.demo.plan import Plan, Stream

TRACES = Path(__file__).resolve().parents[2] / "tests" / "data" / "traces" / "azure-llm-2023"
_FILES = {"conv": "AzureLLMInferenceTrace_conv.csv.gz", "code": "AzureLLMInferenceTrace_code.csv.gz"}
# Batch jobs take their lengths from the conversation trace, from a part that no stream uses.
_JOBS_FROM = 3000
_LEAST_PROMPT = 10
# Room for the chat template's own tokens, which count against the model's length.
_TEMPLATE_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Recorded:
    """One line of a trace."""

    at_s: float  # since the first line
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Request:
    """One request to be sent."""

    number: int
    at_ms: int  # since the start of the traffic
    service: str
    model: str
    prompt_tokens: int
    output_tokens: int


@lru_cache(maxsize=2)
def read_trace(name: str) -> tuple[Recorded, ...]:
    """Read a recording.

    Parameters
    ----------
    name
        "conv" or "code".

    Returns
    -------
    tuple of Recorded
        In the order of time, beginning at 0 s.
    """
    with gzip.open(TRACES / _FILES[name], "rt", encoding="ascii", newline="") as file:
        rows = list(csv.DictReader(file))
    # The seventh fractional digit is more than datetime takes.
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in rows]
    return tuple(
        Recorded((time - times[0]).total_seconds(), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
        for time, row in zip(times, rows, strict=True)
    )


def schedule(plan: Plan, seed: int) -> tuple[Request, ...]:
    """Lay out all requests of one run, sorted by time.

    Parameters
    ----------
    plan
        Who sends what when.
    seed
        Chooses which recorded requests are kept.
    """
    rows: list[tuple[int, str, str, int, int]] = []
    for stream in plan.streams:
        rows += [_row(plan, stream.service, stream.model, at_s, line) for at_s, line in _arrivals(plan, stream, seed)]
    lengths = iter(read_trace("conv")[_JOBS_FROM:])
    for job in plan.jobs:
        for i in range(job.count):
            rows.append(_row(plan, job.service, job.model, job.at_s + job.over_s * i / job.count, next(lengths)))
    return tuple(Request(number, *row) for number, row in enumerate(sorted(rows)))


def _row(plan: Plan, service: str, model: str, at_s: float, line: Recorded) -> tuple[int, str, str, int, int]:
    output = max(line.output_tokens, 1)
    longest = plan.max_model_len - output - _TEMPLATE_TOKENS
    return round(at_s * 1000), service, model, min(max(line.prompt_tokens, _LEAST_PROMPT), longest), output


def _arrivals(plan: Plan, stream: Stream, seed: int) -> list[tuple[float, Recorded]]:
    arrivals = _window(stream, 0, plan.seconds, seed)
    length = plan.burst_until_s - plan.burst_from_s
    for copy in range(1, stream.burst_factor):
        extra = _window(stream, copy, length, seed)
        arrivals += [(plan.burst_from_s + at_s, line) for at_s, line in extra]
    return arrivals


def _window(stream: Stream, copy: int, seconds: float, seed: int) -> list[tuple[float, Recorded]]:
    """One thinned part of the recording; copies take parts five minutes apart, so that none is another's echo."""
    trace = read_trace(stream.trace)
    start_s = stream.start_s + 300 * copy
    window = [line for line in trace if start_s <= line.at_s < start_s + seconds]
    keep = stream.rate * seconds / len(window)
    dice = random.Random(f"{seed} {stream.service} {copy}")  # noqa: S311 - a repeatable draw, not a secret
    return [(line.at_s - start_s, line) for line in window if dice.random() < keep]
