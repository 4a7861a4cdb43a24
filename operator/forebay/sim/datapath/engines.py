"""The engines of one service: steps begin and end, rows come free, a replica dies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.engine_model.bank import (
    CACHING,
    COUNTS,
    FINISHED,
    LANES,
    RUNNING,
    SEQS_MAX,
    STEP_ADMITTED,
    STEP_CONTEXT_TOKENS,
    STEP_DECODING,
    STEP_PAIRS,
    STEP_PROMPT_TOKENS,
    WAITING,
    ring_remove,
)
from forebay.engine_model.kv_blocks import forget_all
from forebay.engine_model.scheduler import end_step, form_step, remove_row
from forebay.engine_model.step_time import step_time_ps
from forebay.sim.datapath.layout import (
    ANSWERED,
    DICE,
    FAILED,
    FINISHED_TOTAL,
    HIT_TOTAL,
    LANE_FIELDS,
    NEVER_US,
    NOISE_MILLI,
    OWN,
    PENDING,
    PS_PER_US,
    QUERY_TOTAL,
    QUEUE_SUM_US,
    ROWS_FREE,
    STEP,
    STEPS,
)
from forebay.sim.datapath.scores import note_end, note_tokens, score

if TYPE_CHECKING:
    from forebay.sim.datapath.layout import DataPath


def begin_step(path: DataPath, number: int, now_us: int) -> None:
    """Start a lane's next step, if there is anything to do."""
    bank, at = path.bank, number * COUNTS
    if bank.counts[at + RUNNING] + bank.counts[at + WAITING] == 0:
        path.step_end[number] = NEVER_US
        return
    form_step(bank, number)
    if bank.counts[at + STEP_ADMITTED] > 0:
        note_admissions(path, number, now_us)
    price_ps = step_time_ps(
        path.times[5 * number],
        path.times[5 * number + 1],
        path.times[5 * number + 2],
        path.times[5 * number + 3],
        path.times[5 * number + 4],
        bank.counts[at + STEP_DECODING],
        bank.counts[at + STEP_CONTEXT_TOKENS],
        bank.counts[at + STEP_PROMPT_TOKENS],
        bank.counts[at + STEP_PAIRS],
    )
    path.step_end[number] = now_us + max(1, noisy(path, number, price_ps) // PS_PER_US)
    path.clock[STEPS] += 1


def note_admissions(path: DataPath, number: int, now_us: int) -> None:
    """Count how long those that enter the batch have queued, and what of their prompts was cached."""
    bank, lane, base = path.bank, path.lane, number * LANE_FIELDS
    running, first = bank.counts[number * COUNTS + RUNNING], number * bank.size[SEQS_MAX]
    for index in range(running - bank.counts[number * COUNTS + STEP_ADMITTED], running):
        row = bank.running[first + index]
        if bank.preempted[row] == 0:
            lane[base + QUEUE_SUM_US] += now_us - path.sent[row]
            lane[base + QUERY_TOTAL] += bank.prompt[row] * bank.size[CACHING]
            lane[base + HIT_TOTAL] += bank.cached[row] * bank.size[CACHING]


def noisy(path: DataPath, number: int, time_ps: int) -> int:
    """Roll a lane's dice: nearly normal noise, the sum of three even draws, of NOISE_MILLI standard deviation."""
    # drand48's generator: 48 bits, of which the upper 36 are used. In int64 the product wraps, its low 48 bits do not.
    state = (int(path.lane[number * LANE_FIELDS + DICE]) * 0x5DEECE66D + 0xB) & 0xFFFFFFFFFFFF
    path.lane[number * LANE_FIELDS + DICE] = state
    draws = ((state >> 36) & 0xFFF) + ((state >> 24) & 0xFFF) + ((state >> 12) & 0xFFF)
    # Three even draws from [0, 4096) have mean 6142.5 and standard deviation 2048.
    more_ps: int = time_ps // 1_000_000 * path.clock[NOISE_MILLI] * (2 * draws - 12_285) // 4096 * 1000
    return time_ps + more_ps


def finish_step(path: DataPath, number: int, now_us: int) -> int:
    """End a lane's step: tokens are noted, ends scored, the next step begun; return how many requests ended."""
    bank, lane, base = path.bank, path.lane, number * LANE_FIELDS
    end_step(bank, number)
    lane[base + STEP] += 1
    note_end(path, number, now_us)
    note_tokens(path, number, now_us)
    finished: int = bank.counts[number * COUNTS + FINISHED]
    for index in range(finished):
        row = bank.finished[number * bank.size[SEQS_MAX] + index]
        score(path, number, row)
        leave_lane(path, number, row)
    lane[base + FINISHED_TOTAL] += finished
    path.clock[ANSWERED] += finished
    begin_step(path, number, now_us)
    return finished


def leave_lane(path: DataPath, number: int, row: int) -> None:
    """Note in the gateway's book that a sent request has ended, and free its row."""
    base = number * LANE_FIELDS
    ring_remove(path.sent_before, path.sent_after, row)
    path.lane[base + OWN] -= 1
    path.lane[base + PENDING] -= path.pending[row]
    free_row(path, row)


def free_row(path: DataPath, row: int) -> None:
    """Let another request have the row."""
    path.rows[path.clock[ROWS_FREE]] = row
    path.clock[ROWS_FREE] += 1


def clear_lane(path: DataPath, number: int) -> None:
    """Let a new engine stand where another stood: its prefix cache is empty."""
    forget_all(path.bank, number)


def kill_lane(path: DataPath, number: int) -> None:
    """Let a replica die with all that runs on it: those requests have failed."""
    row = path.sent_after[number]
    while row >= path.bank.size[LANES]:
        after = path.sent_after[row]
        remove_row(path.bank, number, row)
        leave_lane(path, number, row)
        path.clock[FAILED] += 1
        row = after
    path.step_end[number] = NEVER_US
    path.routable[number] = NEVER_US
