"""SIMULATE: files of others, and our own, read as traces.

One module a format: how it looks, and where it comes from. `read` chooses by the first line, never by the name alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.sim.traces import azure, burstgpt, hashed, plain, servegen
from forebay.sim.traces.lines import Format, Layout, Reading, TraceError, first_line, read_requests
from forebay.sim.traces.servegen import Sampling

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Format", "Reading", "Sampling", "TraceError", "read"]


_LAYOUTS: dict[Format, Layout] = {
    layout.format: layout for layout in (azure.LAYOUT, burstgpt.LAYOUT, hashed.MOONCAKE, hashed.BAILIAN, plain.LAYOUT)
}


def read(path: Path, file_format: Format | None = None, sampling: Sampling | None = None) -> Reading:
    """Read one file.

    Parameters
    ----------
    path
        The file, gzipped or not.
    file_format
        What it is; None: its first line says so.
    sampling
        For ServeGen, whose files are statistics: which requests to draw; None: the first day, seed 0, all clients.

    Raises
    ------
    TraceError
        For a line that is wrong, or a format that nobody knows.
    OSError
        When the file cannot be opened.
    """
    chosen = file_format or _recognise(path)
    if chosen is Format.SERVEGEN:
        return Reading(servegen.sample(path, sampling or Sampling()), chosen, {})
    return read_requests(path, _LAYOUTS[chosen])


def _recognise(path: Path) -> Format:
    line = first_line(path)
    headers = {azure.HEADER: Format.AZURE, plain.HEADER: Format.PLAIN, servegen.RATE_HEADER: Format.SERVEGEN}
    if line in headers:
        return headers[line]
    if burstgpt.is_header(line):
        return Format.BURSTGPT
    if line.startswith("{"):
        return Format.BAILIAN if '"chat_id"' in line else Format.MOONCAKE
    raise TraceError(path, 1, f"no format begins with {line[:60]!r}: choose one of {', '.join(Format)} by --format")
