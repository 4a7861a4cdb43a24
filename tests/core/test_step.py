"""Situations that broke others, and the stages one by one, through the whole judgement.

The service is the one of `build`: one replica has eight slots. Unless said, it decided `last` replicas long ago and its
windows hold silence, so that what the sentence names is the only thing that asks for anything.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from forebay.core.fleet import Mode
from forebay.core.memory import carry
from forebay.core.reasons import Reason
from forebay.core.snapshot import State
from forebay.core.step import STAGES, step
from forebay.core.units import UNKNOWN
from forebay.core.wordings import wording
from tests.core import build

if TYPE_CHECKING:
    from forebay.core.decision import Decision

NOW_MS = 10_000_000
IDLE: dict[str, Any] = {}
FULL: dict[str, Any] = {"requests_running": 8, "kv_tokens_used": 8000}
UNREAD = build.UNREAD
WARM = {"state": State.WARM}
STARTING = UNREAD | {"state": State.STARTING, "ready": False, "since_created_ms": 5000}
SILENT_GATEWAY = [{"age_ms": UNKNOWN}]


def decide(
    replicas: list[dict[str, Any]],
    gateways: list[dict[str, Any]] | None = None,
    *,
    last: int,
    last_warm: int = 0,
    service: dict[str, Any] | None = None,
    ticks: int = 1,
    every_ms: int = 1000,
    **more: Any,
) -> Decision:
    """Look `ticks` times at the same thing and return the last decision."""
    spec = build.fleet(service or {}, gpus_max=more.pop("gpus_max", UNKNOWN))
    memory = build.settled(spec, last, last_warm, now_ms=NOW_MS)
    for tick in range(ticks):
        memory, decisions = step(spec, memory, build.snapshot(NOW_MS + every_ms * tick, replicas, gateways, **more))
    return decisions.decision(0)


def reasons(decision: Decision) -> list[Reason]:
    return [verdict.reason for verdict in decision.steps if verdict.reason is not Reason.NONE]


BATCH = {"batch_class": True, "replicas_min": 0, "burst_multiplier_milli": 1000}
CPU = {"step_c0_ps": UNKNOWN, "batch_max": 4, "gpus_per_replica": 0, "burst_multiplier_milli": 1000}


@pytest.mark.parametrize(
    ("replicas", "gateways", "more", "serving", "reason"),
    [
        # --- missing data
        pytest.param(
            [UNREAD] * 8, SILENT_GATEWAY, {"last": 8}, 8, Reason.METRICS_STALE, id="all scrapes empty: eight stay eight"
        ),
        pytest.param(
            [UNREAD] * 3, SILENT_GATEWAY, {"last": 0, "service": {"replicas_min": 2}}, 2, Reason.MIN_REPLICAS,
            id="below minReplicas without metrics: lifted to the floor",
        ),
        pytest.param(
            [IDLE, IDLE, UNREAD, UNREAD, UNREAD], None, {"last": 5, "ticks": 60, "every_ms": 10_000}, 5,
            Reason.METRICS_PARTLY_STALE,
            id="three of five time out: nothing is removed, however long it lasts",
        ),
        pytest.param(
            [FULL | {"requests_waiting": 8}, FULL | {"requests_waiting": 8}, UNREAD, UNREAD, WARM, WARM, WARM, WARM],
            None, {"last": 4}, 8, Reason.BACKLOG,
            id="two of four are read and overloaded: 64 requests stretched to all want eight",
        ),
        pytest.param(
            [UNREAD, WARM, WARM], [{"requests_held": 20, "held_prompt_tokens": 20_000}], {"last": 1}, 3, Reason.BACKLOG,
            id="no replica is read: what the gateway holds is enough to promote",
        ),
        pytest.param(
            [IDLE | {"age_ms": 2000}], None, {"last": 1}, 1, Reason.METRICS_FRESH, id="a gap of two seconds is no news"
        ),
        pytest.param(
            [IDLE] * 4, SILENT_GATEWAY, {"last": 4, "ticks": 60, "every_ms": 10_000}, 4, Reason.GATEWAY_STALE,
            id="the gateway does not answer: demand from engines alone, nothing is removed",
        ),
        # --- staleness and identity
        pytest.param(
            [IDLE | {"uid": "new"}], None, {"last": 1, "ticks": 2}, 1, Reason.NO_DEMAND,
            id="a saturated pod that is gone is gone at the next tick",
        ),
        pytest.param(
            [IDLE, {"requests_waiting": 9}, IDLE], None, {"last": 3, "ticks": 84, "every_ms": 5000}, 1,
            Reason.REPLICA_SUSPECT,
            id="a phantom queue does not block shrinking for ever",
        ),
        pytest.param(
            [{"requests_running": 4, "ready": False}] * 3, None, {"last": 3, "ticks": 60, "every_ms": 10_000}, 3,
            Reason.REPLICAS_UNREADY,
            id="all pods unready under load: no shrinking",
        ),
        # --- zero and activation
        pytest.param(
            [], [{"requests_held": 1, "held_prompt_tokens": 500}], {"last": 0, "service": BATCH}, 1, Reason.ACTIVATED,
            id="a Batch service at zero and one request: it activates at once",
        ),
        pytest.param(
            [], [{"requests_held": 40, "held_prompt_tokens": 40_000}], {"last": 0, "service": BATCH}, 5,
            Reason.ACTIVATED, id="a backlog worth five replicas: five in one decision",
        ),
        pytest.param([], None, {"last": 0, "service": BATCH}, 0, Reason.NO_DEMAND, id="at zero without requests: zero"),
        pytest.param(
            [IDLE], None, {"last": 1, "service": BATCH, "ticks": 30, "every_ms": 10_000}, 1, Reason.NO_DEMAND,
            id="an idle Batch service waits for idleSeconds",
        ),
        pytest.param(
            [IDLE], None, {"last": 1, "service": BATCH, "ticks": 31, "every_ms": 10_000}, 0, Reason.IDLE,
            id="and then goes to zero",
        ),
        pytest.param(
            [FULL], None, {"last": 1, "service": BATCH | {"idle_ms": 10_000}, "ticks": 70}, 2, Reason.BATCH_OCCUPANCY,
            id="a Batch service that works is not idle",
        ),
        pytest.param(
            [IDLE], None, {"last": 1, "ticks": 60, "every_ms": 10_000, "service": {"idle_ms": 1000}}, 1,
            Reason.NO_DEMAND,
            id="an Interactive service never goes to zero",
        ),
        pytest.param(
            [], None, {"last": 0, "service": {"replicas_min": 0}}, 1, Reason.MIN_REPLICAS,
            id="not even where a specification said so",
        ),
        # --- flapping and overshoot
        pytest.param(
            [FULL | {"requests_waiting": 24}, STARTING, STARTING, STARTING], None, {"last": 4}, 4,
            Reason.BACKLOG_CAPACITY_STARTING, id="what piles up while replicas boot orders no more of them",
        ),
        pytest.param(
            [FULL | {"requests_waiting": 24}, WARM, WARM], None, {"last": 1}, 3, Reason.BACKLOG,
            id="warm replicas are taken for a backlog that a cold start cannot meet",
        ),
        pytest.param(
            [{"requests_running": 5}] * 2 + [WARM] * 2, [{"requests_held": 3, "requests_in_flight": 16}], {"last": 2},
            3, Reason.BACKLOG, id="the gateway knows that all seats are taken before the engines have said so",
        ),
        *(
            pytest.param(
                [{"requests_running": 4}, WARM],
                [{"requests_held": 1, "held_prompt_tokens": 9, "requests_in_flight": 8, "held_oldest_ms": oldest_ms}],
                {"last": 1, "service": {"ttft_target_ms": 60_000}}, replicas, reason, id=text,
            )
            for oldest_ms, replicas, reason, text in (
                (0, 1, Reason.NONE, "a slot falls free within the minute that is promised"),
                (59_700, 2, Reason.BACKLOG, "the minute is over and none has: a warm replica is taken"),
            )
        ),
        pytest.param(
            [FULL | {"requests_waiting": 400}], None, {"last": 1}, 5, Reason.BACKLOG,
            id="400 waiting are 340 s of work: one replica for what runs, four to drain it in a boot's 90 s",
        ),
        pytest.param(
            [{"requests_running": 4, "requests_waiting": 40}], None,
            {"last": 1, "service": {"ttft_target_ms": 600_000}}, 1, Reason.NONE,
            id="a promise of ten minutes leaves time to wait",
        ),
        pytest.param(
            [FULL | {"requests_waiting": 4000}], None,
            {"last": 1, "service": {"ttft_target_ms": 600_000, "replicas_max": 99}}, 6, Reason.BACKLOG,
            id="and time for cold starts where it is not enough",
        ),
        # --- real engines on CPU: no step-time model
        pytest.param(
            [{"requests_running": 4, "requests_waiting": 4}], [],
            {"last": 1, "service": CPU, "gateways_expected": 0}, 2, Reason.BACKLOG,
            id="a CPU engine with four slots and eight requests wants a second one",
        ),
        pytest.param(
            [{"requests_running": 3}], [], {"last": 1, "service": CPU, "gateways_expected": 0, "ticks": 5}, 2,
            Reason.SMALL_FLEET_MARGIN, id="three of four slots taken for seconds: a second one before anything waits",
        ),
        pytest.param(
            [{"requests_running": 1}], [], {"last": 1, "service": CPU, "gateways_expected": 0, "ticks": 100}, 1,
            Reason.BATCH_OCCUPANCY, id="one request at a time needs one",
        ),
        # --- bounds and modes
        pytest.param(
            [FULL | {"requests_waiting": 80}] * 4 + [WARM] * 4, None, {"last": 4, "service": {"replicas_max": 6}}, 6,
            Reason.MAX_REPLICAS, id="never above maxReplicas",
        ),
        pytest.param(
            [IDLE] * 2, None, {"last": 2, "service": {"mode": Mode.MANUAL, "replicas_manual": 7}}, 7, Reason.MANUAL,
            id="Manual obeys a person",
        ),
        pytest.param(
            [UNREAD] * 5, SILENT_GATEWAY, {"last": 5, "service": {"mode": Mode.MANUAL, "replicas_manual": 2}}, 4,
            Reason.ONE_REMOVAL_AT_A_TIME, id="Manual needs no metrics, and shrinks one at a time",
        ),
        pytest.param(
            [FULL | {"requests_waiting": 80}] * 2, None, {"last": 2, "service": {"mode": Mode.PAUSED}}, 2,
            Reason.PAUSED,
            id="Paused leaves what is there",
        ),
        pytest.param(
            [FULL | {"requests_waiting": 80}] * 2 + [WARM], None, {"last": 3, "service": {"blocked": True}}, 3,
            Reason.BLOCKED, id="a service that cannot run as specified keeps what it has",
        ),
        pytest.param([], None, {"last": 3, "service": {"blocked": True}}, 0, Reason.BLOCKED, id="and starts nothing"),
        # --- GPUs
        pytest.param(
            [FULL | {"requests_waiting": 800}] * 2, None, {"last": 2, "gpus_max": 3}, 3, Reason.GPU_CAPACITY,
            id="never more GPUs than the pool may spend",
        ),
        pytest.param(
            [FULL | {"requests_waiting": 800}] * 2, None, {"last": 2, "allocatable": 8, "foreign": 5}, 3,
            Reason.GPU_CAPACITY, id="nor than its nodes have free",
        ),
        pytest.param(
            [FULL | {"requests_waiting": 800}] * 2, None, {"last": 2, "allocatable": UNKNOWN}, 2,
            Reason.GPU_NODES_UNREADABLE, id="unreadable nodes: nothing new is started",
        ),
        pytest.param(
            [FULL | {"requests_waiting": 800}] * 2 + [WARM], None, {"last": 2, "last_warm": 1, "allocatable": UNKNOWN},
            3, Reason.GPU_NODES_UNREADABLE, id="what is warm may still be promoted",
        ),
        pytest.param(
            [FULL | {"requests_waiting": 800}, STARTING | {"unschedulable": True, "since_created_ms": 11_000}], None,
            {"last": 2}, 1, Reason.UNSCHEDULABLE, id="a pod that no node takes is withdrawn",
        ),
        pytest.param(
            [IDLE] * 3, SILENT_GATEWAY, {"last": 3, "gpus_max": 1}, 3, Reason.GATEWAY_STALE,
            id="a budget that was cut takes nothing away while something is unknown",
        ),
        pytest.param(
            [{"requests_running": 4}] * 3, None, {"last": 3, "gpus_max": 1}, 2, Reason.ONE_REMOVAL_AT_A_TIME,
            id="a budget that was cut is met one replica at a time",
        ),
        pytest.param(
            [{"requests_running": 4, "requests_waiting": 12}], [],
            {"last": 1, "service": CPU, "gateways_expected": 0, "allocatable": 0}, 4, Reason.BACKLOG,
            id="a service without GPUs has no budget to meet",
        ),
    ],
)  # fmt: skip
def test_a_situation(
    replicas: list[Any], gateways: list[Any] | None, more: dict[str, Any], serving: int, reason: Reason
) -> None:
    decision = decide(replicas, gateways, **more)
    assert decision.replicas_serving == serving
    assert reason in [verdict.reason for verdict in decision.steps]


def test_every_stage_says_what_it_weighed() -> None:
    decision = decide([FULL], last=1)
    assert tuple(verdict.stage for verdict in decision.steps) == STAGES
    assert decision.steps[-1].replicas == decision.replicas_serving
    assert all(verdict.inputs for verdict in decision.steps)


def test_the_wordings_find_every_number_they_tell() -> None:
    decision = decide([FULL | {"requests_waiting": 800}] * 2, last=2, gpus_max=3)
    for verdict in decision.steps:
        assert "unknown" not in wording(verdict.reason).say(dict(verdict.inputs)), verdict


def test_a_want_that_the_budget_refused_stays_wanted() -> None:
    spec = build.fleet({}, gpus_max=3)
    memory = build.settled(spec, 2, now_ms=NOW_MS)
    memory, decisions = step(spec, memory, build.snapshot(NOW_MS, [FULL | {"requests_waiting": 800}] * 2))
    assert decisions.replicas_serving.tolist() == [3]
    assert memory.safety.replicas_serving[0] > 3


def test_a_budget_that_was_cut_does_not_make_the_want_grow() -> None:
    spec = build.fleet({"warm_gpus_max": 0}, gpus_max=2)
    memory = build.settled(spec, 8, now_ms=NOW_MS)
    for there in range(8, 2, -1):
        rows = [{"requests_running": 4}] * there
        memory, decisions = step(spec, memory, build.snapshot(NOW_MS + 1000 * (8 - there), rows))
        assert decisions.replicas_serving.tolist() == [there - 1]
        assert memory.safety.replicas_serving.tolist() == [8]
        assert memory.safety.replicas_warm.tolist() == [0]


def test_safety_memory_changes_only_with_a_decision() -> None:
    spec = build.fleet({"warm_gpus_max": 0})
    memory = build.settled(spec, 2, now_ms=NOW_MS)
    told = set()
    for tick in range(100):
        load = {"requests_running": tick % 3, "generation_tokens_total": 90 * tick, "requests_finished_total": tick}
        memory, decisions = step(spec, memory, build.snapshot(NOW_MS + 1000 * tick, [load, load]))
        told.add((tuple(memory.safety.replicas_serving.tolist()), tuple(memory.safety.replicas_warm.tolist())))
        assert decisions.replicas_serving.tolist() == [2]
    assert len(told) == 1


def test_an_operator_that_forgot_everything_keeps_what_it_finds() -> None:
    spec = build.fleet({})
    memory = build.initial_memory(spec, NOW_MS)
    for tick in range(12):
        look = build.snapshot(NOW_MS + 5000 * tick, [IDLE] * 4 + [WARM] * 2)
        memory, decisions = step(spec, memory, look)
        assert (decisions.replicas_serving.tolist(), decisions.replicas_warm.tolist()) == ([4], [2])
        assert decisions.hold.tolist() == [True]


@pytest.mark.parametrize(
    ("replicas", "suspect"),
    [
        pytest.param([{"requests_waiting": 5}], ("r0000",), id="no token for three minutes"),
        pytest.param([{"requests_waiting": 5, "state": State.DRAINING}], (), id="one that leaves anyway"),
        pytest.param(
            [STARTING | {"unschedulable": True, "since_created_ms": 11_000}], ("r0000",), id="no node takes it"
        ),
    ],
)
def test_suspects_are_named(replicas: list[dict[str, Any]], suspect: tuple[str, ...]) -> None:
    spec = build.fleet({})
    memory = build.settled(spec, 1, now_ms=NOW_MS)
    for tick in range(20):
        memory, decisions = step(spec, memory, build.snapshot(NOW_MS + 10_000 * tick, replicas))
    assert decisions.suspect == suspect


@pytest.mark.parametrize(
    ("replicas", "more", "victims"),
    [
        pytest.param([IDLE] * 2, {"last": 2}, [], id="as many as wanted: nobody"),
        pytest.param(
            [
                {"uid": "a-busy", "requests_running": 6},
                {"uid": "b-less", "requests_running": 2},
                {"uid": "c-warm", "state": State.WARM},
                {"uid": "d-old", "outdated": True, "requests_running": 1},
                STARTING | {"uid": "e-young", "since_created_ms": 100},
                STARTING | {"uid": "f-older", "since_created_ms": 50_000},
                UNREAD | {"uid": "g-failed", "failed": True},
                {"uid": "h-leaving", "state": State.DRAINING},
            ],
            {"last": 1, "service": {"replicas_max": 1}},
            ["g-failed", "e-young", "f-older", "d-old", "c-warm", "b-less", "a-busy"],
            id="what is of no use goes first, then what costs least",
        ),
        pytest.param(
            [IDLE, UNREAD, UNREAD | {"failed": True}],
            {"last": 1},
            ["r0002"],
            id="where something is unknown only what has failed may go",
        ),
        pytest.param([IDLE | {"outdated": True}], {"last": 1}, ["r0000"], id="what is outdated may be replaced"),
    ],
)
def test_victims(replicas: list[dict[str, Any]], more: dict[str, Any], victims: list[str]) -> None:
    spec = build.fleet(more.get("service", {}))
    memory = build.settled(spec, more["last"], now_ms=NOW_MS)
    rows = sorted(({"uid": f"r{place:04}"} | row for place, row in enumerate(replicas)), key=lambda row: row["uid"])
    _, decisions = step(spec, memory, build.snapshot(NOW_MS, rows))
    assert list(decisions.victims) == victims


def crowd(services: int, waiting: int, **service: Any) -> list[dict[str, Any]]:
    return [FULL | {"requests_waiting": waiting, "service": row, "uid": f"s{row}"} | service for row in range(services)]


def test_gpus_go_by_priority_and_serving_goes_before_warm() -> None:
    no_pool = {"burst_multiplier_milli": 1000}
    spec = build.fleet({"priority": 1} | no_pool, {"priority": 9} | no_pool, gpus_max=7)
    memory = build.settled(spec, 1, 2, now_ms=NOW_MS)
    gateways = [{"service": row} for row in range(2)]
    _, decisions = step(spec, memory, build.snapshot(NOW_MS, crowd(2, 300), gateways))
    # Each wants one for what runs and three for 300 waiting (255 s of work, in 90 s).
    assert decisions.replicas_after[STAGES.index("bounds")].tolist() == [4, 4]
    assert decisions.replicas_serving.tolist() == [3, 4]
    assert decisions.reason[STAGES.index("gpu-budget")].tolist() == [Reason.GPU_CAPACITY, Reason.NONE]


def test_warm_replicas_of_all_come_after_serving_ones_of_any() -> None:
    spec = build.fleet({"priority": 1}, {"priority": 9}, gpus_max=7)
    memory = build.settled(spec, 1, now_ms=NOW_MS)
    safety = build.replace(memory.safety, replicas_warm=np.array([0, 4]))
    rows = [*crowd(1, 300), IDLE | {"service": 1, "uid": "t0"}]
    rows += [WARM | {"service": 1, "uid": f"w{row}"} for row in range(4)]
    gateways = [{"service": row} for row in range(2)]
    _, decisions = step(spec, build.replace(memory, safety=safety), build.snapshot(NOW_MS, rows, gateways))
    assert decisions.replicas_serving.tolist() == [4, 1]
    assert decisions.replicas_warm.tolist() == [0, 2]


def test_a_warm_replica_that_runs_does_not_go_for_another_services_warm_replica() -> None:
    # Two services want five warm ones each, six GPUs are there: whoever has them keeps them, look after look. Once the
    # one that had less got them, had more, and gave them back: a boot and a farewell each second.
    spec = build.fleet({}, {}, gpus_max=6)
    memory = build.settled(spec, 1, now_ms=NOW_MS)
    memory = build.replace(memory, learned=build.replace(memory.learned, base_micro=np.array([900_000, 900_000])))
    rows = [{"uid": "a0", "requests_running": 1}, {"uid": "b0", "service": 1, "requests_running": 1}]
    rows += [WARM | {"uid": f"a{row}"} for row in range(1, 4)] + [WARM | {"uid": "b1", "service": 1}]
    rows.sort(key=lambda row: str(row["uid"]))
    for tick in range(3):
        shot = build.snapshot(NOW_MS + 1000 * tick, rows, [{"service": row} for row in range(2)])
        memory, decisions = step(spec, memory, shot)
        assert (decisions.replicas_serving + decisions.replicas_warm).tolist() == [4, 2]


def test_of_equals_the_one_that_has_least_of_what_it_asks_comes_first() -> None:
    spec = build.fleet({}, {}, gpus_max=5)
    memory = build.settled(spec, 1, now_ms=NOW_MS)
    rows = [*crowd(1, 300), *[FULL | {"service": 1, "uid": f"t{row}", "requests_waiting": 100} for row in range(3)]]
    gateways = [{"service": row} for row in range(2)]
    _, decisions = step(spec, memory, build.snapshot(NOW_MS, rows, gateways))
    assert decisions.replicas_serving.tolist() == [2, 3]


def test_withdrawn_replicas_are_tried_again_ever_later() -> None:
    spec = build.fleet({})
    memory = build.settled(spec, 2, now_ms=NOW_MS)
    wanted = []
    age_ms = 11_000
    for tick in range(400):
        rows = [FULL | {"requests_waiting": 800}]
        if age_ms >= 0:
            rows.append(STARTING | {"unschedulable": True, "since_created_ms": age_ms})
        memory, decisions = step(spec, memory, build.snapshot(NOW_MS + 1000 * tick, rows))
        wanted.append(int(decisions.replicas_serving[0]))
        # The shell deletes what is withdrawn and creates what is wanted again.
        age_ms = -1 if wanted[-1] == 1 else age_ms + 1000
    tries = [tick for tick in range(1, 400) if wanted[tick] > 1 and wanted[tick - 1] == 1]
    gaps = [after - before for before, after in itertools.pairwise(tries)]
    # 30 s, then 60, 120, 240 between tries; each try lasts the ten seconds until it is called hopeless.
    assert tries[0] == 30
    assert gaps == sorted(gaps)
    assert gaps[0] < 80 < gaps[-1]


def test_services_come_and_go_and_keep_what_is_their_own() -> None:
    spec = build.fleet({}, {}, {})
    memory = build.settled(spec, 1, now_ms=NOW_MS)
    rows = [{"service": row, "uid": f"r{row}", "requests_running": row} for row in range(3)]
    gateways = [{"service": row, "arrivals_total": 100 * row} for row in range(3)]
    memory, _ = step(spec, memory, build.snapshot(NOW_MS, rows, gateways))
    other = build.fleet({}, {})
    other = build.replace(other, services=("a/new", "a/s2"))
    moved = carry(memory, other, NOW_MS + 500)
    assert moved.services == ("a/new", "a/s2")
    assert moved.safety.replicas_serving.tolist() == [UNKNOWN, 1]
    assert moved.recent.gateways.service.tolist() == [1]
    assert moved.recent.gateways.arrivals_total.tolist() == [200]
    assert moved.recent.ring.running.sum(axis=0).tolist() == [0, 2000]
    assert moved.recent.timers.since_ms.tolist() == [NOW_MS + 500, memory.recent.timers.since_ms[2]]
    assert carry(moved, other, NOW_MS + 900) is moved


def test_an_empty_fleet_is_judged_too() -> None:
    spec = build.fleet()
    memory, decisions = step(spec, build.initial_memory(spec, 0), build.snapshot(1000, [], []))
    assert decisions.replicas_serving.tolist() == []
    assert memory.recent.now_ms == 1000


def test_the_arguments_are_left_as_they_were() -> None:
    spec = build.fleet({})
    memory = build.settled(spec, 1, now_ms=NOW_MS)
    before = memory.recent.ring.running.copy()
    step(spec, memory, build.snapshot(NOW_MS, [FULL]))
    assert np.array_equal(memory.recent.ring.running, before)
