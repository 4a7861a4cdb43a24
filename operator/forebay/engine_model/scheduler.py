"""Which requests run in the next step, and how many tokens of each: vLLM's continuous batching.

The rules are those of vLLM's V1 scheduler (vllm/v1/core/sched/scheduler.py), in their order:

1. a step has a budget of tokens and at most `seqs_max` running requests;
2. running requests come first, in order: a decode takes one token, an unfinished prompt what the budget leaves;
3. blocks are allocated before anything runs; when there are none, the last running request is preempted: its blocks are
   freed and it is computed again later, as far as the prefix cache has not kept it;
4. waiting requests are looked at only if nothing was preempted, first come first served, and only while the whole of
   the next one fits what is free, not just its first chunk; cached full blocks of its prefix are taken first, but at
   least the last token is computed, because its logits are needed.

Led step by step along a recording of vLLM 0.32 under overload, these rules gave the same 269 preemptions and the same
4,500 steps (docs/benchmark/calibration.md).
"""

from __future__ import annotations

from forebay.engine_model.bank import (
    BLOCKS_FREE,
    CACHING,
    COUNTS,
    EMITTED,
    FINISHED,
    ID_BLOCKS,
    KV_BLOCK_TOKENS,
    NEVER,
    PREEMPTIONS,
    ROW_BLOCKS,
    RUNNING,
    SEQS_MAX,
    STEP_ADMITTED,
    STEP_CONTEXT_TOKENS,
    STEP_DECODING,
    STEP_PAIRS,
    STEP_PREEMPTED,
    STEP_PROMPT_TOKENS,
    STEP_TOKENS,
    STEP_TOKENS_MAX,
    WAITING,
    Bank,
    ring_append,
    ring_remove,
)
from forebay.engine_model.kv_blocks import block_hash, find_prefix, free_among, hold, release, remember, take
from forebay.engine_model.step_time import prompt_pairs


def place_row(  # noqa: PLR0917 - a compiled rule takes plain numbers by position
    bank: Bank, row: int, prompt: int, limit: int, id_at: int, id_count: int
) -> None:
    """Let a row stand for a new request."""
    bank.prompt[row] = prompt
    bank.limit[row] = limit
    bank.output[row] = 0
    bank.computed[row] = 0
    bank.chunk[row] = 0
    bank.cached[row] = NEVER
    bank.preempted[row] = 0
    bank.held[row] = 0
    bank.remembered[row] = 0
    bank.id_at[row] = id_at
    bank.id_count[row] = id_count


def queue(bank: Bank, lane: int, row: int) -> None:
    """Put a placed row at the end of an engine's queue."""
    ring_append(bank.before, bank.after, lane, row)
    bank.counts[lane * COUNTS + WAITING] += 1


def form_step(bank: Bank, lane: int) -> None:
    """Form an engine's next step; STEP_* say what it is. Empty only when there is no request at all."""
    base = lane * COUNTS
    for field in range(STEP_DECODING, STEP_TOKENS + 1):
        bank.counts[base + field] = 0
    budget = schedule_running(bank, lane, bank.size[STEP_TOKENS_MAX])
    if bank.counts[base + STEP_PREEMPTED] == 0:
        admit_waiting(bank, lane, budget)


def end_step(bank: Bank, lane: int) -> None:
    """Account for the step that was formed: EMITTED and FINISHED say how many rows got a token, and were done."""
    base, first = lane * COUNTS, lane * bank.size[SEQS_MAX]
    kept = emitted = finished = tokens = 0
    for index in range(bank.counts[base + RUNNING]):
        row = bank.running[first + index]
        bank.running[first + kept] = row
        kept += 1
        count = bank.chunk[row]
        tokens += count
        bank.chunk[row] = 0
        bank.computed[row] += count
        if bank.computed[row] < bank.prompt[row] + bank.output[row]:  # a chunk, not the last one
            continue
        bank.output[row] += 1
        bank.emitted[first + emitted] = row
        emitted += 1
        if bank.output[row] == bank.limit[row]:
            bank.finished[first + finished] = row
            finished += 1
            give_back(bank, lane, row)
            kept -= 1
    bank.counts[base + RUNNING] = kept
    bank.counts[base + EMITTED] = emitted
    bank.counts[base + FINISHED] = finished
    bank.counts[base + STEP_TOKENS] = tokens


def remove_row(bank: Bank, lane: int, row: int) -> None:
    """Take a request that has not finished out of an engine, in mid-step too, and give its blocks back."""
    base, first = lane * COUNTS, lane * bank.size[SEQS_MAX]
    kept = 0
    for index in range(bank.counts[base + RUNNING]):
        other = bank.running[first + index]
        if other != row:
            bank.running[first + kept] = other
            kept += 1
    if kept < bank.counts[base + RUNNING]:
        bank.counts[base + RUNNING] = kept
    else:
        ring_remove(bank.before, bank.after, row)
        bank.counts[base + WAITING] -= 1
    give_back(bank, lane, row)


