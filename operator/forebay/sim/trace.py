"""What the simulated world is asked: requests by their time, lengths and shared prefixes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from forebay.core.units import I64

MAX_TOKENS = 2**31  # of one request; the longest contexts in service are 2**23 tokens, sums must stay within int64


@dataclass(frozen=True, slots=True)
class Trace:
    """N requests to one service, N >= 1, in order of arrival.

    Prefix arrays come all three or not at all (None, None, 0).

    Raises
    ------
    ValueError
        When the arrays do not describe such requests, with what to do about it.
    """

    name: str
    arrival_us: I64  # [N] ascending, first >= 0, from the trace's own beginning
    prompt_tokens: I64  # [N] >= 1
    output_tokens: I64  # [N] >= 1
    prefix_ids: I64 | None = None  # flat; one id a full block of the prompt, equal leading ids: reusable KV
    prefix_offsets: I64 | None = None  # [N + 1] request i has prefix_ids[offsets[i] : offsets[i + 1]]
    prefix_block_tokens: int = 0  # tokens a block: 512 (Mooncake), 16 (Qwen-Bailian); 0 without prefixes

    def __post_init__(self) -> None:
        """Refuse what is not a trace."""
        columns = {
            "arrival_us": self.arrival_us,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
        }
        for column, values in columns.items():
            if values.ndim != 1 or values.dtype != np.int64 or len(values) != len(self.arrival_us):
                raise ValueError(f"{self.name}: {column} must be int64 [{len(self.arrival_us)}], as arrival_us is")
        if not len(self.arrival_us):
            raise ValueError(f"{self.name}: a trace needs at least one request: choose a longer span, or another file")
        if self.arrival_us[0] < 0 or (np.diff(self.arrival_us) < 0).any():
            raise ValueError(f"{self.name}: arrivals must ascend from 0 on: subtract the first, and sort all columns")
        for column in ("prompt_tokens", "output_tokens"):
            low, high = int(columns[column].min()), int(columns[column].max())
            if low < 1 or high > MAX_TOKENS:
                raise ValueError(
                    f"{self.name}: {column} must be 1 to {MAX_TOKENS}, there is {low if low < 1 else high}: "
                    f"drop such requests, they ask an engine for nothing that it could do"
                )
        self._check_prefixes()

    def _check_prefixes(self) -> None:
        ids, offsets, block = self.prefix_ids, self.prefix_offsets, self.prefix_block_tokens
        if ids is None or offsets is None:
            if ids is not offsets or block:
                raise ValueError(f"{self.name}: give all of prefix_ids, prefix_offsets, prefix_block_tokens, or none")
            return
        if block < 1 or ids.dtype != np.int64 or offsets.dtype != np.int64 or offsets.shape != (len(self) + 1,):
            raise ValueError(f"{self.name}: prefixes need int64 ids, int64 offsets [{len(self) + 1}] and a block size")
        blocks = np.diff(offsets)
        if offsets[0] != 0 or offsets[-1] != len(ids) or (blocks < 0).any():
            raise ValueError(f"{self.name}: prefix_offsets must ascend from 0 to {len(ids)}, the number of prefix_ids")
        if (blocks * block > self.prompt_tokens).any():
            raise ValueError(f"{self.name}: a prompt has fewer full blocks than prefix ids: leave out its last id")

    def __len__(self) -> int:
        return len(self.arrival_us)

    @property
    def duration_us(self) -> int:
        """From the trace's beginning, time 0, to its last arrival."""
        return int(self.arrival_us[-1])

    def slice(self, from_us: int, to_us: int) -> Trace:
        """Take the requests that arrive in [from_us, to_us), with from_us as the new time 0.

        Raises
        ------
        ValueError
            When there are none.
        """
        first, end = (int(place) for place in np.searchsorted(self.arrival_us, (from_us, to_us)))
        ids, offsets = self.prefix_ids, self.prefix_offsets
        if ids is not None and offsets is not None and first < end:
            ids, offsets = ids[offsets[first] : offsets[end]], offsets[first : end + 1] - offsets[first]
        return Trace(
            name=self.name,
            arrival_us=self.arrival_us[first:end] - from_us,
            prompt_tokens=self.prompt_tokens[first:end],
            output_tokens=self.output_tokens[first:end],
            prefix_ids=ids,
            prefix_offsets=offsets,
            prefix_block_tokens=self.prefix_block_tokens,
        )
