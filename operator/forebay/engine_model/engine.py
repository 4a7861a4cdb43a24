"""A whole inference engine without its arithmetic: requests in, steps of a known length, tokens out.

The emulated engine runs it against the wall clock, a simulator against virtual time. It reads no clock and rolls no
dice: a step is begun, the caller decides when it has ended (its duration, perhaps with noise), and ends it.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING

from forebay.engine_model import kv_blocks, scheduler
from forebay.engine_model.bank import (
    BLOCK_TOKENS,
    BLOCKS_FREE,
    EMITTED,
    FINISHED,
    PREEMPTIONS,
    RUNNING,
    STEP_ADMITTED,
    STEP_CONTEXT_TOKENS,
    STEP_DECODING,
    STEP_PAIRS,
    STEP_PROMPT_TOKENS,
    STEP_TOKENS,
    WAITING,
    Bank,
    add_row,
    new_bank,
)
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
    kv_block_tokens: int = BLOCK_TOKENS

    def __post_init__(self) -> None:
        if min(self.max_num_seqs, self.max_num_batched_tokens, self.max_model_len, self.kv_block_tokens) < 1:
            raise ValueError(f"maxNumSeqs, maxNumBatchedTokens, maxModelLen and blocks must be at least 1: {self}")
        tokens = (self.kv_blocks_total - 1) * self.kv_block_tokens
        if self.max_model_len > tokens:
            raise ValueError(f"maxModelLen {self.max_model_len} does not fit the KV cache of {tokens} tokens: lower it")


@dataclass(slots=True, eq=False)
class Running:
    """One request inside the engine, waiting or running; `*_ps`: model clock.

    What the engine has done of it is written here when it is admitted, preempted, and with each token.
    """

    request_id: str
    prompt_tokens: int
    output_limit: int
    arrived_ps: int
    row: int
    output_tokens: int = 0
    cached_tokens: int | None = None  # prompt tokens found cached when first admitted; None: not admitted yet
    preemptions: int = 0
    scheduled_ps: int | None = None
    first_token_ps: int | None = None
    last_token_ps: int | None = None
    token_before_ps: int | None = None  # the one before the last: the gap between the two is the ITL


@dataclass(slots=True)
class StepOutcome:
    """What one step did."""

    emitted: list[Running] = field(default_factory=list)  # each of these has one more output token
    finished: list[Running] = field(default_factory=list)  # those of them that have reached their limit
    prefilled: list[Running] = field(default_factory=list)  # those of them whose first output token this is
    tokens: int = 0  # computed in the step, prompt and output


class Engine:
    """One engine with its queue, its batch and its KV cache: a bank of one lane.

    Parameters
    ----------
    settings
        Sizes and step times.
    """

    __slots__ = (
        "_bank",
        "_by_row",
        "_ids",
        "_in_step",
        "_requests",
        "_rows_free",
        "_times",
        "prefix_hit_tokens_total",
        "prefix_query_tokens_total",
        "settings",
    )

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self._ids: list[int] = []
        bank = new_bank(
            lanes=1,
            seqs_max=settings.max_num_seqs,
            step_tokens_max=settings.max_num_batched_tokens,
            blocks=settings.kv_blocks_total - 1,
            row_blocks=-(-settings.max_model_len // settings.kv_block_tokens),
            caching=settings.prefix_caching,
            block_tokens=settings.kv_block_tokens,
        )
        self._bank: Bank = bank._replace(ids=self._ids)
        self._times: tuple[int, int, int, int, int] = astuple(settings.step_times)
        self._requests: dict[str, Running] = {}
        self._by_row: dict[int, Running] = {}
        self._rows_free: list[int] = []
        self._in_step = False
        self.prefix_query_tokens_total = 0
        self.prefix_hit_tokens_total = 0

    @property
    def requests_running(self) -> int:
        """Requests in the batch."""
        return self._bank.counts[RUNNING]

    @property
    def requests_waiting(self) -> int:
        """Requests in the queue, preempted ones included."""
        return self._bank.counts[WAITING]

    @property
    def preemptions_total(self) -> int:
        """How often a request lost its blocks to another."""
        return self._bank.counts[PREEMPTIONS]

    @property
    def kv_blocks_used(self) -> int:
        """Blocks that requests hold; cached blocks that nobody holds are free."""
        return self.kv_blocks_usable - self._bank.counts[BLOCKS_FREE]

    @property
    def kv_blocks_usable(self) -> int:
        """Blocks that requests can hold."""
        return self.settings.kv_blocks_total - 1

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
            `chain_hash` of each full block of the prompt, and of the answer as far as it is known beforehand, so that
            the next turn of a conversation finds this turn's answer in the cache.
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
        row = self._rows_free.pop() if self._rows_free else self._new_row()
        hashes = block_hashes[: self._row_ids]
        self._ids[row * self._row_ids : row * self._row_ids + len(hashes)] = hashes
        scheduler.place_row(self._bank, row, prompt_tokens, output_limit, row * self._row_ids, len(hashes))
        scheduler.queue(self._bank, 0, row)
        request = Running(request_id, prompt_tokens, output_limit, now_ps, row)
        self._requests[request_id] = self._by_row[row] = request
        return request

    def abort(self, request_id: str) -> bool:
        """Drop a request and free its blocks, in mid-step too; False when the engine does not hold it (any more)."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        scheduler.remove_row(self._bank, 0, request.row)
        self._forget(request)
        return True

    def forget_prefixes(self) -> None:
        """Empty the prefix cache, as sleeping does."""
        kv_blocks.forget_all(self._bank, 0)

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
        if self._in_step:
            raise RuntimeError("a step is under way: end it first")
        if not self._requests:
            return None
        self._in_step = True
        scheduler.form_step(self._bank, 0)
        running = self._bank.counts[RUNNING]
        for index in range(running - self._bank.counts[STEP_ADMITTED], running):
            self._count_admission(self._by_row[self._bank.running[index]], now_ps)
        count = self._bank.counts
        return step_time_ps(
            *self._times,
            count[STEP_DECODING],
            count[STEP_CONTEXT_TOKENS],
            count[STEP_PROMPT_TOKENS],
            count[STEP_PAIRS],
        )

    def end_step(self, now_ps: int) -> StepOutcome:
        """Account for the step that was begun, and say what came of it.

        Raises
        ------
        RuntimeError
            When no step was begun.
        """
        if not self._in_step:
            raise RuntimeError("no step is under way: begin one first")
        self._in_step = False
        bank = self._bank
        scheduler.end_step(bank, 0)
        outcome = StepOutcome(tokens=bank.counts[STEP_TOKENS])
        for index in range(bank.counts[EMITTED]):
            self._emit(self._by_row[bank.emitted[index]], now_ps, outcome)
        for index in range(bank.counts[FINISHED]):
            request = self._by_row[bank.finished[index]]
            outcome.finished.append(request)
            self._forget(request)
        return outcome

    @property
    def _row_ids(self) -> int:
        return -(-self.settings.max_model_len // self.settings.kv_block_tokens)

    def _new_row(self) -> int:
        row = add_row(self._bank)
        self._ids.extend([0] * (self._row_ids * (row + 1) - len(self._ids)))
        return row

    def _forget(self, request: Running) -> None:
        request.preemptions = self._bank.preempted[request.row]
        del self._requests[request.request_id], self._by_row[request.row]
        self._rows_free.append(request.row)

    def _count_admission(self, request: Running, now_ps: int) -> None:
        if request.scheduled_ps is None:
            request.scheduled_ps = now_ps
            request.cached_tokens = self._bank.cached[request.row]
            if self.settings.prefix_caching:
                self.prefix_query_tokens_total += request.prompt_tokens
                self.prefix_hit_tokens_total += request.cached_tokens

    def _emit(self, request: Running, now_ps: int, outcome: StepOutcome) -> None:
        request.output_tokens = self._bank.output[request.row]
        request.token_before_ps, request.last_token_ps = request.last_token_ps, now_ps
        outcome.emitted.append(request)
        if request.first_token_ps is None:
            request.first_token_ps = now_ps
            outcome.prefilled.append(request)
