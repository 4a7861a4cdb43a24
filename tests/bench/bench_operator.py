"""A tick but for its judgement, over a thousand services with four replicas each, in CPU time; a day of the journal."""

# ruff: noqa: E402, I001, T201 - a program that prints its rows and must find the tests beside it before it imports them

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from forebay.actuate.diff import plan
from forebay.api.kinds import INFERENCE_SERVICE
from forebay.control.judge import Judge, Sources, room, wanted
from forebay.control.objects import Objects
from forebay.control.views import Findings, counts_of, gist, problems_of
from forebay.observe.cluster import Change
from forebay.observe.gather import gather, replicas, signal_row
from forebay.observe.scrape import Reading
from forebay.observe.world import World
from forebay.report.journal import Journal
from forebay.resolve.defaults import ReplicaDefaults
from forebay.resolve.fleet import Resolver
from forebay.wire.signals import ITL_BOUNDS_MS, TTFT_BOUNDS_MS, ReplicaSignals

from tests.observe.test_gather import WALL, node, pod, service

REPLICAS = 4
DICE = np.random.default_rng(1)


def reading(uid: str, second: int, busy: int) -> Reading:
    """A replica under load: every counter moves, by amounts that differ from second to second."""
    made = second * busy
    signals = ReplicaSignals(
        pod_uid=uid, phase="ready", model="m", sample_age_ms=int(DICE.integers(0, 1000)), start_ms=90_000,
        requests_running=int(DICE.integers(0, 9)), requests_waiting=int(DICE.integers(0, 3)), kv_blocks_total=7000,
        kv_block_tokens=16, kv_used_permille=int(DICE.integers(0, 1000)), prompt_tokens_total=900 * made,
        generation_tokens_total=250 * made + int(DICE.integers(0, 250)), prefix_query_tokens_total=900 * made,
        prefix_hit_tokens_total=90 * made, preemptions_total=0, requests_finished_total=made, ttft_sum_ms=130 * made,
        itl_sum_ms=6000 * made + int(DICE.integers(0, 500)), queue_time_sum_ms=10 * made,
        ttft_buckets=tuple(made * i // 22 for i in range(len(TTFT_BOUNDS_MS) + 1)),
        itl_buckets=tuple(250 * made * i // 19 for i in range(len(ITL_BOUNDS_MS) + 1)),
    )  # fmt: skip
    return Reading(signals, signal_row(signals), second * 1000 - 300)


def scene(services: int) -> tuple[Judge, Sources, dict[str, Reading]]:
    """A fleet in which nothing is to be done but to look."""
    objects, world, readings = Objects(lambda: None), World("forebay"), dict[str, Reading]()
    raws = [service(f"s{i:04}") for i in range(services)]
    for raw in raws:
        raw["metadata"]["resourceVersion"] = "1"
    objects.replace(INFERENCE_SERVICE.plural, raws, "1")
    for i in range(services * REPLICAS // 8 + 1):
        world.on_node(Change.CHANGED, world.prune_node(node(f"n{i:04}")))
    for i in range(services * REPLICAS):
        raw = pod(f"u{i:05}", f"s{i // REPLICAS:04}", node=f"n{i // 8:04}")
        world.on_pod(Change.CHANGED, world.prune_pod(raw))
    sources = Sources(objects, world, readings, {}, {}, {}, lambda: True)
    judge = Judge(sources, Resolver(ReplicaDefaults("vllm:1", "emulated:1", "system:serviceaccount:f:f")))
    revisions = {s.key: s.plan.revision for s in judge.fleet().services if s.plan is not None}
    for key, pods in world.replicas.items():
        for uid in pods:
            pods[uid] = replace(pods[uid], revision=revisions[key])
    return judge, sources, readings


def tell(name: str, times_ms: list[float], aim: str) -> None:
    """Print p50 and p99."""
    print(f"{name}, p50\t{np.percentile(times_ms, 50):.1f}\tms\t")
    print(f"{name}, p99\t{np.percentile(times_ms, 99):.1f}\tms\t{aim}")


def shells(services: int, ticks: int) -> None:
    """Measure gather, then diff and the comparison of what would be told."""
    judge, sources, readings = scene(services)
    for uid in [uid for pods in sources.world.replicas.values() for uid in pods]:
        readings[uid] = reading(uid, 10, 2)
    gathers, acts, tells = [], [], []
    findings = Findings({}, readings, frozenset(), {})
    for tick in range(ticks):
        now = 20_000 + 1000 * tick
        begun = time.thread_time_ns()
        fleet = judge.fleet()
        seen = replicas(sources.world, readings, nodes_known=True, wall_ms=WALL)
        gather(fleet, sources.world, seen, readings, {}, nodes_known=True, now_ms=now, wall_ms=WALL)
        gathers.append((time.thread_time_ns() - begun) / 1e6)
        judged = judge.look(now, WALL)
        begun = time.thread_time_ns()
        plan(wanted(judged), judged.pods, room(judged, {}), WALL)
        acts.append((time.thread_time_ns() - begun) / 1e6)
        begun = time.thread_time_ns()
        for row, of in enumerate(fleet.services):
            here = judged.pods[of.key]
            problems = problems_of(of, here, findings, judged.foreign, ())
            gist(judged, row, counts_of(of, here), problems, {})
        tells.append((time.thread_time_ns() - begun) / 1e6)
    size = f"{services} services x {REPLICAS}"
    tell(f"gather {size}", gathers, "")
    tell(f"diff {size}", acts, "")
    tell(f"what is worth telling {size}", tells, "")


def a_day_of_journal(services: int, ticks: int) -> None:
    """Write busy ticks, and reckon the bytes of a day."""
    judge, _, readings = scene(services)
    with tempfile.TemporaryDirectory() as folder:
        journal, times_ms = Journal(Path(folder), 1 << 30), []
        for tick in range(1, ticks + 1):
            for i in range(services * REPLICAS):
                readings[f"u{i:05}"] = reading(f"u{i:05}", tick, 1 + i % 4)
            judged = judge.look(tick * 1000, WALL + tick * 1000)
            begun = time.thread_time_ns()
            journal.record(judged.fleet.spec, judged.before, judged.snapshot, judged.decisions)
            times_ms.append((time.thread_time_ns() - begun) / 1e6)
            if tick == 1:
                first = journal.bytes_total
        a_tick = (journal.bytes_total - first) / (ticks - 1)
    day = (a_tick * 86_400 + first * 144) / 1e9
    print(f"journal of {services * REPLICAS} busy replicas, a day\t{day:.2f}\tGB\t<= 1")
    tell(f"journal record of {services * REPLICAS} replicas", times_ms[1:], "")


shells(1000, 30)
a_day_of_journal(150, 60)
