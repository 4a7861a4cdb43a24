"""What is a trace, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forebay.sim.trace import MAX_TOKENS, Trace


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


FINE: dict[str, Any] = {
    "arrival_us": ints(5, 5, 9),
    "prompt_tokens": ints(40, 16, 100),
    "output_tokens": ints(1, 2, 3),
    "prefix_ids": ints(1, 2, 1, 7, 8),
    "prefix_offsets": ints(0, 2, 3, 5),
    "prefix_block_tokens": 16,
}
BARE: dict[str, Any] = {"prefix_ids": None, "prefix_offsets": None, "prefix_block_tokens": 0}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no request": (
        {name: ints() for name in ("arrival_us", "prompt_tokens", "output_tokens")} | BARE,
        "at least one request",
    ),
    "columns of unequal length": ({"prompt_tokens": ints(1, 2)}, r"prompt_tokens must be int64 \[3\]"),
    "a column of floats": ({"output_tokens": np.ones(3)}, "output_tokens must be int64"),
    "a table for a column": ({"arrival_us": np.ones((3, 1), np.int64)}, "arrival_us must be int64"),
    "a time before 0": ({"arrival_us": ints(-1, 5, 9)}, "ascend from 0"),
    "times out of order": ({"arrival_us": ints(5, 9, 8)}, "sort all columns"),
    "a prompt of nothing": ({"prompt_tokens": ints(40, 0, 100)}, "prompt_tokens must be 1 to 2147483648, there is 0"),
    "an output of less than nothing": ({"output_tokens": ints(1, 2, -3)}, "output_tokens must be 1 .* there is -3"),
    "a prompt beyond all models": ({"prompt_tokens": ints(40, MAX_TOKENS + 1, 100)}, "there is 2147483649"),
    "ids without offsets": ({"prefix_offsets": None}, "all of prefix_ids"),
    "a block size without ids": ({"prefix_ids": None, "prefix_offsets": None}, "or none"),
    "ids without a block size": ({"prefix_block_tokens": 0}, "a block size"),
    "too few offsets": ({"prefix_offsets": ints(0, 5)}, r"int64 offsets \[4\]"),
    "offsets that miss ids": ({"prefix_offsets": ints(0, 2, 3, 4)}, "from 0 to 5"),
    "offsets that go back": ({"prefix_offsets": ints(0, 3, 2, 5)}, "ascend"),
    "more blocks than the prompt fills": ({"prompt_tokens": ints(31, 16, 100)}, "fewer full blocks"),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_trace_is_refused_with_a_next_step(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^chat: .*{message}"):
        Trace("chat", **(FINE | change))


def test_a_trace_knows_its_size_and_span() -> None:
    trace = Trace("chat", **FINE)
    assert (len(trace), trace.duration_us) == (3, 9)
    assert len(Trace("chat", **(FINE | BARE))) == 3


def test_a_slice_begins_at_its_own_zero_and_keeps_its_prefixes() -> None:
    part = Trace("chat", **FINE).slice(5, 9)
    assert part.arrival_us.tolist() == [0, 0]
    assert part.prompt_tokens.tolist() == [40, 16]
    assert part.prefix_ids is not None
    assert part.prefix_offsets is not None
    assert (part.prefix_ids.tolist(), part.prefix_offsets.tolist()) == ([1, 2, 1], [0, 2, 3])
    rest = Trace("chat", **FINE).slice(6, 10)
    assert rest.prefix_ids is not None
    assert (rest.arrival_us.tolist(), rest.prefix_ids.tolist()) == ([3], [7, 8])


def test_a_slice_without_requests_is_refused() -> None:
    with pytest.raises(ValueError, match="choose a longer span"):
        Trace("chat", **FINE).slice(6, 9)
