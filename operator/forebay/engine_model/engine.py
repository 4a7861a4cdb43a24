"""A whole inference engine without its arithmetic: requests in, steps of a known length, tokens out.

The emulated engine runs it against the wall clock, a simulator against virtual time. It reads no clock and rolls no
dice: a step is begun, the caller decides when it has ended (its duration, perhaps with noise), and ends it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forebay.engine_model.kv_blocks import BLOCK_TOKENS, BlockPool
from forebay.engine_model.scheduler import Batch, Running, Scheduler
from forebay.engine_model.step_time import step_time_ps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.engine_model.step_time import StepTimes


class RequestRejectedError(ValueError):
    """The engine can never serve this request; the message says why."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What an engine is started with.

    Raises
    ------
    ValueError
        When such an engine could get stuck: vLLM refuses to start as well when one request of the greatest length
        does not fit the KV cache.
    """

    step_times: StepTimes
    kv_blocks_total: int  # as the engine reports it: one of them, the null block, holds nothing
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        if min(self.max_num_seqs, self.max_num_batched_tokens, self.max_model_len) < 1:
            raise ValueError(f"maxNumSeqs, maxNumBatchedTokens and maxModelLen must be at least 1: {self}")
        tokens = (self.kv_blocks_total - 1) * BLOCK_TOKENS
        if self.max_model_len > tokens:
            raise ValueError(f"maxModelLen {self.max_model_len} does not fit the KV cache of {tokens} tokens: lower it")


@dataclass(slots=True)
class StepOutcome:
    """What one step did."""

    emitted: list[Running] = field(default_factory=list)  # each of these has one more output token
    finished: list[Running] = field(default_factory=list)  # those of them that have reached their limit
    prefilled: list[Running] = field(default_factory=list)  # those of them whose first output token this is
    tokens: int = 0  # computed in the step, prompt and output


class Engine:
    """One engine with its queue, its batch and its KV cache.

    Parameters
    ----------
    settings
        Sizes and step times.
    """

    __slots__ = (
        "_batch",
        "_pool",
        "_requests",
        "_scheduler",
        "preemptions_total",
        "prefix_hit_tokens_total",
        "prefix_query_tokens_total",
        "settings",
    )

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self._pool = BlockPool(settings.kv_blocks_total - 1)
        self._scheduler = Scheduler(
            self._pool,
            settings.max_num_seqs,
            settings.max_num_batched_tokens,
            prefix_caching=settings.prefix_caching,
        )
        self._requests: dict[str, Running] = {}
        self._batch: Batch | None = None
        self.preemptions_total = 0
        self.prefix_query_tokens_total = 0
        self.prefix_hit_tokens_total = 0

    @property
    def requests_running(self) -> int:
        """Requests in the batch."""
        return len(self._scheduler.running)

    @property
    def requests_waiting(self) -> int:
        """Requests in the queue, preempted ones included."""
        return len(self._scheduler.waiting)

    @property
    def kv_blocks_used(self) -> int:
        """Blocks that requests hold; cached blocks that nobody holds are free."""
        return self._pool.used

    @property
    def kv_blocks_usable(self) -> int:
        """Blocks that requests can hold."""
        return self._pool.total

    def submit(
        self, request_id: str, prompt_tokens: int, output_limit: int, block_hashes: Sequence[int], now_ps: int
    ) -> Running:
        """Queue a request.

        Parameters
        ----------
        request_id
            Unique among the requests that the engine holds.
        prompt_tokens, output_limit
            At least 1 each; the answer has exactly `output_limit` tokens.
        block_hashes
            `chain_hash` of each full block of the prompt, and of the answer as far as it is known.
        now_ps
            The model's clock.

        Raises
        ------
        RequestRejectedError
            When the id is taken, a length is below 1, or both together exceed the model's length.
        """
        if request_id in self._requests:
            raise RequestRejectedError(f"request {request_id} is already in the engine")
        if prompt_tokens < 1 or output_limit < 1:
            raise RequestRejectedError("a request needs at least one prompt token and one output token")
        if prompt_tokens + output_limit > self.settings.max_model_len:
            raise RequestRejectedError(
                f"{prompt_tokens} prompt tokens and {output_limit} output tokens exceed the maximum model length of "
                f"{self.settings.max_model_len} tokens"
            )
        request = Running(request_id, prompt_tokens, output_limit, block_hashes, now_ps)
        self._requests[request_id] = request
        self._scheduler.waiting.append(request)
        return request

    def abort(self, request_id: str) -> bool:
        """Drop a request and free its blocks, in mid-step too; False when the engine does not hold it (any more)."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return False
        self._scheduler.remove(request)
        return True

    def forget_prefixes(self) -> None:
        """Empty the prefix cache, as sleeping does."""
        self._pool.forget_all()

    def begin_step(self, now_ps: int) -> int | None:
        """Form the next step.

        Returns
        -------
        int or None
            How long it takes, in picoseconds; None when there is nothing to do.

        Raises
        ------
        RuntimeError
            When the last step has not been ended.
        """
        if self._batch is not None:
            raise RuntimeError("a step is under way: end it first")
        if not self._requests:
            return None
        batch = self._batch = self._scheduler.schedule()
        self.preemptions_total += len(batch.preempted)
        for request in batch.admitted:
            self._count_admission(request, now_ps)
        return step_time_ps(
            self.settings.step_times, batch.decoding, batch.context_tokens, batch.prompt_tokens, batch.pairs
        )

    def end_step(self, now_ps: int) -> StepOutcome:
        """Account for the step that was begun, and say what came of it.

        Raises
        ------
        RuntimeError
            When no step was begun.
        """
        batch, self._batch = self._batch, None
        if batch is None:
            raise RuntimeError("no step is under way: begin one first")
        outcome = StepOutcome()
        for request in batch.members:
            if self._requests.get(request.request_id) is request:  # else aborted in mid-step
                self._advance(request, now_ps, outcome)
        return outcome

    def _count_admission(self, request: Running, now_ps: int) -> None:
        if request.scheduled_ps is None:
            request.scheduled_ps = now_ps
            if self.settings.prefix_caching:
                self.prefix_query_tokens_total += request.prompt_tokens
                self.prefix_hit_tokens_total += request.cached_tokens or 0

    def _advance(self, request: Running, now_ps: int, outcome: StepOutcome) -> None:
        outcome.tokens += request.step_tokens
        request.computed_tokens += request.step_tokens
        request.step_tokens = 0
        if request.computed_tokens < request.tokens:  # a chunk, not the last one
            return
        request.output_tokens += 1
        request.token_before_ps, request.last_token_ps = request.last_token_ps, now_ps
        outcome.emitted.append(request)
        if request.first_token_ps is None:
            request.first_token_ps = now_ps
            outcome.prefilled.append(request)
        if request.output_tokens == request.output_limit:
            del self._requests[request.request_id]
            self._scheduler.remove(request)
            outcome.finished.append(request)
