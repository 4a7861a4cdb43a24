"""The gateway of one service: requests come, wait, are sent where they are answered soonest, or are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.engine_model.bank import (
    BLOCK_TOKENS,
    BLOCKS,
    BLOCKS_FREE,
    COUNTS,
    LANES,
    SEQS_MAX,
    ring_append,
    ring_remove,
)
from forebay.engine_model.scheduler import place_row, queue
from forebay.routing.rules import (
    GAPS_LEAST,
    PREFILL_FIRST_TOKENS_PER_S,
    UNKNOWN,
    cost_ms,
    has_room,
    pace_of,
    predicted_itl_us,
    predicted_ttft_ms,
    prefill_rate,
    smoothed,
)
from forebay.sim.datapath.engines import begin_step, free_row
from forebay.sim.datapath.layout import (
    ARRIVAL_TOKENS,
    ARRIVALS,
    BUSY_CLOCK_US,
    BUSY_WAIT_US,
    CLOCK_US,
    HELD,
    HELD_TOKENS,
    ITL_COUNT,
    ITL_SUM_US,
    LANE_FIELDS,
    MODEL_LEN_MAX,
    NEVER_US,
    NEXT_ARRIVAL,
    NEXT_OPEN_US,
    OWN,
    PACE,
    PENDING,
    PROMPT_TOTAL,
    QUEUE_MAX,
    QUEUE_SUM_US,
    RATE,
    REFUSED,
    REPORT_ITL_COUNT,
    REPORT_ITL_US,
    REPORT_KV_USED,
    REPORT_PROMPT,
    REPORT_QUEUE_US,
    REPORT_TTFT_US,
    REPORT_US,
    ROWS_FREE,
    SECOND_US,
    START_CLOCK_US,
    START_WAIT_US,
    TTFT_SUM_US,
)

if TYPE_CHECKING:
    from forebay.sim.datapath.layout import DataPath


def turn_clocks(path: DataPath, now_us: int) -> None:
    """Let the time that passed count on the clock that ran: routing.service has two, one of which runs."""
    clock = path.clock
    passed = now_us - clock[CLOCK_US]
    if passed <= 0:
        return
    serves = False
    for index in range(path.bank.size[LANES]):
        if path.routable[index] <= clock[CLOCK_US]:
            serves = True
    if serves:
        clock[BUSY_CLOCK_US] += passed
    else:
        clock[START_CLOCK_US] += passed
    clock[CLOCK_US] = now_us


def arrive(path: DataPath, now_us: int) -> None:
    """Take the next request of the trace in, or refuse it."""
    clock, index = path.clock, path.clock[NEXT_ARRIVAL]
    clock[NEXT_ARRIVAL] += 1
    prompt, output = path.trace_prompt[index], path.trace_output[index]
    clock[ARRIVALS] += 1
    clock[ARRIVAL_TOKENS] += prompt
    path.second_arrived[now_us // SECOND_US] += 1
    turn_clocks(path, now_us)
    if clock[HELD] >= clock[QUEUE_MAX] or prompt + output > clock[MODEL_LEN_MAX]:
        clock[REFUSED] += 1
        return
    clock[ROWS_FREE] -= 1
    row = path.rows[clock[ROWS_FREE]]
    id_at = path.trace_id_at[index]
    place_row(path.bank, row, prompt, output, id_at, path.trace_id_at[index + 1] - id_at)
    path.arrived[row], path.request[row] = now_us, index
    path.pending[row], path.worst[row], path.sent[row] = prompt, 0, UNKNOWN
    path.start_limit[row] = clock[START_CLOCK_US] + clock[START_WAIT_US]
    path.busy_limit[row] = clock[BUSY_CLOCK_US] + clock[BUSY_WAIT_US]
    ring_append(path.hold_before, path.hold_after, 0, row)
    clock[HELD] += 1
    clock[HELD_TOKENS] += prompt
    release_held(path, now_us)


def release_held(path: DataPath, now_us: int) -> None:
    """Send on, in order, all held requests for which there is room."""
    clock = path.clock
    while clock[HELD] > 0:
        row = path.hold_after[0]
        number = pick(path, path.bank.prompt[row], now_us)
        if number < 0:
            return
        leave_hold(path, row)
        base = number * LANE_FIELDS
        path.lane[base + OWN] += 1
        path.lane[base + PENDING] += path.pending[row]
        path.sent[row] = now_us
        ring_append(path.sent_before, path.sent_after, number, row)
        queue(path.bank, number, row)
        if path.step_end[number] == NEVER_US:
            begin_step(path, number, now_us)


def leave_hold(path: DataPath, row: int) -> None:
    """Take a request out of the gateway's queue."""
    ring_remove(path.hold_before, path.hold_after, row)
    path.clock[HELD] -= 1
    path.clock[HELD_TOKENS] -= path.bank.prompt[row]


