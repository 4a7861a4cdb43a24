"""What is compiled and what stands in the files are the same rules: on the same worlds they leave the same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from forebay.core.snapshot import State
from forebay.sim import tables
from forebay.sim.datapath import layout
from forebay.sim.service import Wanted
from forebay.sim.world import World
from tests.sim import build
from tests.sim.build import SECOND, clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.sim.service import SimulatedService
    from forebay.sim.trace import Trace


def caches_prefixes(seed: int) -> SimulatedService:
    trace = build.drawn(seed, 60, 8, prompt=(20, 600), output=(1, 60), texts=3)
    world = build.service(trace, world=World(seed), serving=2, kv_tokens_prior=1600, batch_max=6)
    for second in range(1, 12):
        world.advance(second * SECOND)
    lane = world.path.lane.reshape(-1, layout.LANE_FIELDS)
    assert 0 < lane[:, layout.HIT_TOTAL].sum() < lane[:, layout.QUERY_TOTAL].sum()
    return world


def out_of_blocks(trace: Trace, seed: int) -> SimulatedService:
    world = build.service(trace, world=World(seed), serving=1, kv_tokens_prior=800, batch_max=8)
    for second in range(1, 40):
        world.advance(second * SECOND)
    assert build.preemptions(world) > 0
    return world


def preempts(seed: int) -> SimulatedService:
    return out_of_blocks(build.drawn(seed, 40, 5, prompt=(10, 200), output=(50, 200)), seed)


def preempts_where_prefixes_are_cached(seed: int) -> SimulatedService:
    return out_of_blocks(build.drawn(seed, 30, 5, prompt=(10, 200), output=(50, 200), texts=2), seed)


def holds_and_refuses(seed: int) -> SimulatedService:
    trace = build.drawn(seed, 120, 6, prompt=(10, 900), output=(1, 90))
    world = build.service(trace, world=World(seed, promote_ms=700), kv_tokens_prior=960, batch_max=2)
    world.path.clock[layout.QUEUE_MAX] = 12
    world.path.clock[layout.START_WAIT_US], world.path.clock[layout.BUSY_WAIT_US] = SECOND, 2 * SECOND
    world.start(2, 0, ready=True)
    for quarter in range(1, 60):
        world.advance(quarter * SECOND // 4)
        if quarter == 6:
            world.settle(Wanted(2, 0), quarter * SECOND // 4, 0)
    assert clock(world, layout.REFUSED) > 0
    assert clock(world, layout.ANSWERED) > 0
    return world


def loses_a_replica_and_gets_another(seed: int) -> SimulatedService:
    trace = build.drawn(seed, 60, 8, prompt=(20, 600), output=(1, 60), texts=3)
    world = build.service(trace, world=World(seed), serving=2, kv_tokens_prior=3200, batch_max=6)
    for second in range(1, 16):
        world.advance(second * SECOND)
        if second == 3:
            world.kill(0)
        if second == 4:
            world.start(1, 4 * SECOND, ready=True)
            world.settle(Wanted(2, 0), 4 * SECOND, 0)
        if second == 6:
            world.settle(Wanted(1, 0), 6 * SECOND, 0)
    assert clock(world, layout.FAILED) > 0
    assert world.count(State.SERVING) == 1
    return world


def has_more_requests_than_a_step_has_tokens(seed: int) -> SimulatedService:
    trace = build.drawn(seed, 20, 1, prompt=(1, 30), output=(10, 40))
    world = build.service(trace, world=World(seed), serving=1, batch_max=8, step_tokens_max=3)
    for second in range(1, 30):
        world.advance(second * SECOND)
    assert clock(world, layout.ANSWERED) == len(trace)
    return world


def opens_one_replica_after_the_other(seed: int) -> SimulatedService:
    trace = build.drawn(seed, 60, 3, prompt=(10, 300), output=(10, 90))
    world = build.service(trace, world=World(seed, promote_ms=900), lanes=3, batch_max=2)
    world.start(3, 0, ready=True)
    for quarter in range(1, 40):
        world.advance(quarter * SECOND // 4)
        serving = min(quarter, 3)
        world.settle(Wanted(serving, 3 - serving), quarter * SECOND // 4, 0)
    assert clock(world, layout.ANSWERED) > 0
    return world


WORLDS: list[Callable[[int], SimulatedService]] = [
    caches_prefixes,
    preempts,
    preempts_where_prefixes_are_cached,
    holds_and_refuses,
    loses_a_replica_and_gets_another,
    has_more_requests_than_a_step_has_tokens,
    opens_one_replica_after_the_other,
]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.__name__)
def test_compiled_rules_leave_the_same_bytes_as_the_rules_themselves(
    world: Callable[[int], SimulatedService], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = build.columns(world(seed))
    build.run_plain(monkeypatch)
    plain = build.columns(world(seed))
    assert [name for name in plain if plain[name].tobytes() != compiled[name].tobytes()] == []


def test_equal_seeds_make_equal_worlds_and_others_do_not() -> None:
    first, again, other = (build.columns(preempts(seed)) for seed in (3, 3, 4))
    assert all(first[name].tobytes() == again[name].tobytes() for name in first)
    # The same requests, another world: only the replicas are drawn anew.
    trace = build.drawn(3, 40, 5, prompt=(10, 200), output=(50, 200))
    same_trace = [build.service(trace, world=World(seed), serving=1) for seed in (3, 4)]
    for one in same_trace:
        one.advance(5 * SECOND)
    assert same_trace[0].path.times.tobytes() != same_trace[1].path.times.tobytes()
    assert same_trace[0].path.last.tobytes() != same_trace[1].path.last.tobytes()
    assert first["trace_us"].tobytes() != other["trace_us"].tobytes()


@pytest.mark.parametrize(
    "column",
    [np.zeros(20, np.int32), np.zeros((4, 10), np.int64)[:, ::2].ravel(order="K")[::2], [0] * 20],
    ids=["another type", "gaps between entries", "a list"],
)
def test_what_is_no_contiguous_array_of_int64_is_never_handed_to_compiled_rules(column: object) -> None:
    path = build.service(build.trace_of((0, 1, 1))).path
    with pytest.raises(TypeError, match="times must be a contiguous int64 array"):
        tables.Arrays(path._replace(times=column))
