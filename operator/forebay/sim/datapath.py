"""The data path of one simulated service: requests arrive, wait, are routed, run in engines, and are scored.

Rules over flat int64 arrays, compiled by `forebay.sim.compiled` together with those of `engine_model` and `routing`
that they call; run plain they give the same bytes, slowly. What happens between two looks of the judgement is here;
what the judgement changes (replicas come, serve, drain, go) is done to the same arrays by `forebay.sim.service`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from forebay.engine_model.bank import BLOCK_TOKENS as BLOCK
from forebay.engine_model.bank import (
    BLOCKS,
    BLOCKS_FREE,
    CACHING,
    COUNTS,
    EMITTED,
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
    Bank,
    ring_append,
    ring_remove,
)
from forebay.engine_model.scheduler import end_step, form_step, place_row, queue, remove_row
from forebay.engine_model.step_time import step_time_ps
from forebay.routing.rules import UNKNOWN, has_room, learned_rate, predicted_ttft_ms

if TYPE_CHECKING:
    from forebay.core.units import I64

NEVER_US = 2**62  # the end of a step that is not under way
PS_PER_US = 10**6
SECOND_US = 10**6
POLL_US = SECOND_US  # the gateway reads every replica's report this often
# vLLM's HTTP server, tokenizer and the hop to its engine process: before a request can be scheduled (engines.md).
FRONT_END_US = 8_000
PREFILL_FIRST_TOKENS_PER_S = 8_000  # as in routing.pick: what a token costs before anything was measured
ENDS = 1024  # step ends remembered a lane: a second has at most 250 steps of 4 ms
STACK = 256  # of the windows behind `worst_second_us`; it holds only those that no later one exceeds

# Targets a class, as `core.goodness.Targets` has them.
TTFT_MS, TTFT_PER_1K_MS, ITL_MEAN_MS, ITL_WORST_MS = range(4)
TARGETS = 4
# Scores a class.
GOOD, GOOD_TTFT, GOOD_ITL = range(3)
SCORES = 3
TTFT_BINS_MS, ITL_BINS_10TH_MS = 16_384, 8_192

# `clock`: scalars of the service.
(
    NOW_US,
    NEXT_ARRIVAL,
    NEXT_POLL_US,
    ROWS_FREE,
    HELD,
    HELD_TOKENS,
    ARRIVALS,
    ARRIVAL_TOKENS,
    ANSWERED,
    REFUSED,
    FAILED,
    QUEUE_MAX,
    START_WAIT_US,
    BUSY_WAIT_US,
    START_CLOCK_US,
    BUSY_CLOCK_US,
    CLOCK_US,
    MODEL_LEN_MAX,
    NOISE_MILLI,
    STEPS,
) = range(20)
CLOCKS = 20

# `lane`: columns of each replica, LANE_FIELDS a lane.
(
    ROUTABLE_US,  # from when on the gateway may pick it; NEVER_US: not at all
    STEP_END_US,
    DICE,  # 48-bit state of its noise
    OWN,  # requests that the gateway sent here and that have not ended
    PENDING,  # prompt tokens of those that no report has shown yet
    RATE,  # prefill tokens a second, UNKNOWN before the first measurement
    REPORT_US,
    REPORT_KV_USED,
    REPORT_PROMPT,
    REPORT_TTFT_US,
    REPORT_QUEUE_US,
    PROMPT_TOTAL,
    GENERATION_TOTAL,
    FINISHED_TOTAL,
    TTFT_SUM_US,
    TTFT_COUNT,
    ITL_SUM_US,
    ITL_COUNT,
    QUEUE_SUM_US,
    QUERY_TOTAL,
    HIT_TOTAL,
    STEP,  # number of its last step
    WINDOW,  # first step whose second has not ended
    STACK_FIRST,
    STACK_END,
) = range(25)
LANE_FIELDS = 25


class DataPath(NamedTuple):
    """One service's arrays."""

    bank: Bank
    clock: I64  # [CLOCKS]
    lane: I64  # [lanes * LANE_FIELDS]
    times: I64  # [lanes * 5] true step-time constants
    ends: I64  # [lanes * ENDS] when its last steps ended
    stack_step: I64  # [lanes * STACK] first step of a second, and the mean gap in it
    stack_gap: I64
    # Rows, as in the bank.
    arrived: I64  # us
    sent: I64  # us
    request: I64  # its place in the trace
    pending: I64  # prompt tokens that no report has shown
    first: I64  # us of the first token
    last: I64
    join: I64  # number of the step of its first token
    worst: I64  # us, before `join` was moved by a preemption
    start_limit: I64  # readings of the two clocks at which its patience ends
    busy_limit: I64
    rows: I64  # the free ones, a stack
    hold_before: I64  # the ring of those that the gateway holds; 0 anchors it
    hold_after: I64
    sent_before: I64  # the rings of those sent to each lane
    sent_after: I64
    # The trace.
    trace_us: I64
    trace_prompt: I64
    trace_output: I64
    trace_id_at: I64  # [N + 1]; all zero without prefixes
    # Scores.
    targets: I64  # [classes * TARGETS]
    score: I64  # [classes * SCORES]
    ttft_ms: I64  # [TTFT_BINS_MS] answered requests by TTFT
    itl_10th_ms: I64  # [ITL_BINS_10TH_MS] and by mean ITL
    second_arrived: I64  # [seconds] by the second of arrival
    second_good: I64  # of the first class


