"""The benchmark's workloads W1 to W7, and how a trace that keeps one replica busy comes to keep thirty busy.

Each is made as it was recorded, or for W7 at a given mean rate; `replicate` or `multiply` then scales it. Dice are
seeded: equal arguments give equal bytes.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from forebay.sim.trace import Trace
from forebay.sim.traces import Sampling, read
from forebay.sim.traces.lines import SECOND_US
from forebay.sim.traces.servegen import DAY_S

if TYPE_CHECKING:
    from pathlib import Path

    from forebay.core.units import I64

JITTER_US = 60 * SECOND_US  # a copy begins this much later at most
HOUR_S = 3600
M_LARGE_TUNING_DAY = 0  # of the 14 that W4 covers
MIXED_SPAN_S = 3400  # the shortest trace of W6, code, covers 3,436 s
# W6: source, and for statistics the hour: m-large's second day in the morning and at night, r1's only day at its peak.
MIXED = (("w1", 0), ("w2", 0), ("w3", 0), ("w4", 32), ("w5", 20), ("w1", 0), ("w2", 0), ("w4", 26))
# W7's lengths are lognormal with median and p90 of the Azure conversation trace (tests/data/traces), cut at its maxima.
PROMPT_MEDIAN, PROMPT_SIGMA, PROMPT_MAX = 1020, 0.77, 14_050
OUTPUT_MEDIAN, OUTPUT_SIGMA, OUTPUT_MAX = 129, 0.93, 1_000
SHIFT_PROMPT, SHIFT_OUTPUT = 4, 2  # how much longer requests are from the middle of `length-shift` on


class Part(StrEnum):
    """What a trace may be used for; no request serves both."""

    TUNING = "tuning"
    REPORTING = "reporting"


class Shape(StrEnum):
    """W7: how the rate goes."""

    STEP_X2 = "step-x2"
    STEP_X5 = "step-x5"
    STEP_X10 = "step-x10"
    RAMP = "ramp"
    ON_OFF = "on-off"
    LENGTH_SHIFT = "length-shift"


# Corners of the rate: (second, rate in units of the base); between them it is linear, and two at one second are a jump.
_CORNERS: dict[Shape, tuple[tuple[int, int], ...]] = {
    Shape.STEP_X2: ((0, 1), (600, 1), (600, 2), (1200, 2), (1200, 1), (1800, 1)),
    Shape.STEP_X5: ((0, 1), (600, 1), (600, 5), (1200, 5), (1200, 1), (1800, 1)),
    Shape.STEP_X10: ((0, 1), (600, 1), (600, 10), (1200, 10), (1200, 1), (1800, 1)),
    Shape.RAMP: ((0, 1), (300, 1), (1200, 5), (1500, 5), (2400, 1), (2700, 1)),
    Shape.ON_OFF: tuple(
        (second, rate)
        for start in range(0, 3600, 1200)
        for second, rate in ((start, 0), (start + 600, 0), (start + 600, 1), (start + 1200, 1))
    ),
    Shape.LENGTH_SHIFT: ((0, 1), (1800, 1)),
}


def azure_conversation(folder: Path) -> Trace:
    """W1: an hour of a chat service, as Azure recorded it in 2023."""
    return read(folder / "azure-llm-2023" / "AzureLLMInferenceTrace_conv.csv.gz").trace


def azure_code(folder: Path) -> Trace:
    """W2: an hour of a coding service, bursty, with short answers."""
    return read(folder / "azure-llm-2023" / "AzureLLMInferenceTrace_code.csv.gz").trace


def mooncake(folder: Path) -> Trace:
    """W3: an hour of a chat service with long prompts, and which of their blocks are shared."""
    return read(folder / "mooncake-fast25" / "conversation_trace.jsonl.gz").trace


def m_large(folder: Path, *, from_s: int, span_s: int = DAY_S, thin: float, seed: int) -> Trace:
    """W4: part of fourteen days of a general model, thinned by client.

    Parameters
    ----------
    folder
        Where the traces are, as tests/data/traces.
    from_s, span_s
        The part; second 0 is a midnight. One day of all clients is 17 million requests.
    thin, seed
        As `Sampling` has them.
    """
    path = folder / "servegen" / "m-large-clients-rate.csv.gz"
    return read(path, sampling=Sampling(from_s, span_s, seed, thin)).trace


def deepseek_r1(folder: Path, *, from_s: int = 0, span_s: int = DAY_S, thin: float = 1.0, seed: int) -> Trace:
    """W5: a day of a reasoning model, with long answers. Parameters as `m_large`."""
    path = folder / "servegen" / "deepseek-r1-clients-rate.csv.gz"
    return read(path, sampling=Sampling(from_s, span_s, seed, thin)).trace


def mixed(folder: Path, *, thin: float, seed: int) -> tuple[Trace, ...]:
    """W6: eight services at once, each an hour of W1 to W5, turned against one another in phase.

    Service k begins k eighths into its own hour and goes on with its beginning, so that peaks come one after another.
    `thin` is m-large's share of clients; the others come whole.
    """
    span_us = MIXED_SPAN_S * SECOND_US
    traces = []
    for place, (source, hour) in enumerate(MIXED):
        trace = _mixed_source(folder, source, hour * HOUR_S, thin, seed + place)
        turned = _turn(trace.slice(0, span_us), place * span_us // len(MIXED), span_us)
        traces.append(replace(turned, name=f"{place}-{trace.name}"))
    return tuple(traces)


def _mixed_source(folder: Path, source: str, from_s: int, thin: float, seed: int) -> Trace:
    match source:
        case "w1":
            return azure_conversation(folder)
        case "w2":
            return azure_code(folder)
        case "w3":
            return mooncake(folder)
        case "w4":
            return m_large(folder, from_s=from_s, span_s=MIXED_SPAN_S, thin=thin, seed=seed)
        case _:
            return deepseek_r1(folder, from_s=from_s, span_s=MIXED_SPAN_S, seed=seed)


def synthetic(shape: Shape, *, mean_rps: float, seed: int) -> Trace:
    """W7: Poisson arrivals whose rate takes a shape, with the lengths of a conversation.

    Parameters
    ----------
    shape
        How the rate goes over 30 to 60 minutes.
    mean_rps
        Requests a second over the whole of it.
    seed
        Of arrivals and lengths.

    Raises
    ------
    ValueError
        When the rate is not above 0, or so small that no request came.
    """
    if not mean_rps > 0:
        raise ValueError(f"mean_rps is {mean_rps:g}: it must be above 0")
    dice = np.random.default_rng(seed)
    seconds, rates = np.array(_CORNERS[shape], np.float64).T
    # Poisson by inversion: a count, uniform places in the integral of the rate, and the times where it gets there. The
    # integral is piecewise quadratic; on a grid of 10 ms its linear interpolation is off by less than a microsecond.
    grid_s = np.arange(0, seconds[-1] + 0.005, 0.01)
    rate = np.interp(grid_s + 0.005, seconds, rates)[:-1]
    integral = np.concatenate([[0], np.cumsum(rate)])
    count = dice.poisson(mean_rps * seconds[-1])
    if not count:
        raise ValueError(f"{shape} at {mean_rps:g} requests/s drew no request: raise mean_rps")
    arrival_us = (np.interp(np.sort(dice.random(count)) * integral[-1], integral, grid_s) * SECOND_US).astype(np.int64)
    longer = (shape is Shape.LENGTH_SHIFT) & (arrival_us >= seconds[-1] / 2 * SECOND_US)
    return Trace(
        name=shape.value,
        arrival_us=arrival_us,
        prompt_tokens=_lognormal(dice, PROMPT_MEDIAN * np.where(longer, SHIFT_PROMPT, 1), PROMPT_SIGMA, PROMPT_MAX),
        output_tokens=_lognormal(dice, OUTPUT_MEDIAN * np.where(longer, SHIFT_OUTPUT, 1), OUTPUT_SIGMA, OUTPUT_MAX),
    )


def _lognormal(dice: np.random.Generator, median: I64, sigma: float, most: int) -> I64:
    drawn = median * np.exp(sigma * dice.standard_normal(len(median)))
    return np.clip(np.rint(drawn), 1, most).astype(np.int64)


def replicate(trace: Trace, copies: int, seed: int) -> Trace:
    """Serve `copies` populations alike: the first is the trace itself, each other comes 0 to 60 s later as a whole.

    A copy keeps its own bursts and the order of its conversations; bursts of different copies fall apart. Copies share
    no prefixes.

    Raises
    ------
    ValueError
        When `copies` is below 1.
    """
    late_us = np.random.default_rng(seed).integers(0, JITTER_US, size=max(copies, 1))
    late_us[0] = 0
    return _copied(trace, copies, late_us)


def multiply(trace: Trace, copies: int) -> Trace:
    """Let each request come `copies` times at its instant: bursts grow with the mean. Copies share no prefixes.

    Raises
    ------
    ValueError
        When `copies` is below 1.
    """
    return _copied(trace, copies, np.zeros(max(copies, 1), np.int64))


def split(trace: Trace, part: Part) -> Trace:
    """Take W1's first half for tuning, its second for reporting. Of W4 one day is for tuning, `M_LARGE_TUNING_DAY`."""
    middle_us = trace.duration_us // 2
    return trace.slice(0, middle_us) if part is Part.TUNING else trace.slice(middle_us, trace.duration_us + 1)


