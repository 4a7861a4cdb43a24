"""What each step of a recorded engine was made of: the engine model led along a recording.

How long a step took is read off the recording: between two tokens of a stream that decodes lies one step. What was in
it follows from the scheduling rules, if one knows which step each request joined. Mostly that follows from when it was
sent; where it was sent about when a step began, its own first token decides.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from forebay.engine_model.engine import Engine
from forebay.engine_model.step_time import FS_PER_PS, StepTimes
from forebay.sim.calibrate.replay import PS_PER_US, Arrivals

if TYPE_CHECKING:
    from forebay.engine_model.engine import Running
    from forebay.sim.calibrate.recording import Recording

F64 = npt.NDArray[np.float64]

# What a row of `Steps.work` counts, in the order of the constants that price it.
WORK = ("fronts", "steps", "decoding", "context_tokens", "prompt_tokens", "pairs")

# Prices that can be told apart again: the length of a step is then the list of what is in it. Room for 2^12 sequences,
# 2^30 tokens of context and 2^24 prompt tokens below the pairs; Python's integers hold it all.
_DECODING_PS = 2
_CONTEXT_PS = _DECODING_PS << 12
_PROMPT_PS = _CONTEXT_PS << 30
_PAIR_PS = _PROMPT_PS << 24
_COUNTS = StepTimes(c0_ps=1, c1_ps=_DECODING_PS, c2_ps=_CONTEXT_PS, p1_ps=_PROMPT_PS, p2_fs=_PAIR_PS * FS_PER_PS)

_TOGETHER = 0.3  # of an empty step: tokens so near each other are of one step
_STEPS_AHEAD = 8  # so far it matters which step a request joins: one that waits longer is behind others anyway


@dataclass(frozen=True, slots=True)
class Steps:
    """R steps as a client saw them, or runs of steps of which only the last one gave a token."""

    work: F64  # [R, 6] see WORK
    gap_us: F64  # [R] from the step before, or from sending the request that woke the engine
    apart_us: F64  # [R] how far from the step's end its farthest token came: far where the engine took another step


def gather(parts: list[Steps]) -> Steps:
    """Put several recordings' steps into one table."""
    return Steps(
        work=np.concatenate([part.work for part in parts]),
        gap_us=np.concatenate([part.gap_us for part in parts]),
        apart_us=np.concatenate([part.apart_us for part in parts]),
    )


def follow(recording: Recording, guess: StepTimes, front_us: int, until_us: int | None = None) -> Steps:
    """Lead the model along a recording and note what each step was made of.

    Parameters
    ----------
    recording
        What was seen.
    guess
        Times the steps that gave no token, so that arrivals meanwhile join the right one.
    front_us
        As for `replay.predict`.
    until_us
        Leave out the steps that ended later; None: none.
    """
    return _Follower(recording, guess, front_us, until_us).run()