def advance(path: DataPath, until_us: int) -> None:
    """Let the service run until a time."""
    lanes, clock, lane = path.bank.size[LANES], path.clock, path.lane
    requests = len(path.trace_us)
    while True:
        due_us, number = NEVER_US, -1
        if clock[NEXT_ARRIVAL] < requests:
            due_us = path.trace_us[clock[NEXT_ARRIVAL]]
        for index in range(lanes):
            end_us = lane[index * LANE_FIELDS + STEP_END_US]
            if end_us < due_us:
                due_us, number = end_us, index
        if clock[NEXT_POLL_US] <= min(due_us, until_us):
            clock[NOW_US] = clock[NEXT_POLL_US]
            poll(path, clock[NOW_US])
            clock[NEXT_POLL_US] += POLL_US
            continue
        if due_us > until_us:
            clock[NOW_US] = until_us
            return
        clock[NOW_US] = due_us
        if number >= 0:
            finish_step(path, number, due_us)
        else:
            arrive(path, due_us)


def turn_clocks(path: DataPath, now_us: int) -> None:
    """Let the time that passed count on the clock that ran: routing.service has two, one of which runs."""
    clock = path.clock
    passed = now_us - clock[CLOCK_US]
    if passed <= 0:
        return
    serves = False
    for index in range(path.bank.size[LANES]):
        if path.lane[index * LANE_FIELDS + ROUTABLE_US] <= clock[CLOCK_US]:
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
        if path.lane[base + STEP_END_US] == NEVER_US:
            begin_step(path, number, now_us)


def leave_hold(path: DataPath, row: int) -> None:
    """Take a request out of the gateway's queue."""
    ring_remove(path.hold_before, path.hold_after, row)
    path.clock[HELD] -= 1
    path.clock[HELD_TOKENS] -= path.bank.prompt[row]


def pick(path: DataPath, prompt: int, now_us: int) -> int:
    """Return the lane that `routing.pick.order` would name first, or -1: it has to wait."""
    lane, lanes = path.lane, path.bank.size[LANES]
    usual = service_rate(path, now_us)
    kv_total = path.bank.size[BLOCKS] * BLOCK
    best, best_ms, best_load = -1, 0, 0
    for number in range(lanes):
        base = number * LANE_FIELDS
        if lane[base + ROUTABLE_US] > now_us:
            continue
        load = lane[base + OWN]
        age_ms = (now_us - lane[base + REPORT_US]) // 1000
        if not has_room(
            load, age_ms, path.bank.size[SEQS_MAX], kv_total, lane[base + REPORT_KV_USED], lane[base + PENDING], prompt
        ):
            continue
        rate = usual if lane[base + RATE] == UNKNOWN else lane[base + RATE]
        wait_ms = predicted_ttft_ms(lane[base + PENDING] + prompt, rate, load, path.bank.size[SEQS_MAX], age_ms)
        if best < 0 or wait_ms < best_ms or (wait_ms == best_ms and load < best_load):
            best, best_ms, best_load = number, wait_ms, load
    return best


def service_rate(path: DataPath, now_us: int) -> int:
    """Average the measured prefill rates of what serves, so that a newcomer competes as an equal."""
    total = known = 0
    for number in range(path.bank.size[LANES]):
        base = number * LANE_FIELDS
        if path.lane[base + ROUTABLE_US] <= now_us and path.lane[base + RATE] != UNKNOWN:
            total += path.lane[base + RATE]
            known += 1
    return total // known if known > 0 else PREFILL_FIRST_TOKENS_PER_S


