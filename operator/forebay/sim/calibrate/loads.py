"""The loads that an engine is calibrated with: sweeps that set the constants apart, and four that look like service.

A load is a list of stages; a stage begins when all requests of the one before have ended. Its sizes follow from what
the engine can hold and from a first guess of its speed, so that the same code loads a CPU's toy and eight GPUs.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

import numpy as np

from forebay.engine_model.step_time import StepTimes, step_time_ps
from forebay.sim.calibrate.replay import PS_PER_US, predict
from forebay.sim.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.core.units import I64
    from forebay.sim.calibrate.recording import EngineFacts, Recording

SWEEP = "sweep"
REQUESTS_MIN = 40
# Streams that one client on one core reads without delaying their tokens: 16 x 100 tokens/s was measured, the engine's
# own front end is slower than this client.
STREAMS_MAX = 32
STREAMS_MAX_OVERLOAD = 256  # the queue waits silently; only those in the batch stream
_PROBE_BATCH = 8
_THROWN_INTO = 4  # running streams, and one alone
SWEEP_TOKENS = 40  # answer tokens of each stream of a batch: so many steps are seen at each size
UTILISATION = 0.5  # of the open loads: at 0.65 the median gap lies between steps with and without a prompt
OVERLOAD = 1.25  # arrivals over what the engine can serve


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a stage."""

    at_us: int  # from the beginning of its stage
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Load:
    """What a client does."""

    name: str
    stages: tuple[tuple[Request, ...], ...]


def probe(facts: EngineFacts) -> Load:
    """Return what is sent first: it wakes every part of an engine, and is enough for a first guess of its speed."""
    long = facts.max_model_len // 2
    batch = min(_PROBE_BATCH, facts.max_num_seqs)
    alone, together = (Request(0, 16, 24),), (Request(0, 16, 24),) * batch
    return Load("probe", (alone, (Request(0, long, 2),), together, alone, (Request(0, long, 2),), together))


def first_guess(seen: Recording) -> StepTimes:
    """Guess step times from a probe: from its second half, as the first one meets a cold engine."""
    half = len(seen.trace) // 2
    firsts, ends = seen.offsets[:-1], seen.offsets[1:]
    gaps = [float(np.median(np.diff(seen.token_us[firsts[i] : ends[i]]))) for i in range(half, len(seen.trace))]
    alone, together = gaps[0], float(np.median(gaps[2:]))
    prompt = int(seen.trace.prompt_tokens[half + 1])
    prefill = float(seen.token_us[firsts[half + 1]] - seen.trace.arrival_us[half + 1])
    each = max(0.0, together - alone) / max(1, len(gaps) - 3)
    return StepTimes(
        c0_ps=max(1, round(alone * PS_PER_US)),
        c1_ps=round(each * PS_PER_US),
        c2_ps=0,
        p1_ps=max(1, round((prefill - alone) * PS_PER_US / prompt)),
        p2_fs=0,
    )


def seconds_of(load: Load, facts: EngineFacts, guess: StepTimes) -> float:
    """Say how long a load takes, by the engine model itself."""
    settings = facts.settings(guess)
    return sum(int(predict(trace_of(load.name, stage), settings, 0).token_us.max()) for stage in load.stages) / 1e6


def trace_of(name: str, stage: Sequence[Request]) -> Trace:
    """Return a stage as a trace."""
    ordered = sorted(stage, key=lambda request: request.at_us)
    return Trace(
        name=name,
        arrival_us=np.array([request.at_us for request in ordered], np.int64),
        prompt_tokens=np.array([request.prompt_tokens for request in ordered], np.int64),
        output_tokens=np.array([request.output_tokens for request in ordered], np.int64),
    )


