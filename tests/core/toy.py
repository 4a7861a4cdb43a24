"""A fluid toy of services in a closed loop with `step`: enough to see it flap, overshoot or wait. Not a simulator.

A request is 200 tokens and four more for its prefill; a replica with B requests makes each of them a token in 20 + B/2
ms, as the default prior of `build` says. What finds no slot waits, at an engine if one serves, else at the gateway.
Decisions are obeyed at once: promotions take effect in the next second, cold starts after `boot_s`. All toys of a run
are rows of one fleet, so that one `step` a second judges them all. The dice are the test's, not the judge's.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from forebay.core.memory import initial_memory
from forebay.core.snapshot import State
from forebay.core.step import step
from tests.core import build

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay.core.decision import Decision

REQUEST_MILLITOKENS = 204_000


@dataclass
class Replica:
    uid: str
    state: State
    born_s: int
    running: list[int] = field(default_factory=list)  # thousandths of tokens left of each request
    finished: int = 0
    tokens: int = 0
    prompts: int = 0
    itl_sum_ms: int = 0


@dataclass
class Toy:
    """One service. `history` has (second, serving wanted, warm wanted, serving there, waiting) for each second."""

    service: dict[str, Any]
    rate: Callable[[int], float]
    boot_s: int = 90
    seed: int | None = None  # None: requests come evenly
    length: Callable[[int], int] = lambda _: REQUEST_MILLITOKENS
    patience_s: int = 60
    slots: int = 8
    replicas: list[Replica] = field(default_factory=list)
    queue: list[int] = field(default_factory=list)  # the second in which each request came
    history: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    arrived: int = 0
    served: int = 0
    owed: float = 0.0
    made: int = 0

    def __post_init__(self) -> None:
        self.dice = np.random.default_rng(self.seed)

    @property
    def wanted(self) -> list[int]:
        """Serving replicas wanted, second by second."""
        return [serving for _, serving, _, _, _ in self.history]

    def live(self, second: int) -> None:
        """Let requests come, be seated, and progress for a second."""
        self.owed += self.rate(second)
        count = int(self.owed) if self.seed is None else int(self.dice.poisson(self.rate(second)))
        self.owed -= int(self.owed)
        self.arrived += count
        self.queue = [came for came in self.queue + [second] * count if second - came < self.patience_s]
        for replica in self.replicas:
            if replica.state == State.STARTING and second - replica.born_s >= self.boot_s:
                replica.state = State.WARM
            self._compute(replica)
        serving = [replica for replica in self.replicas if replica.state == State.SERVING]
        while self.queue and serving:
            emptiest = min(serving, key=lambda replica: len(replica.running))
            if len(emptiest.running) >= self.slots:
                break
            self.queue.pop(0)
            emptiest.running.append(self.length(second))
            emptiest.prompts += 1

    def _compute(self, replica: Replica) -> None:
        batch = len(replica.running)
        step_us = 20_000 + 500 * batch
        replica.tokens += batch * 10**6 // step_us
        replica.itl_sum_ms += batch * 1000
        left = [tokens - 10**9 // step_us for tokens in replica.running]
        replica.running = [tokens for tokens in left if tokens > 0]
        replica.finished += batch - len(replica.running)
        self.served += batch - len(replica.running)

    def look(self, second: int, row: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Tell what a snapshot holds of this service."""
        serving = [replica for replica in self.replicas if replica.state == State.SERVING]
        held = 0 if serving else len(self.queue)
        rows = [
            {
                "uid": replica.uid,
                "service": row,
                "state": replica.state,
                "ready": replica.state != State.STARTING,
                "since_created_ms": (second - replica.born_s) * 1000,
                "age_ms": build.UNKNOWN if replica.state == State.STARTING else 0,
                "gpus": self.service.get("gpus_per_replica", 1),
                "requests_running": len(replica.running),
                "requests_waiting": len(self.queue) if serving and replica is serving[0] else 0,
                "kv_tokens_used": len(replica.running) * (build.PROMPT_TOKENS + build.ANSWER_TOKENS // 2),
                "generation_tokens_total": replica.tokens,
                "requests_finished_total": replica.finished,
                "prompt_tokens_total": replica.prompts * build.PROMPT_TOKENS,
                "ttft_count": replica.prompts,
                "ttft_sum_ms": replica.prompts * 124,
                "itl_count": replica.tokens,
                "itl_sum_ms": replica.itl_sum_ms,
            }
            for replica in self.replicas
        ]
        gateway = {
            "service": row,
            "requests_held": held,
            "held_prompt_tokens": held * build.PROMPT_TOKENS,
            "held_oldest_ms": (second - self.queue[0]) * 1000 if held else 0,
            "arrivals_total": self.arrived,
            "arrival_prompt_tokens_total": self.arrived * build.PROMPT_TOKENS,
        }
        return rows, gateway

    def obey(self, decision: Decision, second: int, row: int) -> None:
        """Do what was decided, and write it down."""
        total = decision.replicas_serving + decision.replicas_warm
        for _ in range(total - len(self.replicas)):
            self.replicas.append(Replica(f"{row:03}-{self.made:05}", State.STARTING, second))
            self.made += 1
        serving = [replica for replica in self.replicas if replica.state == State.SERVING]
        warm = [replica for replica in self.replicas if replica.state == State.WARM]
        for replica in warm[: max(0, decision.replicas_serving - len(serving))]:
            replica.state = State.SERVING
        there = sum(replica.state == State.SERVING for replica in self.replicas)
        self.history.append((second, decision.replicas_serving, decision.replicas_warm, there, len(self.queue)))
        if decision.hold:
            return
        serving.sort(key=lambda replica: len(replica.running))
        for replica in serving[: max(0, len(serving) - decision.replicas_serving)]:
            replica.state = State.WARM
        idle = [replica for replica in self.replicas if replica.state != State.SERVING]
        idle.sort(key=lambda replica: (replica.state, len(replica.running), -replica.born_s))
        gone = {replica.uid for replica in idle[: max(0, len(self.replicas) - total)]}
        self.replicas = [replica for replica in self.replicas if replica.uid not in gone]


def run(toys: Sequence[Toy], seconds: int) -> None:
    """Run all toys side by side from second 0."""
    spec = build.fleet(*(toy.service for toy in toys))
    memory = initial_memory(spec, 0)
    for second in range(seconds):
        replicas: list[dict[str, Any]] = []
        gateways: list[dict[str, Any]] = []
        for row, toy in enumerate(toys):
            toy.live(second)
            rows, gateway = toy.look(second, row)
            replicas += rows
            gateways.append(gateway)
        shot = build.snapshot(second * 1000 + 500, replicas, gateways, allocatable=10_000)
        memory, decisions = step(spec, memory, shot)
        for row, toy in enumerate(toys):
            toy.obey(decisions.decision(row), second, row)


def reversals(numbers: Sequence[int]) -> int:
    """Count how often a sequence that rose falls, or one that fell rises."""
    steps = [after - before for before, after in itertools.pairwise(numbers) if after != before]
    return sum(before * after < 0 for before, after in itertools.pairwise(steps))
