"""The engine model on virtual time: a trace in, the time of each token out.

The client's clock is the model's, shifted by what a token needs to reach the client: what a request spends on its way
in and its tokens on their way out then counts as one delay before the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from forebay.engine_model.engine import Engine

if TYPE_CHECKING:
    from forebay.core.units import I64
    from forebay.engine_model.engine import EngineSettings
    from forebay.sim.trace import Trace

PS_PER_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the model says of a trace."""

    token_us: I64  # flat, in the trace's order
    preemptions: int


class Arrivals:
    """Requests on their way into an engine, each `front_us` after it was sent."""

    def __init__(self, trace: Trace, front_us: int, block_tokens: int) -> None:
        if trace.prefix_block_tokens not in {0, block_tokens}:
            raise ValueError(f"{trace.name}: prefixes must be given in the engine's blocks of {block_tokens} tokens")
        self._block_tokens = block_tokens
        self.trace = trace
        self.ready_ps = ((trace.arrival_us + front_us) * PS_PER_US).tolist()
        self.sent = 0
        self._fresh = 0 if trace.prefix_ids is None else int(trace.prefix_ids.max(initial=-1)) + 1

    @property
    def next_ps(self) -> int | None:
        """When the next request arrives; None after the last."""
        return self.ready_ps[self.sent] if self.sent < len(self.ready_ps) else None

    def submit(self, engine: Engine, now_ps: int) -> None:
        """Submit the next request."""
        prompt, output = int(self.trace.prompt_tokens[self.sent]), int(self.trace.output_tokens[self.sent])
        engine.submit(str(self.sent), prompt, output, self._hashes((prompt + output) // self._block_tokens), now_ps)
        self.sent += 1

    def submit_due(self, engine: Engine, now_ps: int) -> None:
        """Submit what has arrived."""
        while self.next_ps is not None and self.next_ps <= now_ps:
            self.submit(engine, now_ps)

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
        Requests; shared prefixes in the engine's blocks.
    settings
        The engine, with its step times.
    front_us
        What a request and its tokens spend outside the engine's loop: HTTP, tokens, detokens.
    noise_permille
        Each step is multiplied by a lognormal of mean 1 and this spread.
    seed
        Of that noise.
    """
    engine, queue = Engine(settings), Arrivals(trace, front_us, settings.kv_block_tokens)
    dice, sigma = np.random.default_rng(seed), noise_permille / 1000
    first = np.cumsum(trace.output_tokens) - trace.output_tokens
    emitted = np.zeros(len(trace), np.int64)
    token_us = np.zeros(int(trace.output_tokens.sum()), np.int64)
    now_ps = 0
    while True:
        queue.submit_due(engine, now_ps)
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
