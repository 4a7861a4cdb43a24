"""What must hold of a lower bound for every input; above all, that engines and integer fleets do not beat it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from itertools import combinations, product
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.goodness import Targets, judge
from forebay.engine_model.bank import BLOCK_TOKENS
from forebay.engine_model.engine import Engine, EngineSettings
from forebay.engine_model.kv_blocks import chain_hash
from forebay.engine_model.step_time import PS_PER_MS, PS_PER_S, StepTimes
from forebay.sim.bound import Bound, lower_bound, work_us
from forebay.sim.bound.demand import demand
from tests.sim.bound.build import CACHE, EASY, SEATS, TIMES, trace_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.core.units import I64
    from forebay.sim.bound.demand import F64
    from forebay.sim.trace import Trace

PS_PER_US = 1_000_000
NEARLY = 1 + 1e-6

requests = st.lists(
    st.tuples(st.integers(0, 3000), st.integers(1, 400), st.integers(1, 30)), min_size=1, max_size=12
).map(sorted)


def cost(
    asked: Sequence[tuple[int, int, int]], boot_us: int = 200_000, permille: int = 0, targets: Targets = EASY
) -> Bound:
    return lower_bound(
        trace_of(asked),
        TIMES,
        SEATS,
        CACHE,
        targets,
        boot_us=boot_us,
        droppable_permille=permille,
        bin_us=50_000,
    )


@given(requests, st.integers(0, 500), st.integers(0, 2_000_000))
def test_the_three_bounds_stand_in_their_order(asked: list[tuple[int, int, int]], permille: int, boot_us: int) -> None:
    bound = cost(asked, boot_us, permille)
    assert bound.fluid_gpu_seconds <= bound.edf_gpu_seconds * NEARLY
    assert bound.lp_gpu_seconds <= bound.edf_gpu_seconds * NEARLY


@given(requests, st.tuples(st.integers(0, 3000), st.integers(1, 400), st.integers(1, 30)))
def test_one_more_request_never_makes_a_fleet_cheaper(
    asked: list[tuple[int, int, int]], more: tuple[int, int, int]
) -> None:
    assert cost(asked).edf_gpu_seconds <= cost(sorted([*asked, more])).edf_gpu_seconds * 1.0001 + 1e-9


@given(requests, st.integers(0, 2_000_000), st.integers(0, 2_000_000), st.integers(0, 300))
def test_longer_starts_never_make_a_fleet_cheaper(
    asked: list[tuple[int, int, int]], boot_us: int, more_us: int, permille: int
) -> None:
    short, long = (cost(asked, boot, permille).lp_gpu_seconds for boot in (boot_us, boot_us + more_us))
    assert short <= long * NEARLY


@given(requests, st.integers(0, 300), st.integers(0, 300))
def test_more_drops_never_make_a_fleet_dearer(asked: list[tuple[int, int, int]], permille: int, more: int) -> None:
    few, many = (cost(asked, permille=dropped).lp_gpu_seconds for dropped in (permille, permille + more))
    assert many <= few * NEARLY


@given(requests, st.integers(2, 5))
def test_a_trace_in_several_copies_costs_several_times_as_much(asked: list[tuple[int, int, int]], copies: int) -> None:
    once, often = cost(asked), cost(sorted(asked * copies))
    assert often.edf_gpu_seconds == pytest.approx(copies * once.edf_gpu_seconds)


@given(requests)
def test_nothing_is_infinite_or_not_a_number(asked: list[tuple[int, int, int]]) -> None:
    for targets in (EASY, Targets(0, 0, 0, 0), Targets(2000, 10, 200, 10**6)):
        bound = cost(asked, permille=100, targets=targets)
        assert np.isfinite(bound.ready).all()
        assert bound.lp_gpu_seconds >= 0
        assert bound.necessarily_missed <= bound.requests


# --- fleets of whole replicas: every path of capacity over six bins is tried ---

PATH_BIN_US = 100_000
PATH_BINS = 6
MOST_REPLICAS = 2


def serves(path: Sequence[int], release_us: F64, deadline_us: F64, work: F64) -> bool:
    """Say whether each interval holds the work that must be done in it, which is enough for divisible work."""
    edges = np.arange(PATH_BINS + 1) * PATH_BIN_US
    capacity = np.concatenate([[0], np.cumsum(path)]) * PATH_BIN_US
    for begin, end in product(np.unique(release_us), np.unique(deadline_us)):
        inside = work[(release_us >= begin) & (deadline_us <= end)].sum()
        if inside > np.interp(end, edges, capacity) - np.interp(begin, edges, capacity) + 1e-6:
            return False
    return True


def cheapest_path(trace: Trace, boot_us: int, drops: int) -> float:
    """Try all paths and all choices of whom to drop; infinite when none serves the others."""
    asked = demand(trace, TIMES, SEATS, CACHE, EASY)
    best = np.inf
    for path in product(range(MOST_REPLICAS + 1), repeat=PATH_BINS):
        starts = np.maximum(np.diff(path), 0).sum()
        price = (sum(path) * PATH_BIN_US + starts * boot_us) / 1e6
        if price >= best:
            continue
        for dropped in combinations(range(len(trace)), drops):
            kept = np.delete(np.arange(len(trace)), dropped)
            if serves(path, asked.release_us[kept], asked.deadline_us[kept], asked.work_us[kept]):
                best = price
                break
    return best


@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 90), st.integers(1, 2)), min_size=1, max_size=3).map(sorted),
    st.integers(0, 500_000),
    st.booleans(),
)
def test_no_path_of_whole_replicas_is_cheaper(asked: list[tuple[int, int, int]], boot_us: int, drop_one: bool) -> None:
    trace = trace_of(asked)
    drops = int(drop_one)
    bound = lower_bound(
        trace,
        TIMES,
        SEATS,
        CACHE,
        dataclasses.replace(EASY, ttft_ms=120),
        boot_us=boot_us,
        droppable_permille=-(-1000 * drops // len(trace)),
        bin_us=PATH_BIN_US // 4,
    )
    assert bound.lp_gpu_seconds <= cheapest_path(trace, boot_us, drops) * NEARLY


# --- engines: the bound's claims against the scheduler and the step times themselves ---


@dataclass(frozen=True)
class World:
    trace: Trace
    times: StepTimes
    seats: int
    kv_blocks: int
    step_tokens: int
    caching: bool
    targets: Targets
    engine_of: tuple[int, ...]  # of each request


@st.composite
def worlds(draw: st.DrawFn) -> World:
    count = draw(st.integers(1, 8))
    prompts = draw(st.lists(st.integers(1, 80), min_size=count, max_size=count))
    outputs = draw(st.lists(st.integers(1, 20), min_size=count, max_size=count))
    arrivals = sorted(draw(st.lists(st.integers(0, draw(st.sampled_from((5, 300)))), min_size=count, max_size=count)))
    caching = draw(st.booleans())
    prefixes = [draw(st.lists(st.integers(0, 1), max_size=prompt // BLOCK_TOKENS)) for prompt in prompts]
    c1, c2 = draw(st.integers(0, 4000)), draw(st.integers(0, 50))
    # A prompt token costs more than a decode at the longest context: else a preempted request could be computed again
    # for less than a decode, which no engine offers (docs/concepts/clairvoyant-bound.md).
    c0 = draw(st.integers(1000, 20_000))
    times = StepTimes(
        c0_ps=c0 * PS_PER_US,
        c1_ps=c1 * PS_PER_US,
        c2_ps=c2 * PS_PER_US,
        p1_ps=(c1 + 100 * c2 + draw(st.integers(0, 2000))) * PS_PER_US,
        p2_fs=draw(st.integers(0, 10**9)),
    )
    longest = max(prompt + output for prompt, output in zip(prompts, outputs, strict=True))
    return World(
        trace_of(list(zip(arrivals, prompts, outputs, strict=True)), prefixes if caching else None),
        times,
        seats=draw(st.integers(1, 8)),
        kv_blocks=-(-longest // BLOCK_TOKENS) + draw(st.integers(0, 8)),
        step_tokens=draw(st.integers(8, 200)),
        caching=caching,
        targets=Targets(draw(st.integers(20, 1000)), 0, c0 // 1000 + draw(st.integers(0, 40)), 10**6),
        engine_of=tuple(draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))),
    )


def block_hashes(trace: Trace, index: int) -> list[int]:
    """Name the full blocks of a prompt; those after its ids are nobody else's."""
    hashes: list[int] = []
    if trace.prefix_ids is not None and trace.prefix_offsets is not None:
        for name in trace.prefix_ids[trace.prefix_offsets[index] : trace.prefix_offsets[index + 1]]:
            hashes.append(chain_hash(hashes[-1] if hashes else 0, int(name).to_bytes(8, "little")))
    return hashes


