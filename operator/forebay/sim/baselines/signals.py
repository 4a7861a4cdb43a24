"""What several rivals read from a sample in the same way, and how they remember it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from forebay.sim.sample import Sample

F64: TypeAlias = NDArray[np.float64]

_MILLI = 1000
# Sums of floats that should be whole may miss by some 10^-15 of themselves; rounding up must not see that.
_HAIR = 1e-9


def queue_each(sample: Sample) -> F64:
    """Return the requests that wait for each ready replica, its fair share of those that the gateway holds included."""
    queue: F64 = sample.waiting + np.float64(sample.held / max(sample.replicas_ready, 1))
    return queue


def kv_share_of_one(sample: Sample, batch_best: int) -> float:
    """Return the share of one replica's KV cache that one request takes: that of the mean running one.

    Rivals that count the KV of queued requests multiply the queue by mean prompt tokens and divide by the engine's
    `num_gpu_blocks`; a sample has no such constant, and the running requests show the same quotient. While none
    runs, a full batch of `batch_best` fills the cache.
    """
    running = int(sample.running.sum())
    usage_milli = int(sample.kv_usage_milli.sum())
    return usage_milli / _MILLI / running if running and usage_milli else 1 / batch_best


def round_up(value: float) -> int:
    """Round up a float that was computed from whole numbers."""
    return int(np.ceil(value - _HAIR))


def round_down(value: float) -> int:
    """Round down a float that was computed from whole numbers."""
    return int(np.floor(value + _HAIR))


class Cadence:
    """A loop of its own inside a rule: due at once, and then every `period_ms`."""

    def __init__(self, period_ms: int) -> None:
        self._period_ms = period_ms
        self._next_ms: int | None = None

    def due(self, now_ms: int) -> bool:
        """Say whether the loop runs now; the next time is one period later, never two in one."""
        if self._next_ms is None:
            self._next_ms = now_ms
        if now_ms < self._next_ms:
            return False
        self._next_ms += self._period_ms * ((now_ms - self._next_ms) // self._period_ms + 1)
        return True


class Window:
    """The mean of the readings not older than `window_ms`, in order of time."""

    def __init__(self, window_ms: int) -> None:
        self._window_ms = window_ms
        self._readings: deque[tuple[int, float]] = deque()

    def add(self, at_ms: int, value: float) -> None:
        """Keep a reading, and forget those that have left the window."""
        self._readings.append((at_ms, value))
        while self._readings[0][0] <= at_ms - self._window_ms and len(self._readings) > 1:
            self._readings.popleft()

    def mean(self, newest_ms: int | None = None) -> float:
        """Return the mean of the whole window, or of its newest `newest_ms`; at least one reading must be kept."""
        since_ms = -np.inf if newest_ms is None else self._readings[-1][0] - max(newest_ms, 1)
        values = [value for at_ms, value in self._readings if at_ms > since_ms]
        return sum(values) / len(values)