class _Follower:
    def __init__(self, recording: Recording, guess: StepTimes, front_us: int, until_us: int | None) -> None:
        self._prices_us = np.array([0, guess.c0_ps, guess.c1_ps, guess.c2_ps, guess.p1_ps, guess.p2_fs / FS_PER_PS])
        self._prices_us /= PS_PER_US
        self._step_us = guess.c0_ps / PS_PER_US
        self._engine = Engine(recording.facts.settings(_COUNTS))
        self._arrivals = Arrivals(recording.trace, front_us, recording.facts.kv_block_tokens)
        self._trace = recording.trace
        self._token_us = recording.token_us
        self._first = recording.offsets
        self._next = recording.offsets[:-1].copy()  # the token that each request gets next
        self._decoding: set[int] = set()
        self._work = np.zeros(len(WORK))
        self._since_us = 0.0
        self._woken = 0  # the request that woke the engine last
        self._until_us = float("inf") if until_us is None else until_us
        self._rows: list[tuple[F64, float, float]] = []

    def run(self) -> Steps:
        now_us = 0.0
        while True:
            self._join(now_us)
            price = self._engine.begin_step(0)
            if price is None:
                if self._arrivals.next_ps is None:
                    return self._steps()
                now_us = self._wake()
                continue
            step = _work(price)
            self._work += step
            emitted = self._engine.end_step(0).emitted
            now_us = max(now_us, self._see(emitted)) if emitted else now_us + float(step @ self._prices_us)

    def _wake(self) -> float:
        """Begin with the next request, in an idle engine; its way in is part of the first gap."""
        self._work[:] = 0
        self._work[WORK.index("fronts")] = 1
        self._woken = self._arrivals.sent
        self._since_us = float(self._trace.arrival_us[self._woken])
        assert self._arrivals.next_ps is not None  # noqa: S101 - the caller has looked
        ready_us = self._arrivals.next_ps / PS_PER_US
        self._arrivals.submit(self._engine, 0)
        return ready_us

    def _join(self, now_us: float) -> None:
        """Submit the requests that are in the step that begins now."""
        while self._arrivals.next_ps is not None:
            index = self._arrivals.sent
            if self._trace.arrival_us[index] >= self._begins_before(now_us):
                return
            ready = self._arrivals.next_ps <= now_us * PS_PER_US
            seen = self._steps_until(int(self._token_us[self._first[index]]), now_us)
            if not (ready if seen is None else self._steps_needed(index, seen) >= seen):
                return
            self._arrivals.submit(self._engine, 0)

    def _begins_before(self, now_us: float) -> float:
        """Return when the present step begins at the latest: before the first token that it leads to."""
        if self._decoding or not self._waking:
            return now_us
        return max(now_us, float(self._token_us[self._first[self._woken]]) - self._step_us)

    @property
    def _waking(self) -> bool:
        """Whether the request that woke the engine has no token yet."""
        return self._woken < self._arrivals.sent and self._next[self._woken] == self._first[self._woken]

    def _steps_until(self, token_us: int, now_us: float) -> int | None:
        """Count the steps from now to a token by those of a stream that is served all the while; None without one."""
        apart_us, before = self._step_us * _TOGETHER, 0
        streams = self._decoding
        if not streams and self._waking:
            streams, before = {self._woken}, self._steps_needed(self._woken, _STEPS_AHEAD) - 1
        for index in streams:
            rest = self._token_us[self._next[index] : self._first[index + 1]]
            if rest[-1] >= token_us - apart_us:
                steps = before + int(np.searchsorted(rest, token_us + apart_us, side="right"))
                return steps if now_us < token_us and before < steps <= _STEPS_AHEAD else None
        return None

    def _steps_needed(self, index: int, at_most: int) -> int:
        """Count the steps to a request's first token, on a copy of the engine; it joins now if it has not yet."""
        ahead, name = deepcopy(self._engine), str(index)
        if index == self._arrivals.sent:
            prompt, output = int(self._trace.prompt_tokens[index]), int(self._trace.output_tokens[index])
            ahead.submit(name, prompt, output, (), 0)
        for step in range(1, at_most):
            ahead.begin_step(0)
            if any(request.request_id == name for request in ahead.end_step(0).prefilled):
                return step
        return at_most

    def _see(self, emitted: list[Running]) -> float:
        """Close a row: this step's tokens say when it ended, those of streams that decode before first ones."""
        members = [int(request.request_id) for request in emitted]
        seen = self._token_us[self._next[members]]
        decoding = [index in self._decoding for index in members]
        end_us = float(np.median(seen[decoding] if any(decoding) else seen))
        self._next[members] += 1
        for index in members:
            ended = self._next[index] == self._first[index + 1]
            (self._decoding.discard if ended else self._decoding.add)(index)
        if end_us <= self._until_us and not self._crowded(end_us):
            self._rows.append((self._work.copy(), end_us - self._since_us, float(np.abs(seen - end_us).max())))
        self._work[:] = 0
        self._since_us = end_us
        return end_us

    def _crowded(self, end_us: float) -> bool:
        """Say whether others came while a request woke the engine: they hold each other up on their way in."""
        next_us = self._trace.arrival_us[self._woken + 1 : self._woken + 2]
        return bool(self._work[WORK.index("fronts")]) and bool((next_us < end_us).any())

    def _steps(self) -> Steps:
        return Steps(
            work=np.array([row[0] for row in self._rows]),
            gap_us=np.array([row[1] for row in self._rows], np.float64),
            apart_us=np.array([row[2] for row in self._rows]),
        )


def _work(price: int) -> F64:
    """Read a step's members off its price; the columns of WORK."""
    pairs, rest = divmod(price - 1, _PAIR_PS)
    prompt, rest = divmod(rest, _PROMPT_PS)
    context, rest = divmod(rest, _CONTEXT_PS)
    return np.array([0, 1, rest // _DECODING_PS, context, prompt, pairs], np.float64)