def _copied(trace: Trace, copies: int, late_us: I64) -> Trace:
    if copies < 1:
        raise ValueError(
            f"{copies} copies of {trace.name}: at least 1; to make it smaller take a slice, or fewer clients"
        )
    ids, offsets = trace.prefix_ids, trace.prefix_offsets
    if ids is not None and offsets is not None:
        apart = np.ptp(ids) + 1 if len(ids) else 0
        ids = (ids + apart * np.arange(copies)[:, None]).ravel()
        offsets = np.concatenate([[0], np.cumsum(np.tile(np.diff(offsets), copies))])
    return _in_order(
        trace,
        arrival_us=(trace.arrival_us + late_us[:, None]).ravel(),
        source=np.tile(np.arange(len(trace)), copies),
        ids=ids,
        offsets=offsets,
    )


def _turn(trace: Trace, by_us: int, span_us: int) -> Trace:
    """Begin the trace `by_us` into its span, and let what was before that come at the end."""
    return _in_order(
        trace,
        arrival_us=(trace.arrival_us - by_us) % span_us,
        source=np.arange(len(trace)),
        ids=trace.prefix_ids,
        offsets=trace.prefix_offsets,
    )


def _in_order(trace: Trace, *, arrival_us: I64, source: I64, ids: I64 | None, offsets: I64 | None) -> Trace:
    """Sort M requests by time; request i has the lengths of `source[i]` and the ids from `offsets[i]` on."""
    order = np.argsort(arrival_us, kind="stable")
    if ids is not None and offsets is not None:
        blocks = np.diff(offsets)[order]
        sorted_offsets = np.concatenate([[0], np.cumsum(blocks)])
        ids = ids[np.repeat(offsets[order] - sorted_offsets[:-1], blocks) + np.arange(len(ids))]
        offsets = sorted_offsets
    return Trace(
        name=trace.name,
        arrival_us=arrival_us[order],
        prompt_tokens=trace.prompt_tokens[source[order]],
        output_tokens=trace.output_tokens[source[order]],
        prefix_ids=ids,
        prefix_offsets=offsets,
        prefix_block_tokens=trace.prefix_block_tokens,
    )
