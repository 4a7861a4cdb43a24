"""The table of what is known and what may be done with it."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.core import sight, windows
from forebay.core.reasons import Reason
from forebay.core.snapshot import State
from forebay.core.units import UNKNOWN
from tests.core import build


def look(replicas: list[dict[str, Any]], gateways: list[dict[str, Any]] | None = None, **more: Any) -> sight.Sight:
    """Look once, with windows that are full."""
    memory = build.settled(build.fleet({}), serving=2, now_ms=100_000)
    shot = build.snapshot(100_000, replicas, gateways, **more)
    _, baseline = windows.compare_replicas(shot, memory.recent.replicas)
    return sight.look(memory, shot, baseline)


FRESH: dict[str, Any] = {"requests_running": 3, "requests_waiting": 1}
STALE = FRESH | {"age_ms": 3001}
UNREAD = FRESH | build.UNREAD


@pytest.mark.parametrize(
    ("replicas", "gateways", "more", "may_rise", "may_fall", "reason"),
    [
        pytest.param([FRESH, FRESH], None, {}, True, True, Reason.METRICS_FRESH, id="everything fresh"),
        pytest.param(
            [FRESH, STALE],
            None,
            {},
            True,
            False,
            Reason.METRICS_PARTLY_STALE,
            id="three seconds are fresh, more is not",
        ),
        pytest.param([FRESH, UNREAD], None, {}, True, False, Reason.METRICS_PARTLY_STALE, id="one was never read"),
        pytest.param(
            [UNREAD, UNREAD], None, {}, True, False, Reason.GATEWAY_DEMAND_ONLY, id="none fresh, but the gateway is"
        ),
        pytest.param([UNREAD], [{"age_ms": 9000}], {}, False, False, Reason.METRICS_STALE, id="nothing fresh: hold"),
        pytest.param(
            [FRESH], [{"age_ms": UNKNOWN}], {}, True, False, Reason.GATEWAY_STALE, id="the gateway does not answer"
        ),
        pytest.param(
            [FRESH], [{}], {"gateways_expected": 2}, True, False, Reason.GATEWAY_STALE, id="one of two gateways answers"
        ),
        pytest.param(
            [FRESH], [], {"gateways_expected": 0}, True, True, Reason.METRICS_FRESH, id="there is no gateway to ask"
        ),
        pytest.param([], None, {}, True, True, Reason.METRICS_FRESH, id="nothing serves, the gateway says how it is"),
        pytest.param(
            [], [], {"gateways_expected": 0}, False, False, Reason.NOTHING_SERVES, id="nothing serves, nobody to ask"
        ),
        pytest.param(
            [FRESH, FRESH | {"ready": False}],
            None,
            {},
            True,
            False,
            Reason.REPLICAS_UNREADY,
            id="a replica is not ready: under load that is no reason to shrink",
        ),
        pytest.param(
            [FRESH, UNREAD | {"failed": True}],
            None,
            {},
            True,
            True,
            Reason.METRICS_FRESH,
            id="a failed replica has nothing to say",
        ),
        pytest.param(
            [FRESH, UNREAD | {"state": State.WARM}],
            None,
            {},
            True,
            True,
            Reason.METRICS_FRESH,
            id="what does not serve need not be read",
        ),
        pytest.param(
            [FRESH | {"requests_running": UNKNOWN}],
            None,
            {},
            True,
            False,
            Reason.GATEWAY_DEMAND_ONLY,
            id="a page without the one number that matters is not fresh",
        ),
    ],
)
def test_what_is_known_and_what_may_be_done(  # noqa: PLR0917 - the columns of the table above
    replicas: list[Any],
    gateways: list[Any] | None,
    more: dict[str, Any],
    may_rise: bool,
    may_fall: bool,
    reason: Reason,
) -> None:
    seen = look(replicas, gateways, **more)
    assert (seen.may_rise.tolist(), seen.may_fall.tolist()) == ([may_rise], [may_fall])
    assert Reason(int(seen.reason[0])) is reason


def test_nothing_falls_before_the_windows_are_full() -> None:
    spec = build.fleet({})
    memory = sight_memory = build.initial_memory(spec, 41_000)
    for now_ms, may_fall in ((100_000, False), (101_000, True)):
        shot = build.snapshot(now_ms, [FRESH])
        _, baseline = windows.compare_replicas(shot, sight_memory.recent.replicas)
        assert sight.look(memory, shot, baseline).may_fall.tolist() == [may_fall]


def test_load_is_stretched_from_the_fresh_to_all() -> None:
    # Two of three replicas say 3 running and 1 waiting: three of them have 9 and, rounded up from 3, 3 more.
    seen = look([FRESH, FRESH, UNREAD])
    assert (seen.running.tolist(), seen.waiting.tolist()) == ([9], [3])
    assert seen.kv_tokens_each.tolist() == [100_000]


def test_an_absent_kv_reading_stays_unknown() -> None:
    seen = look([FRESH, FRESH | {"kv_tokens_used": UNKNOWN, "kv_tokens_total": UNKNOWN}])
    assert (seen.kv_tokens_used.tolist(), seen.kv_tokens_each.tolist()) == ([UNKNOWN], [UNKNOWN])


def test_replicas_are_counted_by_what_they_may_yet_do() -> None:
    seen = look(
        [
            FRESH,
            FRESH | {"state": State.WARM},
            FRESH | {"state": State.WARM, "ready": False},
            UNREAD | {"state": State.STARTING, "ready": False},
            UNREAD | {"state": State.STARTING, "ready": False, "unschedulable": True},
            UNREAD | {"state": State.STARTING, "ready": False, "unschedulable": True, "since_created_ms": 9999},
            UNREAD | {"state": State.STARTING, "failed": True},
            FRESH | {"state": State.DRAINING},
        ]
    )
    assert seen.serving.tolist() == seen.serving_ready.tolist() == [1]
    assert (seen.warm.tolist(), seen.warm_ready.tolist()) == ([2], [1])
    assert (seen.starting.tolist(), seen.withdrawn.tolist()) == ([2], [1])
    assert seen.present.tolist() == [5]


def test_what_gateways_hold_adds_up_and_the_oldest_counts() -> None:
    held = {"requests_held": 2, "held_prompt_tokens": 700}
    seen = look(
        [],
        [
            held | {"uid": "g0", "held_oldest_ms": 40},
            held | {"uid": "g1", "held_oldest_ms": 900},
            held | {"uid": "g2", "held_oldest_ms": 5000, "age_ms": 4000},
        ],
    )
    assert (seen.held.tolist(), seen.held_prompt_tokens.tolist()) == ([4], [1400])
    assert seen.held_oldest_ms.tolist() == [900]
    assert seen.occupied.tolist() == [4]


STUCK = {"requests_running": 0, "requests_waiting": 3, "generation_tokens_total": 50}


@pytest.mark.parametrize(
    ("looks", "suspect"),
    [
        pytest.param([STUCK] * 181, 1, id="three minutes without a token while requests wait"),
        pytest.param([STUCK] * 180, 0, id="a second less"),
        pytest.param([STUCK | {"requests_waiting": 0}] * 181, 0, id="nothing to do is no offence"),
        pytest.param(
            [STUCK | {"generation_tokens_total": tick} for tick in range(181)],
            0,
            id="tokens are made: the queue is real",
        ),
        pytest.param(
            [STUCK | {"prompt_tokens_total": tick} for tick in range(181)], 0, id="a long prompt is being computed"
        ),
        pytest.param([STUCK] * 90 + [build.UNREAD] + [STUCK] * 90, 0, id="who was not seen gets the time again"),
        pytest.param(
            [STUCK] * 90 + [STUCK | {"generation_tokens_total": 0}] * 91,
            0,
            id="an engine that was restarted starts anew",
        ),
    ],
)
def test_a_replica_that_holds_requests_and_makes_no_token_is_suspect(looks: list[dict[str, Any]], suspect: int) -> None:
    memory = build.settled(build.fleet({}), serving=1)
    baseline = memory.recent.replicas
    for second, replica in enumerate(looks):
        shot = build.snapshot(1000 * second, [replica])
        _, baseline = windows.compare_replicas(shot, baseline)
    seen = sight.look(memory, shot, baseline)
    assert seen.suspect.tolist() == [suspect]
    assert seen.waiting.tolist() == [0 if suspect else looks[-1]["requests_waiting"]]