def sweep(facts: EngineFacts, guess: StepTimes) -> Load:
    """Batches of fixed size at several contexts, prompts alone, and prompts thrown into running batches."""
    longest = facts.max_model_len - SWEEP_TOKENS
    stages: list[tuple[Request, ...]] = []
    for prompt in _sizes(16, longest // 2, 4):
        batch = 1
        while batch <= min(facts.max_num_seqs, STREAMS_MAX) and batch * (prompt + SWEEP_TOKENS) < facts.kv_tokens:
            stages.append((Request(0, prompt, SWEEP_TOKENS),) * batch)
            batch *= 2
    prompts = _sizes(16, longest, 8)
    stages += [(Request(0, prompt, 3),) for prompt in prompts for _ in range(3)]
    for batch in (1, _THROWN_INTO):
        stages += [_thrown_in(facts, guess, batch, prompt) for prompt in prompts]
    return Load(SWEEP, tuple(stages))


def _thrown_in(facts: EngineFacts, guess: StepTimes, batch: int, prompt: int) -> tuple[Request, ...]:
    """Let streams run, and send three prompts one after another while they do: the streams' gaps show each chunk."""
    chunks = -(-prompt // max(1, facts.max_num_batched_tokens - batch))
    step_us = _price(guess, batch, 64 * batch, 0) // PS_PER_US
    prompt_us = chunks * step_us + _price(guess, 0, 0, prompt) // PS_PER_US
    apart_us = prompt_us + 6 * step_us
    room = min(facts.max_model_len - 32, 3 * (chunks + 8) + 12)
    streams = [Request(0, 16, room)] * batch
    return (*streams, *(Request((turn + 1) * apart_us, prompt, 2) for turn in range(3)))


@dataclass(frozen=True, slots=True)
class _Shape:
    """Lognormal lengths, by median and spread, and how busy they keep the engine."""

    prompt: tuple[int, float]
    output: tuple[int, float]
    utilisation: float


def service(facts: EngineFacts, guess: StepTimes, seconds: int, seed: int) -> list[Load]:
    """Return four open loads of Poisson arrivals: prefill-heavy, decode-heavy, mixed, and overload with preemption.

    Parameters
    ----------
    facts, guess
        What the engine holds, and its rough speed.
    seconds
        How long requests arrive.
    seed
        Of lengths and arrivals.

    Raises
    ------
    ValueError
        When so few requests fit the time that there is no tail to compare.
    """
    length, dice = facts.max_model_len, np.random.default_rng(seed)
    shapes = {
        "prefill-heavy": _Shape((length // 4, 0.6), (6, 0.4), UTILISATION),
        "decode-heavy": _Shape((32, 0.4), (length // 16, 0.5), UTILISATION),
        "mixed": _Shape((length // 12, 1.0), (length // 40, 0.7), UTILISATION),
        "overload": _Shape((length // 8, 0.4), (length // 8, 0.4), OVERLOAD),
    }
    return [_open(name, shape, facts, guess, seconds * 1_000_000, dice) for name, shape in shapes.items()]


def _open(  # noqa: PLR0917 - one load of `service`
    name: str, shape: _Shape, facts: EngineFacts, guess: StepTimes, duration_us: int, dice: np.random.Generator
) -> Load:
    """Draw lengths, and as many arrivals as keep the engine that busy."""
    prompt, output = (int(median * np.exp(spread**2 / 2)) for median, spread in (shape.prompt, shape.output))
    streams = STREAMS_MAX if shape.utilisation < 1 else STREAMS_MAX_OVERLOAD
    batch = min(facts.max_num_seqs, streams, max(1, facts.kv_tokens // (prompt + output)))
    count = int(duration_us * shape.utilisation / request_us(guess, prompt, output, batch))
    if count < REQUESTS_MIN:
        needed_s = duration_us * REQUESTS_MIN // (max(count, 1) * 1_000_000) + 1
        raise ValueError(
            f"only {count} {name} requests fit the time, and fewer than {REQUESTS_MIN} show no tail: give --seconds "
            f"{needed_s}, or start the engine with a smaller maximum length"
        )
    at_us = np.sort(dice.integers(0, duration_us, count))
    prompts = _lengths(dice, *shape.prompt, count, facts.max_model_len // 2)
    outputs = _lengths(dice, *shape.output, count, facts.max_model_len // 2)
    return Load(name, (tuple(map(Request, at_us.tolist(), prompts.tolist(), outputs.tolist())),))


def request_us(times: StepTimes, prompt: int, output: int, batch: int) -> float:
    """Return the engine's time that one request takes when `batch` share each decode step.

    The formula of the clairvoyant bound: the prompt's arithmetic, and its share of every step that it decodes in.
    """
    prefill_ps = _price(times, 0, 0, prompt) - times.c0_ps
    return (prefill_ps + output * _price(times, batch, batch * (prompt + output // 2), 0) / batch) / PS_PER_US


def _price(times: StepTimes, decoding: int, context: int, prompt: int) -> int:
    c0, c1, c2, p1, p2 = astuple(times)
    return step_time_ps(c0, c1, c2, p1, p2, decoding, context, prompt, prompt * prompt)


def _lengths(dice: np.random.Generator, median: int, spread: float, count: int, most: int) -> I64:
    return np.clip(dice.lognormal(np.log(median), spread, count), 1, most).astype(np.int64)


def _sizes(first: int, last: int, count: int) -> list[int]:
    return sorted({round(size) for size in np.geomspace(first, max(first, last), count)})
