"""DECIDE: what the book keeps of one service: its queue, its replicas, its counters and its two clocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from forebay.routing.estimator import TokenEstimator
from forebay.routing.flow import FairQueue

if TYPE_CHECKING:
    from forebay.routing.replica import Replica


class Outcome(StrEnum):
    """How an admitted request ended."""

    ANSWERED = "answered"
    REFUSED = "refused"
    ABORTED = "aborted"
    FAILED = "failed"


class Refusal(StrEnum):
    """Why a request got no replica."""

    QUEUE_FULL = "queue_full"
    NOT_STARTED = "not_started"
    STILL_BUSY = "still_busy"
    SERVICE_GONE = "service_gone"
    GATEWAY_LEAVES = "gateway_leaves"


@dataclass(frozen=True, slots=True)
class Limits:
    """How much and how long may wait."""

    queue_requests_max: int  # a service
    queue_bytes_max: int  # all services together
    start_wait_ms: int  # patience while nothing serves
    busy_wait_ms: int  # patience while what serves is full


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """What the book needs to know of an InferenceService and its policy."""

    key: str  # "namespace/name"
    priority: int
    batch_max: int
    prompt_tokens_max: int


@dataclass(slots=True)
class Counters:
    """What happened since the gateway's first process."""

    arrivals: int = 0
    arrival_prompt_tokens: int = 0
    admitted: int = 0
    answered: int = 0
    refused: int = 0
    aborted: int = 0
    failed: int = 0

    def count(self, outcome: Outcome) -> None:
        """Count an end."""
        match outcome:
            case Outcome.ANSWERED:
                self.answered += 1
            case Outcome.REFUSED:
                self.refused += 1
            case Outcome.ABORTED:
                self.aborted += 1
            case Outcome.FAILED:
                self.failed += 1


@dataclass(slots=True)
class Service:
    """One service's queue, replicas and counters."""

    spec: ServiceSpec
    queue: FairQueue = field(default_factory=FairQueue)
    replicas: dict[str, Replica] = field(default_factory=dict)
    estimator: TokenEstimator = field(default_factory=TokenEstimator)
    counters: Counters = field(default_factory=Counters)
    gone: bool = False
    # Two clocks, one of which runs: waiting for a first replica, or for room on one. Each request has a budget on both,
    # so the second is fresh when capacity appears, and flapping between the two adds up to no more than their sum.
    start_clock_ms: int = 0
    busy_clock_ms: int = 0
    clock_ms: int = 0

    def turn_clocks(self, now_ms: int) -> None:
        """Let the time that passed count on the clock that ran; call it before anything changes what serves."""
        passed_ms = now_ms - self.clock_ms
        if passed_ms <= 0:
            return
        if self.serves:
            self.busy_clock_ms += passed_ms
        else:
            self.start_clock_ms += passed_ms
        self.clock_ms = now_ms

    @property
    def serves(self) -> bool:
        """Say whether any replica may be picked."""
        return any(r.routable for r in self.replicas.values())

    @property
    def in_flight(self) -> int:
        """Count the requests that are with replicas."""
        return sum(r.own for r in self.replicas.values())

    @property
    def mean_prompt_tokens(self) -> int:
        """Average the prompts that arrived."""
        return self.counters.arrival_prompt_tokens // max(1, self.counters.arrivals)
