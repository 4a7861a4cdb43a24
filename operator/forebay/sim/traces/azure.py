"""Azure LLM inference traces of 2023 and 2024: `TIMESTAMP,ContextTokens,GeneratedTokens`, sorted.

github.com/Azure/AzurePublicDataset. 2023 writes naive times with seven digits of a second, 2024 UTC (`+00:00`) with
six, or with none where they would be zeros. What is below a microsecond is cut off.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from forebay.sim.traces.lines import Format, Layout, Rows, fields, whole_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay.core.units import I64

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
HEADER = ",".join(COLUMNS)
ZONE = "+00:00"
STAMP = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,9})?(\+00:00)?", re.ASCII)


def _parser(_header: str) -> Callable[[Sequence[str]], Rows]:
    return _rows


def _rows(batch: Sequence[str]) -> Rows:
    when, prompts, outputs = fields(batch, COLUMNS)
    return Rows(_times(when), whole_numbers(prompts, COLUMNS[1]), whole_numbers(outputs, COLUMNS[2]))


def _times(texts: Sequence[str]) -> I64:
    """Convert to microseconds since 1970. numpy alone would take other zones with a warning, and words like `now`."""
    wrong = f"TIMESTAMP is {texts[0]!r}, not like 2023-11-16 18:17:03.9799600, with {ZONE} or no zone"
    if not all(map(STAMP.fullmatch, texts)):
        raise ValueError(wrong)
    try:
        return np.array([text.removesuffix(ZONE) for text in texts], "datetime64[us]").astype(np.int64)
    except ValueError as error:
        raise ValueError(wrong) from error


LAYOUT = Layout(Format.AZURE, _parser, starts_at_first=True)
