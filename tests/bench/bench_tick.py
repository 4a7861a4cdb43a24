"""One decision tick over a thousand services with four replicas each, and over ten thousand."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from forebay.core.memory import initial_memory
from forebay.core.step import step

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from tests.core import build  # noqa: E402 - a program of its own finds the tests' builders by this path only

REPLICAS = 4


def look(services: int, tick: int) -> build.Snapshot:
    """Replicas that serve a request a second each, with counters that move at every look."""
    replicas = [
        {
            "uid": f"{service:06}-{ordinal}",
            "service": service,
            "requests_running": 3 + (service + tick) % 4,
            "kv_tokens_used": 4000,
            "prompt_tokens_total": 1000 * tick,
            "generation_tokens_total": 200 * tick,
            "requests_finished_total": tick,
            "ttft_count": tick,
            "ttft_sum_ms": 130 * tick,
            "itl_count": 200 * tick,
            "itl_sum_ms": 5000 * tick,
        }
        for service in range(services)
        for ordinal in range(REPLICAS)
    ]
    gateways = [
        {"uid": uid, "service": service, "arrivals_total": 2 * tick, "arrival_prompt_tokens_total": 2000 * tick}
        for uid in ("g0", "g1")
        for service in range(services)
    ]
    return build.snapshot(tick * 1000, replicas, gateways, gateways_expected=2, allocatable=100_000)


def measure(services: int, ticks: int, aim_ms: int) -> None:
    """Print p50 and p99 of a tick, the first ones left out."""
    spec = build.fleet(*({} for _ in range(services)))
    memory = initial_memory(spec, 0)
    frames = [look(services, tick) for tick in range(1, 13)]
    times_ms, spent_ms = [], []
    for tick in range(ticks):
        frame = frames[tick % len(frames)]
        # A ring of looks made beforehand, so that making them is not measured; times go on, counters start over.
        frame = build.replace(frame, now_ms=(tick + 1) * 1000)
        begun, spent = time.perf_counter_ns(), time.thread_time_ns()
        memory, _ = step(spec, memory, frame)
        times_ms.append((time.perf_counter_ns() - begun) / 1e6)
        spent_ms.append((time.thread_time_ns() - spent) / 1e6)
    name = f"tick of {services} services x {REPLICAS} replicas"
    for figure, numbers, share, aim in (
        ("p50", times_ms, 50, ""),
        ("p99", times_ms, 99, f"<= {aim_ms}"),
        # On a shared machine the processor's time says what the tick costs, the clock what the neighbours cost.
        ("p99 of processor time", spent_ms, 99, ""),
    ):
        print(f"{name}, {figure}\t{float(np.percentile(numbers[5:], share)):.1f}\tms\t{aim}")  # noqa: T201 - the rows of `make bench`


if __name__ == "__main__":
    measure(1_000, 200, aim_ms=50)
    measure(10_000, 25, aim_ms=250)
