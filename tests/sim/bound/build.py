"""Small traces and round numbers for the bound's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forebay.core.goodness import Targets
from forebay.engine_model.step_time import PS_PER_MS, StepTimes
from forebay.sim.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

# A step costs 10 ms, a decode 1 ms more, a prompt token 1 ms: with ten seats a token pays 1 ms of its step.
TIMES = StepTimes(c0_ps=10 * PS_PER_MS, c1_ps=PS_PER_MS, c2_ps=0, p1_ps=PS_PER_MS, p2_fs=0)
SEATS = 10
CACHE = 10_000_000  # tokens: never scarce
EASY = Targets(ttft_ms=500, ttft_per_1k_prompt_tokens_ms=0, itl_mean_ms=50, itl_worst_second_ms=200)


def trace_of(
    requests: Sequence[tuple[int, int, int]], prefixes: Sequence[Sequence[int]] | None = None, block_tokens: int = 16
) -> Trace:
    """Make a trace of (arrival in ms, prompt tokens, output tokens), and the ids of each one's full blocks."""
    arrival_ms, prompt, output = np.array(requests, np.int64).T
    if prefixes is None:
        return Trace("small", arrival_ms * 1000, prompt, output)
    return Trace(
        "small",
        arrival_ms * 1000,
        prompt,
        output,
        prefix_ids=np.array([name for names in prefixes for name in names], np.int64),
        prefix_offsets=np.cumsum([0, *(len(names) for names in prefixes)]),
        prefix_block_tokens=block_tokens,
    )
