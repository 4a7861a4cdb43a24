"""Was the machine itself the bottleneck? Everything shares its cores here: cluster, engines, gateway and the clients.

A demo on a machine that cannot keep up measures the machine, so this is measured beside the
traffic and told in the report.
"""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# The event loop is asked to wake this often; how late it wakes is how late a token may be noticed.
LAG_EVERY_S = 0.02
SAMPLE_EVERY_S = 1.0
# The rule. 50 ms is one token of the strictest ITL target here; below it the machine cannot turn a good request bad.
LATENESS_LIMIT_MS = 50
LAG_LIMIT_MS = 50
BUSY_SHARE = 0.97  # a second in which fewer than 3 % of the processors were idle
BUSY_SECONDS_LIMIT = 0.10  # such seconds may be one in ten
STEAL_LIMIT = 0.05
_STAT_IDLE, _STAT_IOWAIT, _STAT_STEAL = 3, 4, 7
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cpu:
    """One reading of the machine's processor time, in ticks."""

    total: int
    idle: int
    steal: int


def read_cpu(stat: str | None = None) -> Cpu:
    """Parse the first line of /proc/stat."""
    fields = (stat or Path("/proc/stat").read_text()).split("\n", 1)[0].split()[1:]
    ticks = [int(value) for value in fields[:8]]
    return Cpu(sum(ticks), ticks[_STAT_IDLE] + ticks[_STAT_IOWAIT], ticks[_STAT_STEAL])


def percentile(values: list[int] | list[float], per_cent: float) -> float:
    """Nearest-rank percentile; 0 of an empty list."""
    if not values:
        return 0.0
    ordered = sorted(values)
    rank = max(0, -(-len(ordered) * per_cent // 100) - 1)
    return float(ordered[int(rank)])


class LoopLag:
    """How late this process's event loop runs what is due."""

    def __init__(self) -> None:
        self.lags_ms: list[float] = []

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            due = time.monotonic() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            self.lags_ms.append(max(0.0, (time.monotonic() - due) * 1000))


class CpuWatch:
    """Second by second: which share of the processors was busy, and which was taken by the hypervisor."""

    def __init__(self) -> None:
        self.busy: list[float] = []
        self.steal: list[float] = []

    async def run(self) -> None:
        """Sample until cancelled."""
        before = read_cpu()
        while True:
            await asyncio.sleep(SAMPLE_EVERY_S)
            now = read_cpu()
            total = max(now.total - before.total, 1)
            self.busy.append(1 - (now.idle - before.idle) / total)
            self.steal.append((now.steal - before.steal) / total)
            before = now


@dataclass(frozen=True)
class Verdict:
    """What was measured of the machine, and what follows."""

    send_lateness_p99_ms: float
    send_lateness_max_ms: float
    loop_lag_p99_ms: float
    loop_lag_max_ms: float
    cpu_busy_mean: float
    cpu_seconds_saturated_share: float
    cpu_steal_mean: float
    reasons: tuple[str, ...]

    @property
    def was_bottleneck(self) -> bool:
        """Whether any limit of the rule was passed."""
        return bool(self.reasons)

    @property
    def words(self) -> str:
        """One sentence for people."""
        if not self.reasons:
            return "the machine was not the bottleneck"
        return "the machine was the bottleneck: " + "; ".join(self.reasons)

    def as_json(self) -> dict[str, Any]:
        """For the report, the rule included."""
        rule = (
            f"bottleneck if send lateness p99 > {LATENESS_LIMIT_MS} ms, or event-loop lag p99 > {LAG_LIMIT_MS} ms, "
            f"or more than {BUSY_SECONDS_LIMIT:.0%} of the seconds had < {1 - BUSY_SHARE:.0%} idle processors, "
            f"or mean steal > {STEAL_LIMIT:.0%}"
        )
        return {**asdict(self), "was_bottleneck": self.was_bottleneck, "words": self.words, "rule": rule}


def verdict(lateness_ms: list[int], lags_ms: list[float], busy: list[float], steal: list[float]) -> Verdict:
    """Apply the rule to what was sampled during the traffic.

    Parameters
    ----------
    lateness_ms
        Per request: sent minus scheduled.
    lags_ms
        The event loop's lags.
    busy, steal
        Per second: shares between 0 and 1.
    """
    late, lag = percentile(lateness_ms, 99), percentile(lags_ms, 99)
    saturated = sum(share > BUSY_SHARE for share in busy) / max(len(busy), 1)
    stolen = sum(steal) / max(len(steal), 1)
    found = (
        (late > LATENESS_LIMIT_MS, f"requests were sent {late:.0f} ms late (p99)"),
        (lag > LAG_LIMIT_MS, f"the generator's event loop ran {lag:.0f} ms late (p99)"),
        (saturated > BUSY_SECONDS_LIMIT, f"no idle processor in {saturated:.0%} of the seconds"),
        (stolen > STEAL_LIMIT, f"{stolen:.0%} of the processor time was stolen"),
    )
    return Verdict(
        send_lateness_p99_ms=late,
        send_lateness_max_ms=float(max(lateness_ms, default=0)),
        loop_lag_p99_ms=round(lag, 1),
        loop_lag_max_ms=round(max(lags_ms, default=0.0), 1),
        cpu_busy_mean=round(sum(busy) / max(len(busy), 1), 3),
        cpu_seconds_saturated_share=round(saturated, 3),
        cpu_steal_mean=round(stolen, 4),
        reasons=tuple(words for broken, words in found if broken),
    )


def process_cpu_s() -> dict[str, float]:
    """Processor seconds used so far by every process that can be seen, added up by program."""
    used: Counter[str] = Counter()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            argv = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            # The name in parentheses may hold blanks; what follows it does not.
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        used[_program(argv)] += int(stat[11]) + int(stat[12])
    return {name: ticks / _TICKS_A_SECOND for name, ticks in used.items()}


def most_used(before: dict[str, float], after: dict[str, float], programs: int = 12) -> dict[str, float]:
    """Tell which programs used the most processor seconds between two readings."""
    grown = {name: round(seconds - before.get(name, 0.0), 1) for name, seconds in after.items()}
    return dict(sorted(grown.items(), key=lambda item: -item[1])[:programs])


def _program(argv: list[str]) -> str:
    """Name what a process is for: its module or script where it is Python."""
    words = [word for word in argv if word]
    if not words:
        return "kernel"
    name = Path(words[0]).name
    if name.startswith("python") and "-m" in words[:-1]:
        return words[words.index("-m") + 1]
    scripts = [Path(word).name for word in words[1:3] if not word.startswith("-")]
    return scripts[0] if name.startswith("python") and scripts else name


def describe() -> dict[str, Any]:
    """Say what machine this is."""
    models = (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name"))
    memory_kib = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    return {
        "cpu": next(models, "unknown"),
        "cores": os.cpu_count(),
        "memory_gib": round(memory_kib / 2**20, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []  # not Linux: the report says "unknown"
