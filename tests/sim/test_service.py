"""One simulated service: nobody is lost, replicas come and go as asked, and whoever asks too much is told so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.snapshot import State
from forebay.engine_model.bank import BLOCKS_CACHED, BLOCKS_FREE
from forebay.sim.datapath import layout
from forebay.sim.score import score_of
from forebay.sim.service import SimulatedService, Wanted
from forebay.sim.trace import Trace
from forebay.sim.world import World
from tests.sim import build
from tests.sim.build import EXACT, SECOND, clock, service, trace_of

ACTIONS = st.one_of(
    st.tuples(st.just("settle"), st.integers(0, 4), st.integers(0, 2)),
    st.tuples(st.just("kill"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("wait"), st.just(0), st.just(0)),
)


@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 80),
    texts=st.integers(0, 2),
    queue_max=st.integers(0, 20),
    actions=st.lists(ACTIONS, min_size=4, max_size=30),
)
def test_every_arrival_is_somewhere_at_every_look(
    seed: int, count: int, texts: int, queue_max: int, actions: list[tuple[str, int, int]]
) -> None:
    trace = build.drawn(seed, count, 5, prompt=(1, 1000), output=(1, 100), texts=texts)
    one = service(trace, world=World(seed, cold_s=2, cold_sd_s=0), lanes=4, kv_tokens_prior=900, batch_max=3)
    one.path.clock[layout.QUEUE_MAX] = queue_max
    one.path.clock[layout.BUSY_WAIT_US] = SECOND
    for quarter, (action, first, second) in enumerate(actions, start=1):
        now_us = quarter * SECOND // 4
        one.advance(now_us)
        if action == "settle":
            one.settle(Wanted(first, second), now_us, 4 * one.gpus_each - one.gpus)
        elif action == "kill" and one.state[first] >= 0:
            one.kill(first)
        assert build.lost(one) == 0
        assert one.gpus <= 4 * one.gpus_each
    one.start(1, now_us, ready=True)
    one.settle(Wanted(4, 0), now_us, 0)
    one.advance(now_us + 120 * SECOND)
    assert build.lost(one) == 0
    assert build.in_flight(one) == 0
    assert clock(one, layout.ARRIVALS) == len(trace)
    if one.count(State.SERVING):
        assert clock(one, layout.HELD) == 0
    counts = np.asarray(one.path.bank.counts).reshape(4, -1)
    assert (counts[:, BLOCKS_FREE] == 900 // 16).all(), "no block is lost either"


def test_a_single_request_is_answered_in_the_time_that_its_steps_take() -> None:
    # 4 prompt tokens at 0.1 ms in a step of 20 ms, then two decodes of 20.5 ms.
    one = service(trace_of((0, 4, 3)), serving=1)
    one.advance(SECOND)
    assert one.path.first.max() == 20_400
    assert one.path.last.max() == 20_400 + 2 * 20_500
    assert score_of(one).ttft_ms == (28, 28, 28)  # 8 ms in the HTTP server
    assert score_of(one).itl_ms == (20.5, 20.5, 20.5)
    assert (score_of(one).goodput, score_of(one).generation_tokens) == (1.0, 3)


REFUSED = {
    "a prompt of ten million tokens": (10_000_000, 1),
    "an answer of ten million tokens": (1, 10_000_000),
    "one token more than the KV cache has blocks for": (900, 60),
}


@pytest.mark.parametrize(("prompt", "output"), REFUSED.values(), ids=REFUSED.keys())
def test_what_no_engine_can_hold_is_refused_and_counted(prompt: int, output: int) -> None:
    one = service(trace_of((0, prompt, output), (5, 10, 2)), serving=1, kv_tokens_prior=959)
    one.advance(60 * SECOND)
    score = score_of(one)
    assert (score.requests, score.refused, score.answered, score.unfinished) == (2, 1, 1, 0)
    assert score.goodput == 0.5


def test_what_just_fits_the_kv_cache_is_answered() -> None:
    one = service(trace_of((0, 900, 44)), serving=1, kv_tokens_prior=959)  # 944 tokens, 59 blocks of 16
    one.advance(60 * SECOND)
    assert score_of(one).answered == 1


def test_targets_that_nobody_can_meet_are_met_by_nobody() -> None:
    impossible = build.Targets(1, 0, 1, 1)
    one = service(trace_of((0, 4, 3), (9, 4, 1)), serving=1, classes=(impossible,))
    one.advance(SECOND)
    score = score_of(one)
    assert (score.answered, score.goodput, score.ttft_attained, score.itl_attained) == (2, 0.0, 0.0, 0.5)


def test_without_a_replica_all_wait_and_then_are_refused() -> None:
    one = service(trace_of((0, 4, 3), (9, 4, 1)))
    one.advance(299 * SECOND)
    assert clock(one, layout.HELD) == 2
    one.advance(302 * SECOND)
    score = score_of(one)
    assert (score.refused, score.ttft_ms, score.goodput) == (2, (0, 0, 0), 0.0)


def test_held_requests_go_the_moment_that_a_promoted_replica_opens() -> None:
    one = service(trace_of((0, 4, 3)), lanes=1)
    one.start(1, 0, ready=True)
    one.advance(SECOND // 2)
    one.settle(Wanted(1, 0), SECOND // 2, 0)
    one.advance(SECOND)
    assert one.path.sent.max() == SECOND // 2 + 200_000


def test_a_replica_is_cold_then_warm_then_serves_then_drains_and_is_gone() -> None:
    world = World(0, model_error=0, noise_milli=0, stragglers=False, cold_s=30, cold_sd_s=0)
    one = service(trace_of((0, 4, 1), (50_000, 4, 100)), world=world, lanes=2)
    assert one.settle(Wanted(1, 0), 0, room=1) == 1
    states = []
    for second in range(1, 56):
        one.advance(second * SECOND)
        states.append(State(one.state[0]) if one.state[0] >= 0 else None)
        one.settle(Wanted(0 if second >= 50 else 1, 0), second * SECOND, 0)
    assert states[:29] == [State.STARTING] * 29
    assert states[29] is State.WARM
    assert states[30:50] == [State.SERVING] * 20
    assert states[50:52] == [State.DRAINING] * 2  # 100 tokens at 20.5 ms
    assert states[53:] == [None] * 2
    assert score_of(one).answered == 2
    assert one.actions == 3  # made, promoted, withdrawn


SETTLED = {
    "the youngest goes first": ((3, 0), {}, [0, 1, 2]),
    "victims go in the order in which they are named": ((2, 0), {"victims": (0, 2)}, [1, 3]),
    "who is not named stays": ((0, 0), {"victims": (2,)}, [0, 1, 3]),
    "where nothing may be removed all stay": ((0, 0), {"hold": True}, [0, 1, 2, 3]),
}


@pytest.mark.parametrize(("wanted", "how", "serving"), SETTLED.values(), ids=SETTLED.keys())
def test_who_goes(wanted: tuple[int, int], how: dict[str, Any], serving: list[int]) -> None:
    one = service(trace_of((0, 4, 1)), lanes=4, serving=4)
    one.settle(Wanted(*wanted, **how), 0, 0)
    stays = [number for number in range(4) if one.state[number] in {State.SERVING, State.WARM}]
    assert stays == serving


def test_a_warm_one_goes_before_any_that_serves() -> None:
    one = service(trace_of((0, 4, 1)), lanes=4, serving=4)
    one.settle(Wanted(3, 1, victims=(0,)), 0, 0)
    assert [State(state) for state in one.state] == [State.WARM, *[State.SERVING] * 3]
    one.settle(Wanted(3, 0), SECOND, 0)
    assert one.state[0] == State.DRAINING


def test_a_warm_replica_is_kept_warm_and_then_promoted_without_a_new_one() -> None:
    one = service(trace_of((0, 4, 1)), lanes=3, serving=2)
    one.settle(Wanted(1, 1), 0, room=9)
    assert (one.count(State.SERVING), one.count(State.WARM)) == (1, 1)
    one.settle(Wanted(2, 0), SECOND, room=9)
    assert (one.count(State.SERVING), one.replicas_made) == (2, 2)


def test_no_replica_is_made_without_gpus_or_lanes() -> None:
    one = service(trace_of((0, 4, 1)), lanes=3, gpus_per_replica=4)
    assert one.settle(Wanted(9, 0), 0, room=7) == 4
    assert one.settle(Wanted(9, 0), 0, room=99) == 8
    assert one.settle(Wanted(9, 0), 0, room=99) == 0
    assert one.gpus == 12


def test_a_new_replica_knows_nothing_of_the_one_whose_place_it_takes() -> None:
    trace = trace_of((0, 64, 2), (2000, 64, 2), prefixes=[[1, 2], [1, 2]], block=32)
    one = service(trace, lanes=1, serving=1)
    one.advance(SECOND)
    before = one.scrape()
    assert build.counts(one, BLOCKS_CACHED) == 4
    one.kill(0)
    one.start(1, SECOND, ready=True)
    one.settle(Wanted(1, 0), SECOND, 0)
    assert build.counts(one, BLOCKS_CACHED) == 0
    one.advance(3 * SECOND)
    lane = one.scrape().lane[0]
    assert (lane[layout.QUERY_TOTAL], lane[layout.HIT_TOTAL]) == (64, 0)
    # Counters of the service go on where the dead one's ended.
    assert before.lane[0][layout.GENERATION_TOTAL] == 2
    assert one.total(layout.GENERATION_TOTAL) == 4
    assert one.last_scrape.past[layout.GENERATION_TOTAL] == 2


def test_gpu_time_counts_every_state_and_ends_with_the_trace() -> None:
    world = World(0, model_error=0, noise_milli=0, stragglers=False, cold_s=30, cold_sd_s=0)
    one = service(trace_of((0, 4, 1), (100_000, 4, 1)), world=world, lanes=2, gpus_per_replica=4, serving=1)
    one.settle(Wanted(1, 1), 0, room=4)
    for second in range(1, 151):
        one.advance(second * SECOND)
    # One serves for 100 s, one starts for 30 s and is warm for 70 s; what comes after the last arrival is nobody's.
    assert {state.name: us for state, us in one.gpu_us.items()} == {
        "STARTING": 4 * 30 * SECOND, "WARM": 4 * 70 * SECOND, "SERVING": 4 * 100 * SECOND, "DRAINING": 0,
    }  # fmt: skip


def test_memory_is_bounded_by_what_lives_and_not_by_the_trace() -> None:
    def own_bytes(requests: int) -> int:
        trace = Trace("long", np.arange(requests) * 1000, np.full(requests, 9), np.full(requests, 2))
        path = SimulatedService(trace, build.build.fleet({}), 0, classes=(build.TARGETS,), world=EXACT, lanes=2).path
        columns = {name: getattr(path, name) for name in path._fields if name != "bank"}
        return sum(len(column) for name, column in columns.items() if not name.startswith(("trace_", "second_")))

    assert own_bytes(100_000) == own_bytes(10)


def test_replicas_that_were_promoted_at_different_times_open_one_after_the_other() -> None:
    one = service(trace_of(*[(0, 4, 200)] * 6), lanes=3, batch_max=1)  # one runs, and one may wait in the engine
    one.start(3, 0, ready=True)
    held = []
    for tenth in range(1, 9):
        one.advance(tenth * SECOND // 10)
        if tenth <= 3:
            one.settle(Wanted(tenth, 3 - tenth), tenth * SECOND // 10, 0)  # opens 200 ms later
        held.append(clock(one, layout.HELD))
    assert held == [6, 6, 4, 2, 0, 0, 0, 0]
