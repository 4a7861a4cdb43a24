"""Our own format: `arrival_us,prompt_tokens,output_tokens`, gzipped, without prefixes. `forebay record` writes it."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import numpy as np

from forebay.sim.traces.lines import Format, Layout, Rows, fields, whole_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from forebay.sim.trace import Trace

COLUMNS = ("arrival_us", "prompt_tokens", "output_tokens")
HEADER = ",".join(COLUMNS)


def _parser(_header: str) -> Callable[[Sequence[str]], Rows]:
    return _rows


def _rows(batch: Sequence[str]) -> Rows:
    texts = fields(batch, COLUMNS)
    return Rows(*(whole_numbers(column, name) for column, name in zip(texts, COLUMNS, strict=True)))


def write(path: Path, trace: Trace) -> None:
    """Write a trace; equal traces give equal bytes, so no time and no file name goes into the gzip header.

    Raises
    ------
    OSError
        When the file cannot be written.
    """
    columns = np.stack([trace.arrival_us, trace.prompt_tokens, trace.output_tokens], axis=1)
    with path.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
        file.write(f"{HEADER}\n".encode())
        np.savetxt(file, columns, fmt="%d", delimiter=",")


LAYOUT = Layout(Format.PLAIN, _parser)
