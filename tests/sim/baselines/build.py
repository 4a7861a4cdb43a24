"""Samples by what matters, and a world whose replicas are ready at once: it shows a rule's own timing and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from forebay.sim.baselines import all_rules
from forebay.sim.sample import Sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.sim.sample import Rule

TOTALS = (
    "arrivals_total", "finished_total", "prompt_tokens_total", "generation_tokens_total",
    "ttft_sum_ms", "ttft_count", "itl_sum_ms", "itl_count",
)  # fmt: skip


def sample(
    at_ms: int = 0,
    *,
    ready: int = 1,
    starting: int = 0,
    running: int | list[int] = 0,
    waiting: int | list[int] = 0,
    kv_milli: int | list[int] = 0,
    held: int = 0,
    **totals: int,
) -> Sample:
    """Return a sample; a number instead of a list is the same for each ready replica."""

    def column(value: int | list[int]) -> Any:
        return np.full(ready, value, np.int64) if isinstance(value, int) else np.array(value, np.int64)

    return Sample(
        at_ms=at_ms,
        replicas=ready + starting,
        replicas_ready=ready,
        running=column(running),
        waiting=column(waiting),
        held=held,
        kv_usage_milli=column(kv_milli),
        **{name: totals.get(name, 0) for name in TOTALS},
    )


def rule(name: str, *, batch_best: int = 10, low: int = 1, high: int = 1000, **overrides: Any) -> Rule:
    return all_rules()[name](overrides, batch_best, low, high)


def drive(
    driven: Rule, look: Callable[[int, int], Sample], *, until_ms: int, replicas: int, phase_ms: int = 0
) -> list[tuple[int, int]]:
    """Let a rule decide until then, and return when it changed the replicas to what.

    `look(at_ms, replicas)` is the world; the rule sees it as late as its metric pipeline has it, from `phase_ms` on.
    """
    history, changes = [(-(10**9), replicas)], []
    for now_ms in range(phase_ms, until_ms, driven.interval_ms):
        seen_ms = now_ms - driven.delay_ms
        then = next(count for since_ms, count in reversed(history) if since_ms <= seen_ms)
        wanted = driven.decide(look(seen_ms, then))
        if wanted != replicas:
            replicas = wanted
            history.append((now_ms, replicas))
            changes.append((now_ms, replicas))
    return changes
