"""The memory of one simulated service: as large as what can live at once, and the trace itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forebay.engine_model.bank import BLOCK_TOKENS, ID_BLOCKS, LANES, ROW_BLOCKS, ROW_FIELDS, Bank, new_bank
from forebay.routing.rules import ALLOWANCE_SHARE
from forebay.sim.datapath import layout
from forebay.sim.datapath.layout import (
    CLOCKS,
    ENDS,
    ITL_BINS_10TH_MS,
    LANE_FIELDS,
    NEVER_US,
    POLL_US,
    SCORES,
    SECOND_US,
    STACK,
    TTFT_BINS_MS,
    DataPath,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.core.fleet import FleetSpec
    from forebay.core.goodness import Targets
    from forebay.core.units import I64
    from forebay.sim.trace import Trace

MODEL_LEN_MAX = 131_072  # Llama 3.1's and Qwen3's (with YaRN) longest context
# The gateway's defaults (gateway.settings).
QUEUE_REQUESTS_MAX, START_WAIT_US, BUSY_WAIT_US = 1_000, 300 * SECOND_US, 60 * SECOND_US
_ROWS = ("arrived", "sent", "request", "pending", "first", "last", "join", "worst", "start_limit", "busy_limit")


def new_path(
    trace: Trace, fleet: FleetSpec, row: int, *, classes: Sequence[Targets], noise_milli: int, lanes: int
) -> DataPath:
    """Lay out a service's arrays; no replica is there yet.

    Parameters
    ----------
    trace
        What it is asked.
    fleet, row
        Sizes of one replica.
    classes
        Targets to score by.
    noise_milli
        Standard deviation of a step's time, in thousandths of it.
    lanes
        Most replicas at once.
    """
    seqs = int(fleet.batch_max[row])
    rows = lanes * (seqs + max(1, seqs // ALLOWANCE_SHARE)) + QUEUE_REQUESTS_MAX + 1
    places, seconds = lanes + rows, trace.duration_us // SECOND_US + 1
    offsets = trace.prefix_offsets if trace.prefix_offsets is not None else _ints(len(trace) + 1)
    longest = _longest(trace, int(fleet.kv_tokens_prior[row]))
    return DataPath(
        bank=_bank(trace, fleet, row, lanes=lanes, places=places, longest=longest),
        clock=_clock(rows, longest, noise_milli),
        step_end=np.full(lanes, NEVER_US),
        routable=np.full(lanes, NEVER_US),
        lane=_ints(lanes * LANE_FIELDS),
        times=_ints(lanes * 5),
        ends=_ints(lanes * ENDS),
        stack_step=_ints(lanes * STACK),
        stack_gap=_ints(lanes * STACK),
        **{name: _ints(places) for name in _ROWS},
        rows=np.arange(places - 1, lanes - 1, -1),
        hold_before=_ints(places),
        hold_after=_ints(places),
        sent_before=np.arange(places),
        sent_after=np.arange(places),
        trace_us=np.ascontiguousarray(trace.arrival_us),
        trace_prompt=np.ascontiguousarray(trace.prompt_tokens),
        trace_output=np.ascontiguousarray(trace.output_tokens),
        trace_id_at=np.ascontiguousarray(offsets),
        targets=np.array([limit for target in classes for limit in _limits(target)], np.int64),
        score=_ints(len(classes) * SCORES),
        ttft_ms=_ints(TTFT_BINS_MS),
        itl_10th_ms=_ints(ITL_BINS_10TH_MS),
        second_arrived=_ints(seconds),
        second_good=_ints(seconds),
    )


def _limits(target: Targets) -> tuple[int, int, int, int]:
    """Order a class's targets as `layout` does."""
    return target.ttft_ms, target.ttft_per_1k_prompt_tokens_ms, target.itl_mean_ms, target.itl_worst_second_ms


def _ints(count: int) -> I64:
    return np.zeros(count, np.int64)


def _longest(trace: Trace, kv_tokens: int) -> int:
    """Return the longest sequence that an engine takes: the model's, as far as the KV cache and the trace need it."""
    whole_blocks = kv_tokens // BLOCK_TOKENS * BLOCK_TOKENS
    return min(MODEL_LEN_MAX, whole_blocks, int((trace.prompt_tokens + trace.output_tokens).max()))


def _clock(rows: int, longest: int, noise_milli: int) -> I64:
    clock = _ints(CLOCKS)
    clock[layout.NEXT_POLL_US] = POLL_US
    clock[layout.NEXT_OPEN_US] = NEVER_US
    clock[layout.ROWS_FREE] = rows
    clock[layout.QUEUE_MAX] = QUEUE_REQUESTS_MAX
    clock[layout.START_WAIT_US], clock[layout.BUSY_WAIT_US] = START_WAIT_US, BUSY_WAIT_US
    clock[layout.MODEL_LEN_MAX] = longest
    clock[layout.NOISE_MILLI] = noise_milli
    return clock


def _bank(trace: Trace, fleet: FleetSpec, row: int, *, lanes: int, places: int, longest: int) -> Bank:
    """Make one engine's bank of lists and repeat it, a lane each, with all rows that there will be."""
    blocks = int(fleet.kv_tokens_prior[row]) // BLOCK_TOKENS
    one = new_bank(
        lanes=1,
        seqs_max=int(fleet.batch_max[row]),
        step_tokens_max=int(fleet.step_tokens_max[row]),
        blocks=blocks,
        row_blocks=-(-longest // BLOCK_TOKENS),
        caching=trace.prefix_ids is not None,
    )
    size = np.array(one.size)
    size[LANES], size[ID_BLOCKS] = lanes, max(1, trace.prefix_block_tokens // BLOCK_TOKENS)
    repeated = {name: np.tile(np.array(getattr(one, name), np.int64), lanes) for name in _OF_LANES}
    for ring in ("older", "younger"):  # block numbers go on from lane to lane
        repeated[ring] += np.repeat(np.arange(lanes) * (blocks + 1), len(getattr(one, ring)))
    return Bank(
        size=size,
        before=np.arange(places),
        after=np.arange(places),
        table=_ints(places * one.size[ROW_BLOCKS]),
        ids=np.ascontiguousarray(trace.prefix_ids) if trace.prefix_ids is not None else _ints(0),
        **{name: _ints(places) for name in ROW_FIELDS},
        **repeated,
    )


_OF_LANES = (
    "counts",
    "running",
    "emitted",
    "finished",
    "references",
    "content",
    "older",
    "younger",
    "map_hash",
    "map_block",
)
