"""What is benchmarked: the workloads, the fleets that serve them, and how large a run is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING

from forebay.sim import workloads
from forebay.sim.workloads import Part, Shape

if TYPE_CHECKING:
    from pathlib import Path

    from forebay.sim.trace import Trace

SECOND_US = 1_000_000
HOUR_S = 3600
# ServeGen's clients are drawn once, as if the result had been recorded; a seed of the benchmark turns copies and dice.
SAMPLING_SEED = 4
M_LARGE_THIN, R1_THIN = 0.5, 0.25
# W4's second day from half past eight: 45 requests/s of half the clients grow to 144 by eleven. W5's evening: 9 to 40.
M_LARGE_FROM_S, R1_FROM_S = 24 * HOUR_S + 8 * HOUR_S + 1800, 19 * HOUR_S + 1800
# Tuning's part of W4: half an hour of the first day's morning, 73 requests/s to 200.
M_LARGE_TUNING_FROM_S, M_LARGE_TUNING_SPAN_S = 7 * HOUR_S + 2700, 1800
MIXED_THIN = 0.1
STEP_S = 600  # when W7's steps come


@dataclass(frozen=True, slots=True)
class Model:
    """A model on H100s, and how many of them a replica needs."""

    uri: str
    gpus: int


LLAMA_70B = Model("hf://meta-llama/Llama-3.1-70B-Instruct", 4)
QWEN_32B = Model("hf://Qwen/Qwen3-32B", 2)
LLAMA_8B = Model("hf://meta-llama/Llama-3.1-8B-Instruct", 1)
# W6: chats, code, a long-context chat, a general model twice, a reasoning model; three sizes mixed.
MIXED_MODELS = (LLAMA_70B, QWEN_32B, LLAMA_8B, LLAMA_70B, QWEN_32B, LLAMA_8B, QWEN_32B, LLAMA_70B)


class Scaling(StrEnum):
    """How a workload comes to the wanted fluid mean."""

    REPLICATE = "replicate"
    MULTIPLY = "multiply"
    RATE = "rate"


@dataclass(frozen=True, slots=True)
class Size:
    """How much a run covers.

    Attributes
    ----------
    name
        As the command line has it.
    seeds, exact_seeds
        Runs of each judge, in worlds that differ from the prior and in worlds that do not.
    entries
        Names of what is played.
    trials
        Of the tuner, for each rival.
    m_large_span_s, r1_span_s
        How much of W4 and W5.
    span_s
        At most this much of every workload; 0: all of it.
    """

    name: str
    seeds: int
    exact_seeds: int
    entries: tuple[str, ...]
    trials: int
    m_large_span_s: int
    r1_span_s: int
    span_s: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """One workload at one scale.

    Attributes
    ----------
    name, title
        For options and for people.
    models
        One a service.
    fluid
        Replicas that its work would keep busy, in the mean and for each service.
    scaling
        How it gets there.
    step_s
        When a step comes, for the time of recovery.
    pool_share
        GPUs of the pool that all its services share, of what the fluid mean takes; None: pools that never bind.
    policy
        The shipped SLOPolicy that is promised.
    step_tokens
        The engines' maxNumBatchedTokens.
    replicas_max_share
        maxReplicas, of the fluid mean.
    """

    name: str
    title: str
    models: tuple[Model, ...]
    fluid: float = 8
    scaling: Scaling = Scaling.REPLICATE
    step_s: int | None = None
    pool_share: float | None = None
    policy: str = "interactive-chat"
    step_tokens: int = 2048
    replicas_max_share: int = 4


LONG_CONTEXT = "long-context"  # of 12,000 tokens a prompt, of which no GPU makes the first token in half a second
_CHAT, _CODE = "Azure conversation, second half hour", "Azure code"
_ENTRIES = (
    Entry("W1", _CHAT, (LLAMA_70B,)),
    # Answers of a few tokens meet a prompt's whole step, and one of 2,048 tokens lasts longer than their gaps may. At
    # maxReplicas it keeps 87 % of W5's promises and 98.8 % of W4's, one of 512 tokens 100 % and 99.4 %; of W3's, 24
    # replicas keep 98 % with 1,024 and 99.4 % with 512; of W2's, no fleet keeps 99 % with 2,048.
    Entry("W2", _CODE, (QWEN_32B,), step_tokens=512, replicas_max_share=12),
    Entry(
        "W2-multiplied",
        f"{_CODE}, each request at its instant",
        (QWEN_32B,),
        scaling=Scaling.MULTIPLY,
        step_tokens=512,
        replicas_max_share=12,
    ),
    Entry(
        "W3",
        "Mooncake conversation, shared prefixes",
        (LLAMA_70B,),
        policy=LONG_CONTEXT,
        step_tokens=512,
        replicas_max_share=6,
    ),
    Entry("W4", "ServeGen m-large, a morning's rise", (LLAMA_70B,), step_tokens=512),
    Entry("W5", "ServeGen deepseek-r1, an evening's rise", (QWEN_32B,), step_tokens=512),
    Entry("W6", "eight services on one pool", MIXED_MODELS, fluid=2, pool_share=2.0),
    *(
        Entry(
            f"W7-{shape}",
            f"synthetic {shape}",
            (LLAMA_70B,),
            scaling=Scaling.RATE,
            step_s=STEP_S if shape.startswith("step") else None,
        )
        for shape in Shape
    ),
    Entry("W1-30", f"{_CHAT}, 30 replicas", (LLAMA_70B,), fluid=30),
    Entry("W2-30", f"{_CODE}, 30 replicas", (QWEN_32B,), fluid=30, step_tokens=512, replicas_max_share=12),
    # The tuning split: nothing of it is in the others.
    Entry("T1", "Azure conversation, first half hour", (LLAMA_70B,)),
    Entry("T4", "ServeGen m-large, another day's morning", (LLAMA_70B,)),
)
ENTRIES = {entry.name: entry for entry in _ENTRIES}
TUNING = ("T1", "T4")
SHAPES = tuple(name for name in ENTRIES if name.startswith("W7-"))
HEADLINE = ("W1", "W2", "W2-multiplied", "W3", "W4", "W5", "W6")

FULL = Size("full", 5, 1, (*HEADLINE, *SHAPES, "W1-30", "W2-30"), 50, 3 * HOUR_S, 2 * HOUR_S)
MIDDLE = Size("middle", 2, 1, ("W1", "W2", "W3", "W4", "W5", "W6", "W7-step-x5"), 15, 4500, 2700)
QUICK = Size("quick", 1, 1, ("W1", "W3", "W7-step-x5"), 0, HOUR_S, HOUR_S, span_s=600)
SIZES = {size.name: size for size in (QUICK, MIDDLE, FULL)}


@cache
def sources(name: str, folder: Path, size: Size) -> tuple[Trace, ...]:
    """Return an entry's traces as they were recorded, one a service; of W7 a draw at 10 requests/s."""
    traces: tuple[Trace, ...]
    match name.partition("-")[0]:
        case "W1":
            traces = (workloads.split(workloads.azure_conversation(folder), Part.REPORTING),)
        case "T1":
            traces = (workloads.split(workloads.azure_conversation(folder), Part.TUNING),)
        case "W2":
            traces = (workloads.azure_code(folder),)
        case "W3":
            traces = (workloads.mooncake(folder),)
        case "W4":
            traces = (_m_large(folder, M_LARGE_FROM_S, size.m_large_span_s),)
        case "T4":
            traces = (_m_large(folder, M_LARGE_TUNING_FROM_S, M_LARGE_TUNING_SPAN_S),)
        case "W5":
            span_s = size.r1_span_s
            traces = (workloads.deepseek_r1(folder, from_s=R1_FROM_S, span_s=span_s, thin=R1_THIN, seed=SAMPLING_SEED),)
        case "W6":
            traces = workloads.mixed(folder, thin=MIXED_THIN, seed=SAMPLING_SEED)
        case _:
            traces = (shaped(name, 10.0, SAMPLING_SEED),)
    return tuple(_cut(trace, size, ENTRIES[name].step_s) for trace in traces)


def shaped(name: str, mean_rps: float, seed: int) -> Trace:
    """Draw one of W7's shapes."""
    return workloads.synthetic(Shape(name.removeprefix("W7-")), mean_rps=mean_rps, seed=seed)


def _m_large(folder: Path, from_s: int, span_s: int) -> Trace:
    return workloads.m_large(folder, from_s=from_s, span_s=span_s, thin=M_LARGE_THIN, seed=SAMPLING_SEED)


def _cut(trace: Trace, size: Size, step_s: int | None) -> Trace:
    """Keep a short run's part; around a step it begins two minutes before."""
    return trace.slice(*window_us(size, step_s)) if size.span_s else trace


def window_us(size: Size, step_s: int | None) -> tuple[int, int]:
    """Return which part of a trace a short run keeps."""
    begin_s = step_s - 120 if step_s else 0
    return begin_s * SECOND_US, (begin_s + size.span_s) * SECOND_US
