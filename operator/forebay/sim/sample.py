"""What a metrics system would read of one service at one instant, and what a rule that scales on it looks like.

The rivals of `forebay.core` (`forebay.sim.baselines`) see nothing else: one `Sample`, as old as their own metric
pipeline makes it. Columns have one row a ready replica, in one order; a replica that starts has no row, because its
engine answers no scrape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from forebay.core.units import I64


@dataclass(frozen=True, slots=True)
class Sample:
    """One service at `at_ms`. Totals are counters since the service began; nothing ever resets them."""

    at_ms: int  # when it was measured, not when it is read
    replicas: int  # exist: starting + ready, not draining
    replicas_ready: int  # take traffic
    running: I64  # [ready] requests in the batch
    waiting: I64  # [ready] requests in that engine's own queue
    held: int  # requests that the gateway holds, in no engine's queue
    kv_usage_milli: I64  # [ready] share of the KV blocks in use
    arrivals_total: int
    finished_total: int
    prompt_tokens_total: int  # of arrivals
    generation_tokens_total: int
    ttft_sum_ms: int
    ttft_count: int
    itl_sum_ms: int
    itl_count: int

    @property
    def queued(self) -> int:
        """All requests that wait, whether an engine queues them or the gateway holds them.

        Our router holds what no engine should queue yet, so `waiting` alone would hide a rival's own signal from it.
        """
        return int(self.waiting.sum()) + self.held

    @property
    def in_flight(self) -> int:
        """All requests that arrived and have not finished: what a proxy in front of the replicas counts."""
        return int(self.running.sum()) + self.queued


class Rule(Protocol):
    """A rule that scales one service: an object with its own state, whose only clock is `Sample.at_ms`."""

    @property
    def interval_ms(self) -> int:
        """How often it decides."""

    @property
    def delay_ms(self) -> int:
        """How old the sample is that it decides on: its own metric pipeline, scrape and query included."""

    @property
    def warm_replicas(self) -> int:
        """How many warm replicas the loop keeps for it, at every policy's price for them; the rule ignores it."""

    def decide(self, sample: Sample) -> int:
        """Return the replicas it wants in all, before the service's bounds; called every `interval_ms`."""