def run_engine(world: World, mine: list[int], token_ms: list[list[int]]) -> int:
    """Run one engine through the requests `mine`, note when tokens came, and return its busy picoseconds."""
    trace = world.trace
    engine = Engine(
        EngineSettings(
            world.times,
            kv_blocks_total=world.kv_blocks + 1,
            max_model_len=world.kv_blocks * BLOCK_TOKENS,
            max_num_seqs=world.seats,
            max_num_batched_tokens=world.step_tokens,
            prefix_caching=world.caching,
        )
    )
    now_ps = busy_ps = 0
    waiting = list(mine)
    while True:
        while waiting and trace.arrival_us[waiting[0]] * PS_PER_US <= now_ps:
            index = waiting.pop(0)
            prompt, output = int(trace.prompt_tokens[index]), int(trace.output_tokens[index])
            engine.submit(str(index), prompt, output, block_hashes(trace, index), now_ps)
        step_ps = engine.begin_step(now_ps)
        if step_ps is None:
            if not waiting:
                return busy_ps
            now_ps = int(trace.arrival_us[waiting[0]]) * PS_PER_US
            continue
        now_ps += step_ps
        busy_ps += step_ps
        for request in engine.end_step(now_ps).emitted:
            index = int(request.request_id)
            token_ms[index].append((now_ps - int(trace.arrival_us[index]) * PS_PER_US) // PS_PER_MS)


@given(worlds())
def test_no_engines_serve_good_requests_in_less_time_than_the_bound(world: World) -> None:
    trace, count = world.trace, len(world.trace)
    token_ms: list[list[int]] = [[] for _ in range(count)]
    busy_ps = sum(
        run_engine(world, [index for index in range(count) if world.engine_of[index] == engine], token_ms)
        for engine in range(3)
    )
    good: I64 = np.array(
        [judge(world.targets, int(trace.prompt_tokens[index]), token_ms[index]).good for index in range(count)]
    )
    kv_tokens = world.kv_blocks * BLOCK_TOKENS
    work = work_us(trace, world.times, world.seats, kv_tokens, world.targets)
    assert (work[good] > 0).all()
    assert work[good].sum() <= busy_ps / PS_PER_US
    bound = lower_bound(
        trace,
        world.times,
        world.seats,
        kv_tokens,
        world.targets,
        boot_us=0,
        droppable_permille=-(-1000 * int((~good).sum()) // count),
        bin_us=20_000,
    )
    assert bound.lp_gpu_seconds <= busy_ps / PS_PER_S * NEARLY
