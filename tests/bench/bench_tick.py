"""One decision tick over a thousand services with four replicas each, and over ten thousand."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from forebay.core.memory import initial_memory
from forebay.core.step import step

from tests.core import build

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
    times_ms = []
    for tick in range(ticks):
        frame = frames[tick % len(frames)]
        # A ring of looks made beforehand, so that making them is not measured; times go on, counters start over.
        frame = build.replace(frame, now_ms=(tick + 1) * 1000)
        begun = time.perf_counter_ns()
        memory, _ = step(spec, memory, frame)
        times_ms.append((time.perf_counter_ns() - begun) / 1e6)
    p50, p99 = (float(np.percentile(times_ms[5:], share)) for share in (50, 99))
    print(f"tick of {services} services x {REPLICAS} replicas, p50\t{p50:.1f}\tms\t")
    print(f"tick of {services} services x {REPLICAS} replicas, p99\t{p99:.1f}\tms\t<= {aim_ms}")


if __name__ == "__main__":
    measure(1_000, 200, aim_ms=50)
    measure(10_000, 25, aim_ms=250)