def begin_step(path: DataPath, number: int, now_us: int) -> None:
    """Start a lane's next step, if there is anything to do."""
    bank, lane, base = path.bank, path.lane, number * LANE_FIELDS
    at = number * COUNTS
    if bank.counts[at + RUNNING] + bank.counts[at + WAITING] == 0:
        lane[base + STEP_END_US] = NEVER_US
        return
    form_step(bank, number)
    running, first = bank.counts[at + RUNNING], number * bank.size[SEQS_MAX]
    for index in range(running - bank.counts[at + STEP_ADMITTED], running):
        row = bank.running[first + index]
        if bank.preempted[row] == 0:
            lane[base + QUEUE_SUM_US] += now_us - path.sent[row]
            lane[base + QUERY_TOTAL] += bank.prompt[row] * bank.size[CACHING]
            lane[base + HIT_TOTAL] += bank.cached[row] * bank.size[CACHING]
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
    lane[base + STEP_END_US] = now_us + max(1, noisy(path, number, price_ps) // PS_PER_US)
    path.clock[STEPS] += 1


def noisy(path: DataPath, number: int, time_ps: int) -> int:
    """Roll a lane's dice: nearly normal noise, the sum of three even draws, of NOISE_MILLI standard deviation."""
    # drand48's generator: 48 bits, of which the upper 36 are used. In int64 the product wraps, its low 48 bits do not.
    state = (int(path.lane[number * LANE_FIELDS + DICE]) * 0x5DEECE66D + 0xB) & 0xFFFFFFFFFFFF
    path.lane[number * LANE_FIELDS + DICE] = state
    draws = ((state >> 36) & 0xFFF) + ((state >> 24) & 0xFFF) + ((state >> 12) & 0xFFF)
    # Three even draws from [0, 4096) have mean 6142.5 and standard deviation 2048.
    more_ps: int = time_ps // 1_000_000 * path.clock[NOISE_MILLI] * (2 * draws - 12_285) // 4096 * 1000
    return time_ps + more_ps


def finish_step(path: DataPath, number: int, now_us: int) -> None:
    """End a lane's step: tokens are noted, ends scored, held requests let in, the next step begun."""
    bank, lane, base = path.bank, path.lane, number * LANE_FIELDS
    end_step(bank, number)
    lane[base + STEP] += 1
    note_end(path, number, now_us)
    at, first = number * COUNTS, number * bank.size[SEQS_MAX]
    emitted = bank.counts[at + EMITTED]
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
    finished = bank.counts[at + FINISHED]
    for index in range(finished):
        row = bank.finished[first + index]
        score(path, number, row)
        leave_lane(path, number, row)
    lane[base + FINISHED_TOTAL] += finished
    path.clock[ANSWERED] += finished
    begin_step(path, number, now_us)
    if finished > 0:
        release_held(path, now_us)


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


def poll(path: DataPath, now_us: int) -> None:
    """Let the gateway read every lane's report, and refuse whoever has waited too long."""
    for number in range(path.bank.size[LANES]):
        if path.lane[number * LANE_FIELDS + ROUTABLE_US] <= now_us:
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
        lane[base + RATE] = learned_rate(lane[base + RATE], max(1, 1000 * prompts // prefill_ms))
    lane[base + REPORT_US] = now_us
    lane[base + REPORT_KV_USED] = (bank.size[BLOCKS] - bank.counts[number * COUNTS + BLOCKS_FREE]) * BLOCK
    lane[base + REPORT_PROMPT] = lane[base + PROMPT_TOTAL]
    lane[base + REPORT_TTFT_US] = lane[base + TTFT_SUM_US]
    lane[base + REPORT_QUEUE_US] = lane[base + QUEUE_SUM_US]


def kill_lane(path: DataPath, number: int) -> None:
    """Let a replica die with all that runs on it: those requests have failed."""
    row = path.sent_after[number]
    while row >= path.bank.size[LANES]:
        after = path.sent_after[row]
        remove_row(path.bank, number, row)
        leave_lane(path, number, row)
        path.clock[FAILED] += 1
        row = after
    path.lane[number * LANE_FIELDS + STEP_END_US] = NEVER_US
    path.lane[number * LANE_FIELDS + ROUTABLE_US] = NEVER_US
