"""From a text file to a trace in batches of lines: fast where all is well, and where not, the line that is to blame."""

from __future__ import annotations

import csv
import gzip
import itertools
import zlib
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from forebay.sim.trace import MAX_TOKENS, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from forebay.core.units import I64, Bool

Parsed = TypeVar("Parsed")

BATCH_LINES = 50_000  # some 20 MB of lines at once, whatever the size of the file
GZIP_MAGIC = b"\x1f\x8b"
POINTER = "version https://git-lfs"
MAX_DIGITS = 18  # what surely fits into int64
MAX_SECONDS = 10**12  # 30,000 years: times stay exact in microseconds
SECOND_US = 1_000_000


class Format(StrEnum):
    """The formats that can be read."""

    AZURE = "azure"
    BURSTGPT = "burstgpt"
    MOONCAKE = "mooncake"
    BAILIAN = "bailian"
    SERVEGEN = "servegen"
    PLAIN = "plain"


class TraceError(ValueError):
    """A file that is not the trace it should be: which file, which line (from 1), why, and what to do about it."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path}:{line}: {reason}")
        self.path, self.line, self.reason = path, line, reason


@dataclass(frozen=True, slots=True)
class Rows:
    """A batch of N requests as the file has them, before anybody asked whether they make sense."""

    arrival_us: I64  # [N]
    prompt_tokens: I64  # [N]
    output_tokens: I64  # [N]
    block_ids: I64 | None = None  # flat
    blocks: I64 | None = None  # [N] ids of each request


@dataclass(frozen=True, slots=True)
class Reading:
    """A trace, and what its file held beside it."""

    trace: Trace
    format: Format
    dropped: dict[str, int]  # why to how many requests; only formats whose own documentation says so drop any


@dataclass(frozen=True, slots=True)
class Layout:
    """How one format's files look."""

    format: Format
    parser: Callable[[str], Callable[[Sequence[str]], Rows]]  # from the first line to what parses a batch of lines
    has_header: bool = True
    starts_at_first: bool = False  # times are of the calendar: the first request is time 0
    block_tokens: int = 0
    dropped_prompt: str = ""  # why a request without a prompt is left out; "": it is an error
    dropped_output: str = ""


def lines(path: Path) -> Generator[str]:
    """Read a file's lines; gzip is seen by its first bytes.

    Raises
    ------
    TraceError
        When the file ends within its gzip stream, or is not text.
    OSError
        When it cannot be opened.
    """
    number = 0
    with path.open("rb") as raw:
        packed = raw.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        raw.seek(0)
        try:
            for line in gzip.GzipFile(fileobj=raw) if packed else raw:
                number += 1
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise TraceError(path, number + 1, f"the gzip stream is damaged ({error}): fetch the file again") from error
        except UnicodeDecodeError as error:
            raise TraceError(path, number, f"not text ({error.reason}): is this the right file?") from error


def first_line(path: Path) -> str:
    """Read the line that tells one format from another.

    Raises
    ------
    TraceError
        When there is none, or the file is only a pointer to its data.
    """
    with closing(lines(path)) as found:
        line = next(found, "").strip()
    if not line:
        raise TraceError(path, 1, "empty: there is nothing to replay")
    if line.startswith(POINTER):
        raise TraceError(path, 1, "a Git LFS pointer, not the data: run `git lfs pull` where the file came from")
    return line


def parsed(path: Path, parse: Callable[[Sequence[str]], Parsed], *, skip: int) -> Generator[tuple[int, Parsed]]:
    """Parse a file after its first `skip` lines, batch by batch: (number of the batch's first line, what `parse` made).

    `parse` raises ValueError for what it cannot read; it is then asked line by line, so that its word on the first bad
    line becomes the error.

    Raises
    ------
    TraceError
        For that line.
    """
    number = skip + 1
    with closing(lines(path)) as found:
        rest = itertools.islice(found, skip, None)
        while batch := list(itertools.islice(rest, BATCH_LINES)):
            yield number, _parse(path, number, batch, parse)
            number += len(batch)


def _parse(path: Path, number: int, batch: Sequence[str], parse: Callable[[Sequence[str]], Parsed]) -> Parsed:
    try:
        return parse(batch)
    except ValueError:
        for place, line in enumerate(batch):
            try:
                parse([line])
            except ValueError as error:
                raise TraceError(path, number + place, str(error)) from error
        raise


