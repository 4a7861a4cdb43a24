"""A fluid toy of one service in a closed loop with `step`: enough to see it flap, overshoot or wait. Not a simulator.

Requests are served in whole milliseconds of work by identical replicas; what does not fit in a slot waits, at the
engines if one serves, else at the gateway. Replicas obey decisions at once: promotions take effect a second later, cold
starts after `boot_s`. Poisson arrivals come from a seeded generator: the dice are the test's, not the judge's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from forebay.core.memory import Memory, initial_memory
from forebay.core.snapshot import State
from forebay.core.step import step

from tests.core.build import ANSWER_TOKENS, PROMPT_TOKENS, snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.core.decision import Decision
    from forebay.core.fleet import FleetSpec


@dataclass
class Replica:
    uid: str
    state: State
    born_s: int
    running: list[int] = field(default_factory=list)  # milliseconds left of each request, as if alone at full batch
    finished: int = 0
    tokens: int = 0
    prompts: int = 0
    itl_sum_ms: int = 0


@dataclass
class Toy:
    """The loop; `history` has (second, serving wanted, warm wanted, serving there, waiting) a second."""

    spec: FleetSpec
    rate: Callable[[int], float]
    boot_s: int = 90
    seed: int | None = None
    answer_ms: int = 4900  # in the batch: 0.1 s of prefill and 200 tokens of 24 ms
    patience_s: int = 60
    slots: int = 8
    replicas: list[Replica] = field(default_factory=list)
    queue: list[int] = field(default_factory=list)  # the second in which each came
    history: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    memory: Memory | None = None
    arrived: int = 0
    fluid: float = 0.0
    late: int = 0  # requests that waited for more than a second

    def run(self, seconds: int, start: int = 0) -> Toy:
        dice = np.random.default_rng(self.seed)
        memory = self.memory or initial_memory(self.spec, start * 1000)
        for second in range(start, start + seconds):
            self._arrive(second, dice)
            self._serve(second)
            memory, decisions = step(self.spec, memory, self._look(second))
            decision = decisions.decision(0)
            self._obey(decision, second)
            self.decisions.append(decision)
            serving = sum(r.state == State.SERVING for r in self.replicas)
            self.history.append((second, decision.replicas_serving, decision.replicas_warm, serving, len(self.queue)))
        self.memory = memory
        return self

    def _arrive(self, second: int, dice: np.random.Generator) -> None:
        if self.seed is None:
            self.fluid += self.rate(second)
            count = int(self.fluid)
            self.fluid -= count
        else:
            count = int(dice.poisson(self.rate(second)))
        self.arrived += count
        self.queue += [second] * count
        self.queue = [came for came in self.queue if second - came < self.patience_s]

    def _serve(self, second: int) -> None:
        for replica in self.replicas:
            if replica.state in (State.STARTING,) and second - replica.born_s >= self.boot_s:
                replica.state = State.WARM
        serving = [r for r in self.replicas if r.state == State.SERVING]
        for replica in self.replicas:
            busy = len(replica.running)
            replica.tokens += busy * 1000 * ANSWER_TOKENS // self.answer_ms
            replica.itl_sum_ms += busy * 980
            left = [ms - 1000 for ms in replica.running]
            replica.finished += sum(ms <= 0 for ms in left)
            replica.running = [ms for ms in left if ms > 0]
        while self.queue and serving:
            emptiest = min(serving, key=lambda r: len(r.running))
            if len(emptiest.running) >= self.slots:
                break
            self.late += second - self.queue.pop(0) > 1
            emptiest.running.append(self.answer_ms)
            emptiest.prompts += 1

    def _look(self, second: int) -> Any:
        serving = [r for r in self.replicas if r.state == State.SERVING]
        held = 0 if serving else len(self.queue)
        rows = []
        for replica in sorted(self.replicas, key=lambda r: r.uid):
            waiting = 0 if held or not serving or replica is not serving[0] else len(self.queue)
            rows.append(
                {
                    "uid": replica.uid,
                    "state": replica.state,
                    "ready": replica.state != State.STARTING,
                    "since_created_ms": (second - replica.born_s) * 1000,
                    "age_ms": 0 if replica.state != State.STARTING else -(2**63),
                    "requests_running": len(replica.running),
                    "requests_waiting": waiting,
                    "kv_tokens_used": len(replica.running) * (PROMPT_TOKENS + ANSWER_TOKENS // 2),
                    "generation_tokens_total": replica.tokens,
                    "requests_finished_total": replica.finished,
                    "prompt_tokens_total": replica.prompts * PROMPT_TOKENS,
                    "ttft_count": replica.prompts,
                    "ttft_sum_ms": replica.prompts * 124,
                    "itl_count": replica.tokens,
                    "itl_sum_ms": replica.itl_sum_ms,
                }
            )
        gateway = {
            "requests_held": held,
            "held_prompt_tokens": held * PROMPT_TOKENS,
            "held_oldest_ms": (second - self.queue[0]) * 1000 if held else 0,
            "arrivals_total": self.arrived,
            "arrival_prompt_tokens_total": self.arrived * PROMPT_TOKENS,
        }
        return snapshot(second * 1000 + 500, rows, [gateway])

    def _obey(self, decision: Decision, second: int) -> None:
        total = decision.replicas_serving + decision.replicas_warm
        here = [r for r in self.replicas if r.state != State.DRAINING]
        for _ in range(total - len(here)):
            self.replicas.append(Replica(f"r{len(self.replicas):05}-{second}", State.STARTING, second))
        serving = [r for r in here if r.state == State.SERVING]
        warm = [r for r in here if r.state == State.WARM]
        for replica in warm[: max(0, decision.replicas_serving - len(serving))]:
            replica.state = State.SERVING
        if decision.hold:
            return
        serving.sort(key=lambda r: len(r.running))
        for replica in serving[: max(0, len(serving) - decision.replicas_serving)]:
            replica.state = State.WARM
        excess = len([r for r in self.replicas if r.state != State.DRAINING]) - total
        order = sorted(
            (r for r in self.replicas if r.state in (State.STARTING, State.WARM)), key=lambda r: (r.state, -r.born_s)
        )
        gone = {r.uid for r in order[: max(0, excess)]}
        self.replicas = [r for r in self.replicas if r.uid not in gone]


def reversals(numbers: list[int]) -> int:
    """How often a sequence that rose falls, or one that fell rises."""
    steps = [after - before for before, after in zip(numbers, numbers[1:], strict=False) if after != before]
    return sum(a * b < 0 for a, b in zip(steps, steps[1:], strict=False))