def schedule_running(bank: Bank, lane: int, budget: int) -> int:
    """Give the running requests their tokens; return what is left of the budget."""
    base, first = lane * COUNTS, lane * bank.size[SEQS_MAX]
    index = 0
    while index < bank.counts[base + RUNNING] and budget > 0:
        row = bank.running[first + index]
        count = min(bank.prompt[row] + bank.output[row] - bank.computed[row], budget)
        while not allocate(bank, lane, row, count, 0):
            if preempt_last(bank, lane) == row:
                return budget
        add_to_step(bank, lane, row, count)
        budget -= count
        index += 1
    return budget


def admit_waiting(bank: Bank, lane: int, budget: int) -> None:
    """Let waiting requests in, first come first served, while seats, tokens and blocks last."""
    base, first, block_tokens = lane * COUNTS, lane * bank.size[SEQS_MAX], bank.size[KV_BLOCK_TOKENS]
    while bank.counts[base + WAITING] > 0 and budget > 0 and bank.counts[base + RUNNING] < bank.size[SEQS_MAX]:
        row = bank.after[lane]
        tokens = bank.prompt[row] + bank.output[row]
        hits = find_prefix(bank, lane, row, (tokens - 1) // block_tokens) if bank.size[CACHING] == 1 else 0
        if not fits(bank, lane, row, tokens, hits):
            return
        count = min(tokens - hits * block_tokens, budget)
        allocate(bank, lane, row, hits * block_tokens + count, hits)
        ring_remove(bank.before, bank.after, row)
        bank.counts[base + WAITING] -= 1
        bank.running[first + bank.counts[base + RUNNING]] = row
        bank.counts[base + RUNNING] += 1
        bank.counts[base + STEP_ADMITTED] += 1
        bank.computed[row] = hits * block_tokens
        if bank.cached[row] == NEVER:
            bank.cached[row] = hits * block_tokens
        add_to_step(bank, lane, row, count)
        budget -= count


def add_to_step(bank: Bank, lane: int, row: int, count: int) -> None:
    """Let `count` more tokens of a request be computed in this step."""
    base = lane * COUNTS
    bank.chunk[row] = count
    start = bank.computed[row]
    end = start + count
    # After a preemption prompt and answer are computed again: that is prefill, whatever the tokens once were.
    if count == 1 and bank.output[row] > 0 and end == bank.prompt[row] + bank.output[row]:
        bank.counts[base + STEP_DECODING] += 1
        bank.counts[base + STEP_CONTEXT_TOKENS] += end
    else:
        bank.counts[base + STEP_PROMPT_TOKENS] += count
        bank.counts[base + STEP_PAIRS] += prompt_pairs(end, start)


def fits(bank: Bank, lane: int, row: int, tokens: int, hits: int) -> bool:
    """Say whether a waiting request's `tokens` tokens fit the free blocks, `hits` of its blocks being cached.

    Without it chunks of long prompts are let in whose other chunks then find no blocks
    (vllm/v1/core/kv_cache_manager.py:allocate_slots of 0.32, scheduler_reserve_full_isl).
    """
    missing = -(-tokens // bank.size[KV_BLOCK_TOKENS]) - hits
    return missing <= bank.counts[lane * COUNTS + BLOCKS_FREE] - free_among(bank, row, hits)


def allocate(bank: Bank, lane: int, row: int, count: int, hits: int) -> bool:
    """Give a request the blocks for `count` more tokens; False when there are too few.

    `hits` blocks that it does not hold yet stand in its table already: `find_prefix` wrote them.
    """
    end = bank.computed[row] + count
    held = bank.held[row] + hits
    missing = max(0, -(-end // bank.size[KV_BLOCK_TOKENS]) - held)
    if missing == 0 and hits == 0 and bank.size[CACHING] == 0:
        return True
    if missing > bank.counts[lane * COUNTS + BLOCKS_FREE] - free_among(bank, row, hits):
        return False
    hold(bank, lane, row, hits)
    take(bank, lane, row, held, missing)
    bank.held[row] = held + missing
    if bank.size[CACHING] == 1:
        remember_full(bank, lane, row, end)
    return True


def remember_full(bank: Bank, lane: int, row: int, tokens: int) -> None:
    """Let others find the blocks that `tokens` tokens fill."""
    full = min(tokens // bank.size[KV_BLOCK_TOKENS], bank.id_count[row] * bank.size[ID_BLOCKS])
    for index in range(bank.remembered[row], full):
        remember(bank, lane, bank.table[row * bank.size[ROW_BLOCKS] + index], block_hash(bank, row, index))
    bank.remembered[row] = max(bank.remembered[row], full)


def preempt_last(bank: Bank, lane: int) -> int:
    """Send the last running request back to the head of the queue; return it."""
    base = lane * COUNTS
    bank.counts[base + RUNNING] -= 1
    row = bank.running[lane * bank.size[SEQS_MAX] + bank.counts[base + RUNNING]]
    give_back(bank, lane, row)
    bank.preempted[row] += 1
    ring_append(bank.before, bank.after, bank.after[lane], row)  # before the first is behind nobody
    bank.counts[base + WAITING] += 1
    bank.counts[base + STEP_PREEMPTED] += 1
    bank.counts[base + PREEMPTIONS] += 1
    return row


def give_back(bank: Bank, lane: int, row: int) -> None:
    """Free a request's blocks; what was computed of it is gone."""
    release(bank, lane, row, bank.held[row])
    bank.held[row] = 0
    bank.remembered[row] = 0
    bank.computed[row] = 0
    bank.chunk[row] = 0
