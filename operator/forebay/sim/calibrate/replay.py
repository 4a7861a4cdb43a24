"""The engine model on virtual time, in two ways: left alone to predict, and led by what a real engine did.

Left alone, it says when each token of a trace comes. Led, it says what was in each step that a client saw: which step
a token belongs to follows from the scheduling rules, how long the step took is read off the recording. Both use
Engine as everybody else does. The client's clock is the model's, shifted by what a token needs to reach the client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from forebay.engine_model.bank import BLOCK_TOKENS
from forebay.engine_model.engine import Engine
from forebay.engine_model.step_time import StepTimes

if TYPE_CHECKING:
    from forebay.core.units import I64
    from forebay.engine_model.engine import EngineSettings, StepOutcome
    from forebay.sim.calibrate.recording import Recording
    from forebay.sim.trace import Trace

F64 = npt.NDArray[np.float64]
PS_PER_US = 1_000_000

# What a row of `Steps.work` counts, in the order of the constants that price it.
WORK = ("fronts", "steps", "decoding", "context_tokens", "prompt_tokens", "pairs")

# Prices that can be told apart again: the length of a step is then the list of what is in it. Room for 2^12 sequences,
# 2^26 tokens of context, 2^20 prompt tokens; the pairs need an engine of their own.
_DECODING_PS = 2
_CONTEXT_PS = _DECODING_PS << 12
_PROMPT_PS = _CONTEXT_PS << 26
_COUNTS = StepTimes(c0_ps=1, c1_ps=_DECODING_PS, c2_ps=_CONTEXT_PS, p1_ps=_PROMPT_PS, p2_fs=0)
_PAIRS = StepTimes(c0_ps=1, c1_ps=0, c2_ps=0, p1_ps=0, p2_fs=1000)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the model says of a trace."""

    token_us: I64  # flat, in the trace's order
    preemptions: int


@dataclass(frozen=True, slots=True)
class Steps:
    """R steps as a client saw them, or runs of steps of which only the last one gave a token."""

    work: F64  # [R, 6] see WORK
    gap_us: F64  # [R] from the step before, or from sending the request that woke the engine
    spread_us: F64  # [R] between the first and the last token of the step: large where the model took another step


