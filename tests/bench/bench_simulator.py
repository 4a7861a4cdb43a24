"""The simulator's speed: 200 requests/s on 20 replicas with the product's picker, without and with the judgement.

Half a minute, and a quarter more where the rules are not compiled yet. Needs the extra `sim`.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from forebay.core.goodness import Targets
from forebay.sim.datapath import layout
from forebay.sim.run import ForebayJudge, Pool, run
from forebay.sim.service import SimulatedService
from forebay.sim.trace import Trace
from forebay.sim.world import World

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from tests.core import build  # noqa: E402 - a program of its own finds the tests' builders by this path only

RATE, REPLICAS, SECONDS = 200, 20, 120
AIM = 1_000
# Llama-3.1-70B on four H100, about: 15.6 ms a step, 31 us a sequence, 55 us a prompt token.
REPLICA = {
    "batch_max": 256,
    "gpus_per_replica": 4,
    "kv_tokens_prior": 467_000,
    "step_c0_ps": 15_600_000_000,
    "step_c1_ps": 31_100_000,
    "step_c2_ps": 28_700,
    "step_p1_ps": 54_800_000,
    "step_p2_fs": 1_070_000,
    # As many as there are, whatever the judgement thinks of them: both figures are of 20 replicas.
    "replicas_min": REPLICAS,
    "replicas_max": REPLICAS,
    "warm_gpus_max": 0,
}


class Nobody:
    """Decides nothing."""

    hears_pushes = False

    def judge(self, *_: object) -> None:
        """Leave all as it is."""


def measure(who: str, seconds: int) -> None:
    """Print simulated seconds by seconds of this process, and the most memory that it ever had."""
    dice = np.random.default_rng(1)
    count = RATE * seconds
    arrival_us = np.sort(dice.integers(0, seconds * 10**6, count))
    trace = Trace("even", arrival_us, dice.integers(100, 2000, count), dice.integers(20, 400, count))
    fleet = build.fleet(REPLICA, gpus_max=4 * REPLICAS)
    service = SimulatedService(
        trace, fleet, 0, classes=(Targets(500, 150, 50, 200),), world=World(1), lanes=REPLICAS + 4
    )
    service.advance(0)  # compiles, or loads what was compiled
    judge = ForebayJudge(fleet, [Pool((0,), 4 * REPLICAS)]) if who == "judged each second" else Nobody()
    begun, played = time.thread_time(), [0.0]

    def note(second: int, _: int) -> None:
        if second == seconds:  # what comes after the last arrival is idle, and would flatter
            played[0] = time.thread_time() - begun

    run([service], judge, [REPLICAS], note)
    answered = int(service.path.clock[layout.ANSWERED])
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    name = f"{seconds} s of {RATE} requests/s on {REPLICAS} replicas, {who}"
    print(f"{name}\t{seconds / played[0]:,.0f}\tx real time\t>= {AIM:,}")  # noqa: T201 - the rows of `make bench`
    print(f"{name}, answered of {count:,}\t{answered:,}\trequests\t")  # noqa: T201
    print(f"{name}, peak memory of the process\t{peak_mb:.0f}\tMB\t")  # noqa: T201


if __name__ == "__main__":
    if sys.argv[1:]:
        measure(sys.argv[1], int(sys.argv[2]))
    else:
        for who, seconds in (("not judged", SECONDS), ("judged each second", SECONDS), ("not judged", 10 * SECONDS)):
            subprocess.run([sys.executable, __file__, who, str(seconds)], check=True)
