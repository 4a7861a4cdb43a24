"""Which requests run in the next step, and how many tokens of each: vLLM's continuous batching.

The rules are those of vLLM's V1 scheduler (vllm/v1/core/sched/scheduler.py), in their order:

1. a step has a budget of tokens and at most `max_num_seqs` running requests;
2. running requests come first, in order: a decode takes one token, an unfinished prompt what the budget leaves;
3. blocks are allocated before anything runs; when there are none, the last running request is preempted: its blocks are
   freed and it is computed again later, as far as the prefix cache has not kept it;
4. waiting requests are looked at only if nothing was preempted, first come first served; cached full blocks of their
   prefix are taken first, but at least the last token is computed, because its logits are needed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forebay.engine_model.kv_blocks import BLOCK_TOKENS
from forebay.engine_model.step_time import prompt_pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.engine_model.kv_blocks import BlockPool


@dataclass(slots=True, eq=False)
class Running:
    """One request inside the engine, waiting or running, and what has been computed of it; `*_ps`: model clock."""

    request_id: str
    prompt_tokens: int
    output_limit: int
    # Chain hashes of the sequence's full blocks: the prompt's, and the answer's as far as it is known beforehand, so
    # that the next turn of a conversation finds this turn's answer in the cache.
    block_hashes: Sequence[int]
    arrived_ps: int
    output_tokens: int = 0
    computed_tokens: int = 0
    step_tokens: int = 0  # tokens in the present step
    blocks: list[int] = field(default_factory=list)
    blocks_remembered: int = 0
    cached_tokens: int | None = None  # prompt tokens found cached when first admitted; None: not admitted yet
    preemptions: int = 0
    scheduled_ps: int | None = None
    first_token_ps: int | None = None
    last_token_ps: int | None = None
    token_before_ps: int | None = None  # the one before the last: the gap between the two is the ITL

    @property
    def tokens(self) -> int:
        """Prompt and answer so far."""
        return self.prompt_tokens + self.output_tokens


@dataclass(slots=True)
class Batch:
    """One step's work, in the terms of `step_time_ps`."""

    members: list[Running] = field(default_factory=list)
    admitted: list[Running] = field(default_factory=list)  # those that were waiting before
    preempted: list[Running] = field(default_factory=list)
    decoding: int = 0
    context_tokens: int = 0
    prompt_tokens: int = 0
    pairs: int = 0

    def add(self, request: Running, count: int) -> None:
        """Let `count` more tokens of `request` be computed in this step."""
        request.step_tokens = count
        self.members.append(request)
        start, end = request.computed_tokens, request.computed_tokens + count
        # After a preemption prompt and answer are computed again: that is prefill, whatever the tokens once were.
        if count == 1 and request.output_tokens > 0 and end == request.tokens:
            self.decoding += 1
            self.context_tokens += end
        else:
            self.prompt_tokens += count
            self.pairs += prompt_pairs(end, start)


def blocks_to_add(tokens: int, held: int, block_tokens: int) -> int:
    """Return how many blocks a sequence of `tokens` tokens needs beyond the `held` ones; never negative."""
    return max(0, -(-tokens // block_tokens) - held)


class Scheduler:
    """The waiting and the running requests of one engine, and the rule that forms a step.

    Parameters
    ----------
    pool
        The KV blocks.
    max_num_seqs
        Most requests in one step.
    max_num_batched_tokens
        The step's token budget: prompts longer than that are computed in chunks.
    prefix_caching
        Whether full blocks are found again by content.
    """

    __slots__ = ("_budget", "_caching", "_max_num_seqs", "_pool", "running", "waiting")

    def __init__(
        self, pool: BlockPool, max_num_seqs: int, max_num_batched_tokens: int, *, prefix_caching: bool
    ) -> None:
        self._pool = pool
        self._max_num_seqs = max_num_seqs
        self._budget = max_num_batched_tokens
        self._caching = prefix_caching
        self.running: list[Running] = []
        self.waiting: deque[Running] = deque()

    def schedule(self) -> Batch:
        """Form the next step; an empty batch only when there is no request at all."""
        batch = Batch()
        budget = self._schedule_running(batch, self._budget)
        if not batch.preempted:
            self._admit_waiting(batch, budget)
        return batch

    def remove(self, request: Running) -> None:
        """Take a request out, finished or not, and give its blocks back."""
        queue = self.running if request in self.running else self.waiting
        queue.remove(request)
        self._give_back(request)

    def _schedule_running(self, batch: Batch, budget: int) -> int:
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            count = min(request.tokens - request.computed_tokens, budget)
            while not self._allocate(request, count, []):
                victim = self._preempt_last(batch)
                if victim is request:
                    return budget
            batch.add(request, count)
            budget -= count
            index += 1
        return budget

    def _admit_waiting(self, batch: Batch, budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self._max_num_seqs:
            request = self.waiting[0]
            hits = self._cached_prefix(request)
            hit_tokens = len(hits) * BLOCK_TOKENS
            count = min(request.tokens - hit_tokens, budget)
            if not self._allocate(request, hit_tokens + count, hits):
                return
            self.waiting.popleft()
            self.running.append(request)
            request.computed_tokens = hit_tokens
            if request.cached_tokens is None:
                request.cached_tokens = hit_tokens
            batch.admitted.append(request)
            batch.add(request, count)
            budget -= count

    def _cached_prefix(self, request: Running) -> list[int]:
        if not self._caching:
            return []
        return self._pool.find(request.block_hashes, (request.tokens - 1) // BLOCK_TOKENS)

    def _allocate(self, request: Running, count: int, hits: list[int]) -> bool:
        """Give `request` the blocks for `count` more tokens, `hits` among them; False when there are too few."""
        pool = self._pool
        end = request.computed_tokens + count
        missing = blocks_to_add(end, len(request.blocks) + len(hits), BLOCK_TOKENS)
        if missing > pool.free - pool.free_among(hits):
            return False
        pool.hold(hits)
        request.blocks += hits
        request.blocks += pool.take(missing)
        if self._caching:
            full = min(end // BLOCK_TOKENS, len(request.block_hashes))
            for index in range(request.blocks_remembered, full):
                pool.remember(request.blocks[index], request.block_hashes[index])
            request.blocks_remembered = max(request.blocks_remembered, full)
        return True

    def _preempt_last(self, batch: Batch) -> Running:
        victim = self.running.pop()
        self._give_back(victim)
        victim.preemptions += 1
        self.waiting.appendleft(victim)
        batch.preempted.append(victim)
        return victim

    def _give_back(self, request: Running) -> None:
        self._pool.release(request.blocks)
        request.blocks = []
        request.blocks_remembered = 0
        request.computed_tokens = 0
        request.step_tokens = 0