def pick(path: DataPath, prompt: int, now_us: int) -> int:
    """Return the lane that `routing.pick.order` would name first, or -1: it has to wait."""
    lane, batch_max = path.lane, path.bank.size[SEQS_MAX]
    kv_total = path.bank.size[BLOCKS] * BLOCK_TOKENS
    usual = usual_pace = UNKNOWN
    best, best_ms, best_load = -1, 0, 0
    for number in range(path.bank.size[LANES]):
        if path.routable[number] > now_us:
            continue
        base = number * LANE_FIELDS
        load, pending, rate = lane[base + OWN], lane[base + PENDING], lane[base + RATE]
        age_ms = (now_us - lane[base + REPORT_US]) // 1000
        if not has_room(load, age_ms, batch_max, kv_total, lane[base + REPORT_KV_USED], pending, prompt):
            continue
        pace = lane[base + PACE]
        if usual == UNKNOWN and min(rate, pace) == UNKNOWN:
            usual = service_mean(path, RATE, PREFILL_FIRST_TOKENS_PER_S, now_us)
            usual_pace = service_mean(path, PACE, 0, now_us)
        if rate == UNKNOWN:
            rate = usual
        if pace == UNKNOWN:
            pace = usual_pace
        ttft_ms = predicted_ttft_ms(pending + prompt, rate, load, batch_max, age_ms)
        cost = cost_ms(ttft_ms, predicted_itl_us(pace, load))
        if best < 0 or cost < best_ms or (cost == best_ms and load < best_load):
            best, best_ms, best_load = number, cost, load
    return best


def service_mean(path: DataPath, field: int, otherwise: int, now_us: int) -> int:
    """Average what was measured of the lanes that serve, so that a newcomer competes as an equal."""
    total = known = 0
    for number in range(path.bank.size[LANES]):
        measured = path.lane[number * LANE_FIELDS + field]
        if path.routable[number] <= now_us and measured != UNKNOWN:
            total += measured
            known += 1
    return total // known if known > 0 else otherwise


def open_lanes(path: DataPath, now_us: int) -> None:
    """Let held requests go to the lanes that may be picked from now on, and note when the next ones may."""
    turn_clocks(path, now_us)
    release_held(path, now_us)
    next_us = NEVER_US
    for number in range(path.bank.size[LANES]):
        if now_us < path.routable[number] < next_us:
            next_us = path.routable[number]
    path.clock[NEXT_OPEN_US] = next_us


def poll(path: DataPath, now_us: int) -> None:
    """Let the gateway read every lane's report, and refuse whoever has waited too long."""
    for number in range(path.bank.size[LANES]):
        if path.routable[number] <= now_us:
            read_report(path, number, now_us)
    turn_clocks(path, now_us)
    clock = path.clock
    while clock[HELD] > 0:
        row = path.hold_after[0]
        if path.start_limit[row] > clock[START_CLOCK_US] and path.busy_limit[row] > clock[BUSY_CLOCK_US]:
            break
        leave_hold(path, row)
        free_row(path, row)
        clock[REFUSED] += 1
    release_held(path, now_us)


def read_report(path: DataPath, number: int, now_us: int) -> None:
    """Bring the gateway's book of one lane up to date, as `routing.replica.Replica.observe` does."""
    lane, base, bank = path.lane, number * LANE_FIELDS, path.bank
    prompts = lane[base + PROMPT_TOTAL] - lane[base + REPORT_PROMPT]
    left, row = prompts, path.sent_after[number]
    while left > 0 and row >= bank.size[LANES]:
        seen = min(left, path.pending[row])
        path.pending[row] -= seen
        lane[base + PENDING] -= seen
        left -= seen
        row = path.sent_after[row]
    ttft_us = lane[base + TTFT_SUM_US] - lane[base + REPORT_TTFT_US]
    prefill_ms = (ttft_us - (lane[base + QUEUE_SUM_US] - lane[base + REPORT_QUEUE_US])) // 1000
    if prompts > 0 and prefill_ms > 0:
        lane[base + RATE] = prefill_rate(lane[base + RATE], prompts, prefill_ms)
    gaps = lane[base + ITL_COUNT] - lane[base + REPORT_ITL_COUNT]
    if gaps >= GAPS_LEAST:
        gaps_ms = (lane[base + ITL_SUM_US] - lane[base + REPORT_ITL_US]) // 1000
        lane[base + PACE] = smoothed(lane[base + PACE], pace_of(1000 * gaps_ms // gaps, lane[base + OWN]))
    lane[base + REPORT_ITL_US] = lane[base + ITL_SUM_US]
    lane[base + REPORT_ITL_COUNT] = lane[base + ITL_COUNT]
    lane[base + REPORT_US] = now_us
    used = bank.size[BLOCKS] - bank.counts[number * COUNTS + BLOCKS_FREE]
    # A report says it in thousandths.
    lane[base + REPORT_KV_USED] = bank.size[BLOCKS] * BLOCK_TOKENS * (1000 * used // bank.size[BLOCKS]) // 1000
    lane[base + REPORT_PROMPT] = lane[base + PROMPT_TOTAL]
    lane[base + REPORT_TTFT_US] = lane[base + TTFT_SUM_US]
    lane[base + REPORT_QUEUE_US] = lane[base + QUEUE_SUM_US]