class _Queue:
    """Requests on their way into an engine, each `front_us` after it was sent."""

    def __init__(self, trace: Trace, front_us: int) -> None:
        if trace.prefix_block_tokens not in {0, BLOCK_TOKENS}:
            raise ValueError(f"{trace.name}: prefixes must be given in the engine's blocks of {BLOCK_TOKENS} tokens")
        self.trace = trace
        self.ready_ps = ((trace.arrival_us + front_us) * PS_PER_US).tolist()
        self.sent = 0
        self._fresh = 0 if trace.prefix_ids is None else int(trace.prefix_ids.max(initial=-1)) + 1

    @property
    def next_ps(self) -> int | None:
        return self.ready_ps[self.sent] if self.sent < len(self.ready_ps) else None

    def submit_due(self, engines: tuple[Engine, ...], now_ps: int) -> None:
        """Submit to each engine what has arrived."""
        while self.sent < len(self.ready_ps) and self.ready_ps[self.sent] <= now_ps:
            prompt, output = int(self.trace.prompt_tokens[self.sent]), int(self.trace.output_tokens[self.sent])
            hashes = self._hashes((prompt + output) // BLOCK_TOKENS)
            for engine in engines:
                engine.submit(str(self.sent), prompt, output, hashes, now_ps)
            self.sent += 1

    def _hashes(self, blocks: int) -> list[int]:
        """Name a request's blocks: those of its prefix as the trace does, the rest as nobody else's."""
        ids, offsets = self.trace.prefix_ids, self.trace.prefix_offsets
        shared: list[int] = []
        if ids is not None and offsets is not None:
            shared = ids[offsets[self.sent] : offsets[self.sent + 1]].tolist()
        own = blocks - len(shared)
        self._fresh += own
        return [*shared, *range(self._fresh - own, self._fresh)]


def predict(
    trace: Trace,
    settings: EngineSettings,
    front_us: int,
    *,
    noise_permille: int = 0,
    seed: int = 0,
) -> Prediction:
    """Say when each token comes.

    Parameters
    ----------
    trace
        Requests; shared prefixes in blocks of 16 tokens.
    settings
        The engine, with its step times.
    front_us
        What a request and its tokens spend outside the engine's loop: HTTP, tokens, detokens.
    noise_permille
        Each step is multiplied by a lognormal of mean 1 and this spread.
    seed
        Of that noise.
    """
    engine, queue = Engine(settings), _Queue(trace, front_us)
    dice, sigma = np.random.default_rng(seed), noise_permille / 1000
    first = np.cumsum(trace.output_tokens) - trace.output_tokens
    emitted = np.zeros(len(trace), np.int64)
    token_us = np.zeros(int(trace.output_tokens.sum()), np.int64)
    now_ps = 0
    while True:
        queue.submit_due((engine,), now_ps)
        duration_ps = engine.begin_step(now_ps)
        if duration_ps is None:
            if queue.next_ps is None:
                return Prediction(token_us, engine.preemptions_total)
            now_ps = queue.next_ps
            continue
        if sigma:
            duration_ps = round(duration_ps * dice.lognormal(-sigma * sigma / 2, sigma))
        now_ps += duration_ps
        for request in engine.end_step(now_ps).emitted:
            index = int(request.request_id)
            token_us[first[index] + emitted[index]] = now_ps // PS_PER_US
            emitted[index] += 1


def gather(parts: list[Steps]) -> Steps:
    """Put several recordings' steps into one table."""
    return Steps(
        work=np.concatenate([part.work for part in parts]),
        gap_us=np.concatenate([part.gap_us for part in parts]),
        spread_us=np.concatenate([part.spread_us for part in parts]),
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
        As for `predict`.
    until_us
        Leave out the steps that ended later; None: none.
    """
    return _Follower(recording, guess, front_us, until_us).run()


class _Follower:
    def __init__(self, recording: Recording, guess: StepTimes, front_us: int, until_us: int | None) -> None:
        self._prices_ps = np.array([0, guess.c0_ps, guess.c1_ps, guess.c2_ps, guess.p1_ps, guess.p2_fs / 1000])
        self._engines = tuple(Engine(recording.facts.settings(times)) for times in (_COUNTS, _PAIRS))
        self._queue = _Queue(recording.trace, front_us)
        self._sent_us = recording.trace.arrival_us
        self._token_us = recording.token_us
        self._next_token = recording.offsets[:-1].copy()
        self._work = np.zeros(len(WORK))
        self._since_us = 0
        self._until_us = until_us
        self._rows: list[tuple[F64, float, float]] = []

    def run(self) -> Steps:
        now_ps = 0
        while True:
            self._queue.submit_due(self._engines, now_ps)
            counts, pairs = (engine.begin_step(now_ps) for engine in self._engines)
            if counts is None or pairs is None:
                if self._queue.next_ps is None:
                    return self._steps()
                now_ps = self._queue.next_ps
                self._wake()
                continue
            step = _work(counts, pairs)
            self._work += step
            outcome, _ = [engine.end_step(now_ps) for engine in self._engines]
            if outcome.emitted:
                now_ps = max(now_ps, self._see(outcome) * PS_PER_US)
            else:
                now_ps += round(float(step @ self._prices_ps))

    def _wake(self) -> None:
        self._work[:] = 0
        self._work[WORK.index("fronts")] = 1
        self._since_us = int(self._sent_us[self._queue.sent])

    def _see(self, outcome: StepOutcome) -> int:
        """Close a row: this step's tokens say when it ended."""
        members = [int(request.request_id) for request in outcome.emitted]
        seen = self._token_us[self._next_token[members]]
        self._next_token[members] += 1
        end_us = int(np.median(seen))
        if self._until_us is None or end_us <= self._until_us:
            self._rows.append((self._work.copy(), end_us - self._since_us, float(seen.max() - seen.min())))
        self._work[:] = 0
        self._since_us = end_us
        return end_us

    def _steps(self) -> Steps:
        return Steps(
            work=np.array([row[0] for row in self._rows]),
            gap_us=np.array([row[1] for row in self._rows], np.float64),
            spread_us=np.array([row[2] for row in self._rows]),
        )


def _work(counts: int, pairs: int) -> F64:
    """Read a step's members off its two prices; the columns of WORK."""
    prompt, rest = divmod(counts - 1, _PROMPT_PS)
    context, rest = divmod(rest, _CONTEXT_PS)
    return np.array([0, 1, rest // _DECODING_PS, context, prompt, pairs - 1], np.float64)
