"""The engine model beside BLIS, another simulator: its published results for H100s, with our priors, nothing fitted.

BLIS sends N sessions a stage, each at a random phase and then at even intervals; every prompt begins with one of a few
shared system prompts. Its own constants were trained on measured runs, so its results are the nearest thing to vLLM on
H100 that is published with the scheduler's settings beside it.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from forebay.engine_model.bank import BLOCK_TOKENS
from forebay.engine_model.engine import EngineSettings
from forebay.resolve.profiles import find_model, load, lookup
from forebay.sim.calibrate.recording import RecordingError
from forebay.sim.calibrate.replay import predict
from forebay.sim.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forebay.core.units import I64

FILE = "blis-trained-physics.json.gz"
FRONT_US = 8_000  # of a request, as the benchmark assumes for every engine
SECONDS = 120  # of each stage: means over five minutes differ by 4 % at most (measured)
MODEL_LEN = 4096  # BLIS has no limit; its longest request has 2,482 tokens
SEED = 42


@dataclass(frozen=True, slots=True)
class Experiment:
    """Ours against BLIS's: mean TTFT, mean ITL, mean time of a request."""

    what: str
    figures: int
    errors: tuple[int, int]  # permille, signed: of the mean ITL, and the worst of the three


def compare(folder: Path) -> Iterator[Experiment]:
    """Replay each experiment whose model the product knows.

    Raises
    ------
    RecordingError
        When the file is missing or something else.
    """
    path = folder / FILE
    try:
        experiments = orjson.loads(gzip.decompress(path.read_bytes()))["experiments"]
    except (OSError, ValueError, KeyError) as error:
        raise RecordingError(f"{path}: {error}; tests/data/published of Forebay's sources has it") from error
    for experiment in experiments:
        if find_model(load(), experiment["model"]) is not None:
            yield _compare(experiment)


def _compare(experiment: dict[str, Any]) -> Experiment:
    model, tensor = experiment["model"].rpartition("/")[2], experiment["tp"]
    prior = lookup(load(), model_uri=model, gpu_type="H100", tensor_parallel=tensor)
    if prior is None:
        raise RecordingError(f"{FILE}: no profile of {model} on {tensor} x H100")
    trace = _trace(experiment["workload"]["inference_perf"])
    settings = EngineSettings(
        prior.times,
        experiment["total_kv_blocks"],
        MODEL_LEN,
        experiment["max_num_seqs"],
        experiment["max_num_batched_tokens"],
    )
    token_us = predict(trace, settings, FRONT_US).token_us
    ends = np.cumsum(trace.output_tokens)
    first, last = token_us[ends - trace.output_tokens], token_us[ends - 1]
    ours = {
        "ttft_mean_ms": (first - trace.arrival_us).mean() / 1000,
        "itl_mean_ms": ((last - first) / (trace.output_tokens - 1)).mean() / 1000,
        "e2e_mean_ms": (last - trace.arrival_us).mean() / 1000,
    }
    errors = {name: round(1000 * float(value / experiment["expected"][name] - 1)) for name, value in ours.items()}
    rates = "+".join(f"{stage['rate']:g}" for stage in experiment["workload"]["inference_perf"]["stages"])
    return Experiment(
        what=f"{model} on {tensor} x H100, {rates}/s, {trace.prompt_tokens[0]} + {trace.output_tokens[0]} tokens",
        figures=len(errors),
        errors=(errors["itl_mean_ms"], max(errors.values(), key=abs)),
    )


def _trace(spec: dict[str, Any]) -> Trace:
    shared, dice = spec["shared_prefix"], np.random.default_rng(SEED)
    sessions = shared["num_unique_system_prompts"] * shared["num_users_per_system_prompt"]
    arrivals: list[I64] = []
    groups: list[I64] = []
    for turn, stage in enumerate(spec["stages"]):
        every_us = sessions / stage["rate"] * 1e6
        phase_us = dice.uniform(0, every_us, sessions) + turn * SECONDS * 1e6
        at_us = phase_us[:, None] + every_us * np.arange(int(SECONDS * 1e6 / every_us))
        arrivals.append(at_us.astype(np.int64).ravel())
        groups.append(np.repeat(np.arange(sessions) // shared["num_users_per_system_prompt"], at_us.shape[1]))
    at_us, group = np.concatenate(arrivals), np.concatenate(groups)
    order = np.argsort(at_us, kind="stable")
    count, blocks = len(order), shared["system_prompt_len"] // BLOCK_TOKENS
    return Trace(
        name="blis",
        arrival_us=at_us[order],
        prompt_tokens=np.full(count, shared["system_prompt_len"] + shared["question_len"], np.int64),
        output_tokens=np.full(count, shared["output_len"], np.int64),
        prefix_ids=(group[order][:, None] * blocks + np.arange(blocks)).ravel(),
        prefix_offsets=np.arange(count + 1, dtype=np.int64) * blocks,
        prefix_block_tokens=BLOCK_TOKENS,
    )
