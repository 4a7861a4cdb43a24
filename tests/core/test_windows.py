"""What counts as a change, and into which second it falls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forebay.core import windows
from forebay.core.memory import RING_SECONDS, Memory, initial_memory
from forebay.core.snapshot import State
from forebay.core.units import UNKNOWN
from tests.core import build


def changes(before: dict[str, Any] | None, now: dict[str, Any], elapsed_ms: int = 1000) -> windows.ReplicaChange:
    """Read one replica twice (or once, if `before` is None) and compare."""
    baseline = initial_memory(build.fleet({}), 0).recent.replicas
    if before is not None:
        _, baseline = windows.compare_replicas(build.snapshot(10_000, [before]), baseline)
    change, _ = windows.compare_replicas(build.snapshot(10_000 + elapsed_ms, [now]), baseline)
    return change


BUSY = {"requests_running": 4, "requests_waiting": 2, "generation_tokens_total": 500, "requests_finished_total": 9}


@pytest.mark.parametrize(
    ("before", "now", "tokens", "entered", "elapsed_ms"),
    [
        pytest.param(
            BUSY,
            BUSY | {"generation_tokens_total": 700, "requests_finished_total": 11, "requests_running": 5},
            200,
            3,  # two ended and one more is inside
            1000,
            id="a counter that went up is what happened",
        ),
        pytest.param(None, BUSY, 0, 0, 0, id="a first reading is a baseline"),
        pytest.param(BUSY, BUSY | {"uid": "r9999"}, 0, 0, 0, id="another pod is another replica"),
        pytest.param(
            BUSY, BUSY | {"generation_tokens_total": 30}, 0, 0, 0, id="a counter that went back is a new baseline"
        ),
        pytest.param(BUSY, BUSY | build.UNREAD, 0, 0, 0, id="a reading that is absent is no change"),
        pytest.param(
            BUSY,
            BUSY | {"generation_tokens_total": UNKNOWN, "requests_finished_total": 12},
            0,
            3,
            1000,
            id="one absent counter says nothing of the others",
        ),
        pytest.param(
            BUSY,
            BUSY | {"requests_finished_total": UNKNOWN, "requests_running": 7},
            0,
            0,
            1000,
            id="without the count of finished requests nobody knows who came",
        ),
        pytest.param(
            BUSY, BUSY | {"requests_waiting": 0}, 0, 0, 1000, id="a client that gave up is not a negative arrival"
        ),
        pytest.param(BUSY, BUSY | {"generation_tokens_total": 2**61}, 10**9, 0, 1000, id="an absurd change is capped"),
    ],
)
def test_a_change_of_a_replica(
    before: dict[str, Any] | None, now: dict[str, Any], tokens: int, entered: int, elapsed_ms: int
) -> None:
    change = changes(before, now)
    assert change.generation_tokens.tolist() == [tokens]
    assert change.requests_entered.tolist() == [entered]
    assert change.elapsed_ms.tolist() == [elapsed_ms]


def test_a_gap_is_bridged_by_the_last_reading_before_it() -> None:
    _, first = windows.compare_replicas(build.snapshot(0, [BUSY]), initial_memory(build.fleet({}), 0).recent.replicas)
    _, gap = windows.compare_replicas(build.snapshot(1000, [BUSY | build.UNREAD]), first)
    later = BUSY | {"generation_tokens_total": 900}
    change, _ = windows.compare_replicas(build.snapshot(5000, [later]), gap)
    assert change.generation_tokens.tolist() == [400]
    assert change.elapsed_ms.tolist() == [5000]


@pytest.mark.parametrize(
    ("before", "now", "started", "promoted"),
    [
        pytest.param({"state": State.STARTING, "ready": False}, {"state": State.WARM}, True, False, id="ready"),
        pytest.param({"state": State.WARM}, {"state": State.SERVING}, False, True, id="promoted"),
        pytest.param({"state": State.SERVING}, {"state": State.WARM}, False, False, id="demoted"),
        pytest.param(None, {"state": State.SERVING}, False, False, id="found serving"),
    ],
)
def test_what_became_of_a_replica(
    before: dict[str, Any] | None, now: dict[str, Any], started: bool, promoted: bool
) -> None:
    change = changes(before, now)
    assert (change.started.tolist(), change.promoted.tolist()) == ([started], [promoted])


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(("a", "b"), ("a", "b"), [0, 1], id="the same ones"),
        pytest.param(("a", "c"), ("a", "b", "c"), [0, -1, 1], id="one came"),
        pytest.param(("a", "b", "c"), ("b",), [1], id="two went"),
        pytest.param((), ("a",), [-1], id="from nothing"),
        pytest.param(("a",), (), [], id="to nothing"),
        pytest.param(("a",), ("z",), [-1], id="all others"),
    ],
)
def test_matching(old: tuple[str, ...], new: tuple[str, ...], expected: list[int]) -> None:
    assert windows.match(old, new).tolist() == expected


def gateway(uid: str, service: int, arrivals: int, **more: Any) -> dict[str, Any]:
    return {"uid": uid, "service": service, "arrivals_total": arrivals, "arrival_prompt_tokens_total": 0} | more


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        pytest.param([gateway("g0", 0, 5)], [gateway("g0", 0, 8)], [3], id="arrivals are what the counter rose by"),
        pytest.param([gateway("g0", 0, 5)], [gateway("g1", 0, 8)], [0], id="a new gateway is a new baseline"),
        pytest.param([gateway("g0", 0, 5)], [gateway("g0", 0, 2)], [0], id="so is one that was restarted"),
        pytest.param(
            [gateway("g0", 0, 5), gateway("g1", 1, 5)],
            [gateway("g0", 0, 6), gateway("g0", 1, 9), gateway("g1", 1, 7)],
            [1, 0, 2],
            id="a pair is matched by gateway and service",
        ),
        pytest.param([], [gateway("g0", 0, 9)], [0], id="from nothing"),
        pytest.param([gateway("g0", 0, 5)], [], [], id="to nothing"),
        pytest.param(
            [gateway("g0", 0, 5)], [gateway("g0", 0, UNKNOWN, age_ms=UNKNOWN)], [0], id="a silent gateway says nothing"
        ),
    ],
)
def test_a_change_of_a_gateway(before: list[Any], now: list[Any], expected: list[int]) -> None:
    _, baseline = windows.compare_gateways(
        build.snapshot(0, [], before), initial_memory(build.fleet({}, {}), 0).recent.gateways
    )
    change, _ = windows.compare_gateways(build.snapshot(1000, [], now), baseline)
    assert change.arrivals.tolist() == expected


def ring_of(memory: Memory, arrivals: list[tuple[int, int, int]]) -> tuple[Any, Any, int]:
    """Record (time, arrivals, milliseconds they took) and return ring, last tick and last time."""
    recent, tick, now_ms = memory.recent, None, 0
    for now_ms, count, elapsed_ms in arrivals:
        look = build.snapshot(now_ms, [])
        change = windows.GatewayChange(np.array([elapsed_ms]), np.array([count]), np.array([0]))
        nothing, _ = windows.compare_replicas(look, memory.recent.replicas)
        ring, tick = windows.record(recent, look, nothing, change)
        recent = build.replace(recent, ring=ring, now_ms=now_ms)
    return recent.ring, tick, now_ms


@pytest.mark.parametrize(
    ("arrivals", "window_s", "expected"),
    [
        pytest.param([(1000, 4, 1000)], 60, 4, id="one second is one row"),
        pytest.param([(1000, 4, 1000), (2000, 5, 1000)], 1, 5, id="the newest row alone"),
        pytest.param([(1000, 4, 1000), (60_000, 5, 1000)], 60, 9, id="a minute reaches back 59 rows"),
        pytest.param([(1000, 4, 1000), (61_000, 5, 1000)], 60, 5, id="and no further"),
        pytest.param([(1000, 4, 1000), (500_000, 5, 1000)], 60, 5, id="a long pause empties the ring"),
        pytest.param([(1200, 4, 200), (1400, 5, 200)], 1, 9, id="early ticks add to the same second"),
        pytest.param([(10_000, 10, 4000)], 2, 6, id="ten in four seconds: three in each of the newest two"),
        pytest.param([(10_000, 10, 4000)], 4, 10, id="and two in each of the others"),
        pytest.param([(400_000, 120, 120_000)], 60, 60, id="one a second for two minutes is sixty in the last one"),
        pytest.param([(400_000, 3, 120_000)], 1, 1, id="a few in a long gap do not all fall into its last second"),
    ],
)
def test_the_ring_of_seconds(arrivals: list[tuple[int, int, int]], window_s: int, expected: int) -> None:
    ring, _, now_ms = ring_of(initial_memory(build.fleet({}), 0), arrivals)
    assert windows.window_sum(ring.arrivals, now_ms, window_s).tolist() == [expected]


def test_a_tick_tells_what_it_added_to_the_present_second() -> None:
    _, tick, _ = ring_of(initial_memory(build.fleet({}), 0), [(1200, 4, 200), (1400, 5, 200)])
    assert tick.arrivals.tolist() == [5]


def test_a_sum_since_a_second() -> None:
    ring, _, now_ms = ring_of(initial_memory(build.fleet({}), 0), [(1000, 1, 1), (2000, 2, 1), (3000, 4, 1)])
    for since_s, expected in ((3, 4), (2, 6), (1, 7), (-900, 7), (99, 4)):
        assert windows.sum_since(ring.arrivals, now_ms, np.array([since_s])).tolist() == [expected]


def test_the_ring_has_room_for_the_stable_window() -> None:
    assert windows.STABLE_SECONDS < RING_SECONDS


@pytest.mark.parametrize(("age_ms", "fresh"), [(0, True), (3000, True), (3001, False), (UNKNOWN, False)])
def test_fresh_is_three_intervals(age_ms: int, fresh: bool) -> None:
    assert windows.is_fresh(np.array([age_ms])).tolist() == [fresh]
