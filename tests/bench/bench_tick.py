"""One decision tick of one service, a thousand and ten thousand, with up to twenty replicas each, and its memory.

Each fleet is judged in a process of its own, so that the peak of its memory speaks of that fleet alone. A fiftieth of
the replicas comes, goes or changes its state at every look, which is far more than a live fleet does.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import numpy as np

from forebay.core.memory import initial_memory
from forebay.core.step import step

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from tests.core import crowd  # noqa: E402 - a program of its own finds the tests' builders by this path only

# services, replicas of each, ticks, and what is aimed at: a tick in ms, the process in MB
FLEETS = ((1, 20, 600, 1, 100), (1_000, 10, 120, 50, 250), (10_000, 10, 60, 250, 1000))
WARMING = 5  # ticks: the first ones pay for memory that later ones reuse


def measure(services: int, replicas: int, ticks: int, aim_ms: int, aim_mb: int) -> None:
    """Print what a tick takes, the first ones left out, and the most memory that the process ever had."""
    dice = np.random.default_rng(services)
    spec = crowd.fleet(dice, services)
    memory = initial_memory(spec, 0)
    times_ms, spent_ms = [], []
    for look in islice(crowd.looks(dice, spec, np.full(services, replicas)), ticks):
        begun, spent = time.perf_counter_ns(), time.thread_time_ns()
        memory, _ = step(spec, memory, look)
        times_ms.append((time.perf_counter_ns() - begun) / 1e6)
        spent_ms.append((time.thread_time_ns() - spent) / 1e6)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    for figure, value, unit, aim in (
        ("p50", np.percentile(times_ms[WARMING:], 50), "ms", ""),
        ("p99", np.percentile(times_ms[WARMING:], 99), "ms", f"<= {aim_ms}"),
        # On a shared machine the processor's time says what the tick costs, the clock what the neighbours cost.
        ("p99 of processor time", np.percentile(spent_ms[WARMING:], 99), "ms", ""),
        ("peak memory of the process", peak_mb, "MB", f"<= {aim_mb}"),
    ):
        name = f"tick of {services:,} x {replicas} replicas, {figure}"
        print(f"{name}\t{value:.1f}\t{unit}\t{aim}")  # noqa: T201 - the rows of `make bench`


if __name__ == "__main__":
    if sys.argv[1:]:
        measure(*(int(number) for number in sys.argv[1:]))
    else:
        for numbers in FLEETS:
            subprocess.run([sys.executable, __file__, *map(str, numbers)], check=True)
