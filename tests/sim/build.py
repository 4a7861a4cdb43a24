"""Small worlds: traces from dice, services that are told a round prior, and the same rules run plain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from forebay.core.goodness import Targets
from forebay.engine_model.bank import COUNTS, EMITTED, PREEMPTIONS, RUNNING, SEQS_MAX, WAITING
from forebay.sim import compiled
from forebay.sim.datapath import advance, engines, gateway, layout
from forebay.sim.service import SimulatedService
from forebay.sim.trace import Trace
from forebay.sim.world import World
from tests.core import build

if TYPE_CHECKING:
    import pytest

    from forebay.core.units import I64
    from forebay.engine_model.bank import Bank

MS = 1000
SECOND = 1_000_000
TARGETS = Targets(ttft_ms=500, ttft_per_1k_prompt_tokens_ms=150, itl_mean_ms=50, itl_worst_second_ms=200)
TIGHT = Targets(ttft_ms=200, ttft_per_1k_prompt_tokens_ms=0, itl_mean_ms=24, itl_worst_second_ms=40)
# Nothing is drawn: no replica differs from the prior, and no step from its price.
EXACT = World(0, model_error=0.0, noise_milli=0, stragglers=False)


def trace_of(*requests: tuple[int, int, int], prefixes: list[list[int]] | None = None, block: int = 16) -> Trace:
    """Requests as (arrival in ms, prompt tokens, output tokens)."""
    arrival_ms, prompt, output = np.array(requests, np.int64).T.copy()
    if prefixes is None:
        return Trace("small", arrival_ms * MS, prompt, output)
    ids = np.array([name for names in prefixes for name in names], np.int64)
    offsets = np.cumsum([0, *(len(names) for names in prefixes)])
    return Trace("small", arrival_ms * MS, prompt, output, ids, offsets, block)


def drawn(
    seed: int, count: int, seconds: float, *, prompt: tuple[int, int], output: tuple[int, int], texts: int = 0
) -> Trace:
    """Requests at even odds over so many seconds; each begins like one of `texts`, if any."""
    dice = np.random.default_rng(seed)
    arrival_ms = np.sort(dice.integers(0, int(seconds * 1000), count))
    prompts, outputs = dice.integers(*prompt, count), dice.integers(*output, count)
    requests = np.stack([arrival_ms, prompts, outputs], axis=1).tolist()
    if not texts:
        return trace_of(*requests)
    shared = dice.integers(0, texts, count)
    blocks = [int(dice.integers(0, tokens // 32 + 1)) for tokens in prompts]
    prefixes = [[int(text) * 1000 + place for place in range(many)] for text, many in zip(shared, blocks, strict=True)]
    return trace_of(*requests, prefixes=prefixes, block=32)


def service(
    trace: Trace, *, world: World = EXACT, lanes: int = 2, serving: int = 0, classes: Any = (TARGETS,), **told: Any
) -> SimulatedService:
    """One service; `told` are columns of its FleetSpec, `serving` replicas take traffic from the beginning."""
    made = SimulatedService(trace, build.fleet(told), 0, classes=classes, world=world, lanes=lanes)
    made.begin(serving)
    return made


def run_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let services run the rules as they stand, as coverage sees them."""
    monkeypatch.setattr(compiled, "advance", lambda arrays, until_us: advance.advance(arrays.path, until_us))
    monkeypatch.setattr(compiled, "kill_lane", lambda arrays, lane: engines.kill_lane(arrays.path, lane))
    monkeypatch.setattr(compiled, "clear_lane", lambda arrays, lane: engines.clear_lane(arrays.path, lane))


def columns(of: SimulatedService) -> dict[str, I64]:
    """All arrays of a service by name."""
    path = of.path
    return {name: np.asarray(getattr(path, name)) for name in path._fields if name != "bank"} | {
        f"bank.{name}": np.asarray(getattr(path.bank, name)) for name in path.bank._fields
    }


def clock(of: SimulatedService, field: int) -> int:
    return int(of.path.clock[field])


def counts(of: SimulatedService, field: int) -> int:
    """One of the bank's counts, all lanes together."""
    return int(np.asarray(of.path.bank.counts).reshape(-1, COUNTS)[:, field].sum())


def preemptions(of: SimulatedService) -> int:
    return counts(of, PREEMPTIONS)


def in_flight(of: SimulatedService) -> int:
    """Requests that the gateway sent and that have not ended; it must be what the engines hold."""
    own = int(of.path.lane.reshape(-1, layout.LANE_FIELDS)[:, layout.OWN].sum())
    assert own == counts(of, RUNNING) + counts(of, WAITING)
    return own


def lost(of: SimulatedService) -> int:
    """Arrivals that are nowhere: not answered, refused or failed, not held, and in no engine."""
    ended = sum(clock(of, field) for field in (layout.ANSWERED, layout.REFUSED, layout.FAILED))
    return clock(of, layout.ARRIVALS) - ended - clock(of, layout.HELD) - in_flight(of)


class Watch:
    """What happens to each request in a plain run: when it was sent to an engine, where, and when its tokens came."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        run_plain(monkeypatch)
        # Request: lane, time, and when the step ends that was under way there; NEVER_US: none was.
        self.sent_us: dict[int, tuple[int, int, int]] = {}
        self.token_us: dict[int, list[int]] = {}
        self.preempted: set[int] = set()
        note, queue = engines.note_tokens, gateway.queue

        def note_tokens(path: layout.DataPath, number: int, now_us: int) -> None:
            note(path, number, now_us)
            first = number * path.bank.size[SEQS_MAX]
            for row in path.bank.emitted[first : first + path.bank.counts[number * COUNTS + EMITTED]]:
                request = int(path.request[row])
                self.token_us.setdefault(request, []).append(int(now_us))
                if path.bank.preempted[row]:
                    self.preempted.add(request)

        def queue_row(bank: Bank, number: int, row: int) -> None:
            queue(bank, number, row)
            path = self.path
            now_us, end_us = int(path.clock[layout.NOW_US]), int(path.step_end[number])
            self.sent_us[int(path.request[row])] = int(number), now_us, end_us

        monkeypatch.setattr(engines, "note_tokens", note_tokens)
        monkeypatch.setattr(gateway, "queue", queue_row)

    def watch(self, of: SimulatedService) -> SimulatedService:
        self.path = of.path
        return of
