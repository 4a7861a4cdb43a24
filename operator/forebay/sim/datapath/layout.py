"""What a service's data path is made of: flat int64 arrays, and what stands where in them.

The rules over them (`gateway`, `engines`, `scores`, `advance`) are compiled by `forebay.sim.compiled` together with
those of `engine_model` and `routing` that they call; run plain they give the same bytes, slowly. What happens between
two looks of the judgement is here; what the judgement changes (replicas come, serve, drain, go) is done to the same
arrays by `forebay.sim.service`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from forebay.core.units import I64
    from forebay.engine_model.bank import Bank

NEVER_US = 2**62  # the end of a step that is not under way
PS_PER_US = 10**6
SECOND_US = 10**6
POLL_US = SECOND_US  # the gateway reads every replica's report this often
# vLLM's HTTP server, tokenizer and the hop to its engine process: before a request can be scheduled (engines.md).
FRONT_END_US = 8_000
ENDS = 1024  # step ends remembered a lane: a second has at most 250 steps of 4 ms
# Seconds behind `worst_since`: it holds only those that no later one exceeds, so it is full when a lane has sped up
# 1024 times in a row. Then the oldest is forgotten.
STACK = 1024

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
    NEXT_OPEN_US,  # when a lane is promoted; NEVER_US: none is about to
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
) = range(21)
CLOCKS = 21

# `lane`: columns of each replica, LANE_FIELDS a lane.
(
    DICE,  # 48-bit state of its noise
    OWN,  # requests that the gateway sent here and that have not ended
    PENDING,  # prompt tokens of those that no report has shown yet
    RATE,  # prefill tokens a second, UNKNOWN before the first measurement
    PACE,  # routing.rules.pace_of its gaps, likewise
    REPORT_US,
    REPORT_KV_USED,
    REPORT_PROMPT,
    REPORT_TTFT_US,
    REPORT_QUEUE_US,
    REPORT_ITL_US,
    REPORT_ITL_COUNT,
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
) = range(26)
LANE_FIELDS = 26


class DataPath(NamedTuple):
    """One service's arrays."""

    bank: Bank
    clock: I64  # [CLOCKS]
    # Read of every lane at every event, so they lie together.
    step_end: I64  # [lanes] us; NEVER_US: it has nothing to do
    routable: I64  # [lanes] us from when on the gateway may pick it; NEVER_US: not at all
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
