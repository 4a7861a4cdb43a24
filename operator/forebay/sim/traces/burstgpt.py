"""BurstGPT: `Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type`, in seconds of the first day.

github.com/HPMLL/BurstGPT. File 3 has `Session ID` and `Elapsed time` as well, so columns are found by name. Its README
says that a request with 0 response tokens failed; with 0 request tokens none was sent. Both are left out and counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.sim.traces.lines import Format, Layout, Rows, fields, microseconds, real_numbers, whole_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TIME, PROMPT, OUTPUT = NEEDED = ("Timestamp", "Request tokens", "Response tokens")


def is_header(line: str) -> bool:
    """Say whether a file that begins so is of this format."""
    return set(NEEDED) <= set(line.split(","))


def _parser(header: str) -> Callable[[Sequence[str]], Rows]:
    columns = header.split(",")

    def rows(batch: Sequence[str]) -> Rows:
        found = dict(zip(columns, fields(batch, columns), strict=True))
        return Rows(
            microseconds(real_numbers(found[TIME], TIME), TIME),
            whole_numbers(found[PROMPT], PROMPT),
            whole_numbers(found[OUTPUT], OUTPUT),
        )

    return rows


LAYOUT = Layout(
    Format.BURSTGPT, _parser, dropped_prompt="0 request tokens", dropped_output="0 response tokens: the request failed"
)
