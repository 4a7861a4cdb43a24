"""The engine model against the wall clock: a timer a step, and each request's tokens handed to whoever streams them.

The model has its own clock. A step starts when the one before ended, not when the timer fired, so a busy machine makes
tokens late but never makes the engine slower: it catches up. Latencies on /metrics are the model's for the same reason;
how late the machine was is for the client to see.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forebay.engine_model.step_time import PS_PER_MS, PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.engine_model.engine import Engine, Running
    from forebay_replica.engine_emulated.ask import Ask
    from forebay_replica.engine_emulated.metrics import EngineMetrics

# vLLM's HTTP server, tokenizer and the hop to its engine process take about this long before a request is scheduled.
FRONT_END_PS = 8 * PS_PER_MS
ABORTED = "abort"
FAILED = "error"


@dataclass(slots=True, eq=False)
class Stream:
    """One request's way out: the tokens that it has and nobody has fetched yet."""

    request_id: str
    ask: Ask
    arrived_ps: int
    running: Running | None = None  # None: still on its way through the front end
    finish_reason: str | None = None
    _tokens: int = 0
    _waiter: asyncio.Future[None] | None = field(default=None, repr=False)

    async def take(self) -> tuple[int, str | None]:
        """Wait for tokens or the end; return how many came, and why it ended if it has."""
        while not self._tokens and self.finish_reason is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        count, self._tokens = self._tokens, 0
        return count, self.finish_reason

    def put(self, count: int, finish_reason: str | None) -> None:
        """Hand over tokens, or the end."""
        self._tokens += count
        self.finish_reason = finish_reason
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Pacer:
    """Runs one engine in real time, on the running event loop.

    Parameters
    ----------
    engine
        The model.
    noisy
        Makes of a step's duration what it is this time.
    metrics
        Told of every step and every end.
    """

    def __init__(self, engine: Engine, noisy: Callable[[int], int], metrics: EngineMetrics) -> None:
        self._engine = engine
        self._noisy = noisy
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._streams: dict[str, Stream] = {}
        self._front_end: deque[Stream] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._end_ps = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.asleep = False

    @property
    def requests_waiting(self) -> int:
        """Requests that are not in the batch; none while asleep, as vLLM shows it."""
        return 0 if self.asleep else self._engine.requests_waiting + len(self._front_end)

    def submit(self, request_id: str, ask: Ask) -> Stream:
        """Queue a request that `read_ask` has checked against the same maximum length."""
        stream = Stream(request_id, ask, self._now_ps())
        self._streams[request_id] = stream
        self._front_end.append(stream)
        self._idle.clear()
        self._begin_if_free()
        return stream

    def abort(self, stream: Stream, finish_reason: str = ABORTED) -> None:
        """Give a request up and free what it holds; nothing happens when it has ended already."""
        if self._streams.pop(stream.request_id, None) is None:
            return
        if stream.running is None:
            self._front_end.remove(stream)
        else:
            self._engine.abort(stream.request_id)
            self._metrics.finished(stream.running, finish_reason, stream.ask.max_tokens)
        stream.put(0, finish_reason)
        self._note_idle()

    def abort_all(self, finish_reason: str) -> None:
        """Give everything up."""
        for stream in list(self._streams.values()):
            self.abort(stream, finish_reason)

    def sleep(self) -> None:
        """Drop the KV cache and whatever runs; what arrives from now on waits for `wake`."""
        self.asleep = True
        self.abort_all(ABORTED)
        self._engine.forget_prefixes()

    def wake(self) -> None:
        """Go on."""
        self.asleep = False
        self._begin_if_free()

    async def idle(self, timeout_s: float) -> bool:
        """Wait until no request is left; False when that took too long."""
        if self._idle.is_set():  # wait_for with no time at all would not look
            return True
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def _now_ps(self) -> int:
        return round(self._loop.time() * PS_PER_S)

    def _note_idle(self) -> None:
        if not self._streams:
            self._idle.set()

    def _begin_if_free(self) -> None:
        if self._timer is None and not self.asleep:
            self._begin(max(self._now_ps(), self._end_ps))

    def _begin(self, start_ps: int) -> None:
        """Start the step after `start_ps` in which there is something to do, if there is anything."""
        duration_ps = self._admit_and_begin(start_ps)
        if duration_ps is None and self._front_end:
            start_ps = self._front_end[0].arrived_ps + FRONT_END_PS
            duration_ps = self._admit_and_begin(start_ps)
        if duration_ps is None:
            return
        self._metrics.scheduled(self._engine)
        self._end_ps = start_ps + self._noisy(duration_ps)
        self._timer = self._loop.call_at(self._end_ps / PS_PER_S, self._end)

    def _admit_and_begin(self, start_ps: int) -> int | None:
        while self._front_end and self._front_end[0].arrived_ps + FRONT_END_PS <= start_ps:
            stream = self._front_end.popleft()
            answer = stream.ask.answer
            stream.running = self._engine.submit(
                stream.request_id, stream.ask.prompt.tokens, answer.tokens, answer.block_hashes, stream.arrived_ps
            )
        return self._engine.begin_step(start_ps)

    def _end(self) -> None:
        self._timer = None
        outcome = self._engine.end_step(self._end_ps)
        if outcome.tokens:  # else every request of the step was aborted in the middle of it
            self._metrics.stepped(outcome)
        for request in outcome.finished:
            stream = self._streams.pop(request.request_id)
            self._metrics.finished(request, stream.ask.answer.finish_reason, stream.ask.max_tokens)
            stream.put(1, stream.ask.answer.finish_reason)
        for request in outcome.emitted:
            if (running := self._streams.get(request.request_id)) is not None:
                running.put(1, None)
        self._note_idle()
        if not self.asleep:
            self._begin(self._end_ps)
