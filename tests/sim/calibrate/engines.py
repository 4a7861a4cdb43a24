"""The engine model in the place of a real engine: its constants are known, so a fit can be judged."""

from __future__ import annotations

import numpy as np

from forebay.engine_model.step_time import StepTimes
from forebay.sim.calibrate.loads import Load, trace_of
from forebay.sim.calibrate.recording import EngineFacts, Recording
from forebay.sim.calibrate.replay import predict
from forebay.sim.trace import Trace

FACTS = EngineFacts(
    engine="the engine model",
    model="none",
    machine="none",
    max_model_len=1024,
    max_num_seqs=16,
    max_num_batched_tokens=256,
    kv_blocks=200,
    kv_block_tokens=16,
    prefix_caching=True,
)
TIMES = StepTimes(c0_ps=12_000_000_000, c1_ps=400_000_000, c2_ps=2_000_000, p1_ps=150_000_000, p2_fs=40_000_000)
FRONT_US = 3_000
BETWEEN_STAGES_US = 5_000


def play(
    load: Load, run: int, *, facts: EngineFacts = FACTS, times: StepTimes = TIMES, noise_permille: int = 20
) -> Recording:
    """Run a load as a client would see it, each stage after the one before."""
    settings = facts.settings(times)
    sent, prompts, outputs, tokens, preemptions, start_us = [], [], [], [], 0, 0
    for number, stage in enumerate(load.stages):
        trace = trace_of(load.name, stage)
        seen = predict(trace, settings, FRONT_US, noise_permille=noise_permille, seed=1000 * run + number)
        sent.append(trace.arrival_us + start_us)
        prompts.append(trace.prompt_tokens)
        outputs.append(trace.output_tokens)
        tokens.append(seen.token_us + start_us)
        preemptions += seen.preemptions
        start_us = int(tokens[-1].max()) + BETWEEN_STAGES_US
    trace = Trace(load.name, np.concatenate(sent), np.concatenate(prompts), np.concatenate(outputs))
    return Recording(load.name, run, facts, trace, np.concatenate(tokens), preemptions)