def read_requests(path: Path, layout: Layout) -> Reading:
    """Read a file of one request a line.

    Raises
    ------
    TraceError
        For a line that cannot be read, arrives before the line above it, or has lengths that no engine serves;
        for a file without requests.
    """
    parse = layout.parser(first_line(path))
    batches: list[Rows] = []
    dropped = dict.fromkeys(filter(None, (layout.dropped_prompt, layout.dropped_output)), 0)
    before_us = None if layout.starts_at_first else 0
    with closing(parsed(path, parse, skip=int(layout.has_header))) as found:
        for number, rows in found:
            _check_order(path, number, rows.arrival_us, before_us)
            before_us = int(rows.arrival_us[-1])
            keep = np.ones(len(rows.arrival_us), np.bool_)
            for column, why in (("prompt_tokens", layout.dropped_prompt), ("output_tokens", layout.dropped_output)):
                _check_tokens(path, number, column, getattr(rows, column), least=0 if why else 1)
                if why:
                    zero = keep & (getattr(rows, column) == 0)
                    dropped[why] += int(zero.sum())
                    keep &= ~zero
            batches.append(_keep(rows, keep) if dropped else rows)
    if not any(len(rows.arrival_us) for rows in batches):
        raise TraceError(path, 1, "no request in it: there is nothing to replay")
    return Reading(_trace(path, layout, batches), layout.format, {why: n for why, n in dropped.items() if n})


def _check_order(path: Path, number: int, arrival_us: I64, before_us: int | None) -> None:
    steps = np.diff(arrival_us, prepend=arrival_us[0] if before_us is None else before_us)
    if (steps < 0).any():
        place = int(np.argmax(steps < 0))
        said = "has a time before 0" if arrival_us[place] < 0 else "arrives before the line above"
        raise TraceError(path, number + place, f"{said}: sort the file by time, and see why it was not")


def _check_tokens(path: Path, number: int, column: str, tokens: I64, *, least: int) -> None:
    wrong: Bool = (tokens < least) | (tokens > MAX_TOKENS)
    if wrong.any():
        place = int(np.argmax(wrong))
        raise TraceError(path, number + place, f"{column} is {tokens[place]}, which is not {least} to {MAX_TOKENS}")


def _keep(rows: Rows, keep: Bool) -> Rows:
    return Rows(rows.arrival_us[keep], rows.prompt_tokens[keep], rows.output_tokens[keep])


def _trace(path: Path, layout: Layout, batches: list[Rows]) -> Trace:
    arrival_us = np.concatenate([rows.arrival_us for rows in batches])
    ids = [rows.block_ids for rows in batches if rows.block_ids is not None]
    blocks = [rows.blocks for rows in batches if rows.blocks is not None]
    return Trace(
        name=trace_name(path),
        arrival_us=arrival_us - arrival_us[0] if layout.starts_at_first else arrival_us,
        prompt_tokens=np.concatenate([rows.prompt_tokens for rows in batches]),
        output_tokens=np.concatenate([rows.output_tokens for rows in batches]),
        prefix_ids=np.concatenate(ids) if ids else None,
        prefix_offsets=np.concatenate([[0], np.cumsum(np.concatenate(blocks))]) if blocks else None,
        prefix_block_tokens=layout.block_tokens,
    )


def trace_name(path: Path) -> str:
    """Name a trace by its file, without what says how it is packed."""
    return path.name.removesuffix(".gz").rpartition(".")[0] or path.name


def fields(batch: Sequence[str], columns: Collection[str]) -> list[tuple[str, ...]]:
    """Split CSV lines into columns, one tuple of N texts for each.

    Raises
    ------
    ValueError
        When a line has more or fewer fields.
    """
    try:
        rows = list(csv.reader(batch, strict=True))
    except csv.Error as error:
        raise ValueError(f"not CSV: {error}") from error
    if len(rows) != len(batch) or set(map(len, rows)) != {len(columns)}:
        raise ValueError(f"{len(rows[0]) if rows else 0} fields where {len(columns)} belong: {', '.join(columns)}")
    return list(zip(*rows, strict=True))


def whole_numbers(texts: Sequence[str], column: str) -> I64:
    """Convert texts to integers of at least 0.

    Raises
    ------
    ValueError
        With the first text, for a batch of one line.
    """
    if not all(map(str.isdecimal, texts)):
        raise ValueError(f"{column} is {texts[0]!r}, not a whole number of at least 0")
    if max(map(len, texts)) > MAX_DIGITS:
        raise ValueError(f"{column} is {texts[0]}, which is out of all proportion")
    return np.fromiter(map(int, texts), np.int64, len(texts))


def real_numbers(texts: Sequence[str], column: str) -> NDArray[np.float64]:
    """Convert texts to finite numbers.

    Raises
    ------
    ValueError
        With the first text, for a batch of one line.
    """
    try:
        numbers = np.fromiter(map(float, texts), np.float64, len(texts))
    except ValueError as error:
        raise ValueError(f"{column} is {texts[0]!r}, not a number") from error
    if not np.isfinite(numbers).all():
        raise ValueError(f"{column} is {texts[0]!r}, not a finite number")
    return numbers


def microseconds(seconds: NDArray[np.float64], column: str) -> I64:
    """Convert seconds to the nearest microsecond.

    Raises
    ------
    ValueError
        With the first time, for a batch of one line.
    """
    if (np.abs(seconds) > MAX_SECONDS).any():
        raise ValueError(f"{column} is {seconds[0]:g} s, which is out of all proportion")
    return np.rint(seconds * SECOND_US).astype(np.int64)
