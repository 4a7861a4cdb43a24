"""What users had: gaps between tokens by the second, and each answer held against its targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.engine_model.bank import COUNTS, EMITTED, SEQS_MAX
from forebay.sim.datapath.layout import (
    ENDS,
    FRONT_END_US,
    GENERATION_TOTAL,
    GOOD,
    GOOD_ITL,
    GOOD_TTFT,
    ITL_BINS_10TH_MS,
    ITL_COUNT,
    ITL_MEAN_MS,
    ITL_SUM_US,
    ITL_WORST_MS,
    LANE_FIELDS,
    PROMPT_TOTAL,
    SCORES,
    SECOND_US,
    STACK,
    STACK_END,
    STACK_FIRST,
    STEP,
    TARGETS,
    TTFT_BINS_MS,
    TTFT_COUNT,
    TTFT_MS,
    TTFT_PER_1K_MS,
    TTFT_SUM_US,
    WINDOW,
)

if TYPE_CHECKING:
    from forebay.sim.datapath.layout import DataPath


def note_tokens(path: DataPath, number: int, now_us: int) -> None:
    """Note when each row that has one more token got it."""
    bank, lane, base = path.bank, path.lane, number * LANE_FIELDS
    first = number * bank.size[SEQS_MAX]
    emitted = bank.counts[number * COUNTS + EMITTED]
    itl_sum = itl_count = 0
    for index in range(emitted):
        row = bank.emitted[first + index]
        if bank.output[row] == 1:
            path.first[row] = now_us
            path.join[row] = lane[base + STEP]
            lane[base + PROMPT_TOTAL] += bank.prompt[row]
            lane[base + TTFT_SUM_US] += now_us - path.sent[row] + FRONT_END_US
            lane[base + TTFT_COUNT] += 1
        else:
            gap = now_us - path.last[row]
            itl_sum += gap
            itl_count += 1
            if gap > SECOND_US:  # it was preempted: its own pause, and no second of the lane's speaks of it
                path.worst[row] = max(path.worst[row], gap, worst_since(path, number, path.join[row]))
                path.join[row] = lane[base + STEP]
        path.last[row] = now_us
    lane[base + GENERATION_TOTAL] += emitted
    lane[base + ITL_SUM_US] += itl_sum
    lane[base + ITL_COUNT] += itl_count


def note_end(path: DataPath, number: int, now_us: int) -> None:
    """Close the seconds that end with this step; keep of their mean gaps what no later second exceeds."""
    lane, base = path.lane, number * LANE_FIELDS
    ends, stack = number * ENDS, number * STACK
    step = lane[base + STEP]
    path.ends[ends + step % ENDS] = now_us
    if step - lane[base + WINDOW] >= ENDS:
        lane[base + WINDOW] = step - ENDS + 1
    while now_us - path.ends[ends + lane[base + WINDOW] % ENDS] >= SECOND_US:
        begun = lane[base + WINDOW]
        gap = (now_us - path.ends[ends + begun % ENDS]) // (step - begun)
        while (
            lane[base + STACK_END] > lane[base + STACK_FIRST]
            and path.stack_gap[stack + (lane[base + STACK_END] - 1) % STACK] <= gap
        ):
            lane[base + STACK_END] -= 1
        if lane[base + STACK_END] - lane[base + STACK_FIRST] == STACK:
            lane[base + STACK_FIRST] += 1
        path.stack_step[stack + lane[base + STACK_END] % STACK] = begun
        path.stack_gap[stack + lane[base + STACK_END] % STACK] = gap
        lane[base + STACK_END] += 1
        lane[base + WINDOW] += 1


def worst_since(path: DataPath, number: int, step: int) -> int:
    """Return the largest mean gap of a second that began with `step` or later and has ended; 0 without one."""
    base, stack = number * LANE_FIELDS, number * STACK
    low, high = path.lane[base + STACK_FIRST], path.lane[base + STACK_END]
    while low < high:
        middle = (low + high) // 2
        if path.stack_step[stack + middle % STACK] < step:
            low = middle + 1
        else:
            high = middle
    if low == path.lane[base + STACK_END]:
        return 0
    gap: int = path.stack_gap[stack + low % STACK]
    return gap


def score(path: DataPath, number: int, row: int) -> None:
    """Hold an answered request against each class of targets, as `core.goodness.judge` does."""
    bank = path.bank
    ttft_us = path.first[row] - path.arrived[row] + FRONT_END_US
    span_us, gaps = path.last[row] - path.first[row], bank.output[row] - 1
    mean_us = span_us // gaps if gaps > 0 else 0
    worst_us = max(path.worst[row], worst_since(path, number, path.join[row]))
    if span_us < SECOND_US:
        worst_us = max(worst_us, mean_us)
    path.ttft_ms[min(ttft_us // 1000, TTFT_BINS_MS - 1)] += 1
    if gaps > 0:
        path.itl_10th_ms[min(mean_us // 100, ITL_BINS_10TH_MS - 1)] += 1
    second = path.arrived[row] // SECOND_US
    for kind in range(len(path.targets) // TARGETS):
        at = kind * TARGETS
        limit_ms = path.targets[at + TTFT_MS] + path.targets[at + TTFT_PER_1K_MS] * bank.prompt[row] // 1000
        in_time = ttft_us <= limit_ms * 1000
        smooth = (
            span_us <= path.targets[at + ITL_MEAN_MS] * 1000 * gaps
            and worst_us <= path.targets[at + ITL_WORST_MS] * 1000
        )
        path.score[kind * SCORES + GOOD_TTFT] += in_time
        path.score[kind * SCORES + GOOD_ITL] += smooth
        if in_time and smooth:
            path.score[kind * SCORES + GOOD] += 1
            if kind == 0:
                path.second_good[second] += 1
