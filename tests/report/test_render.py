"""What is told of a decision: conditions by named situation, events, and when it is worth a write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from forebay.core.decision import Decision, DecisionStep
from forebay.core.reasons import Reason
from forebay.core.units import UNKNOWN
from forebay.core.wordings import WORDINGS
from forebay.report.attainment import _below
from forebay.report.publish import (
    EVENT_BURST,
    EVENT_REFILL_MS,
    EVENT_REPEAT_MS,
    MIN_INTERVAL_MS,
    EventGate,
    StatusGate,
    dated,
    event_object,
)
from forebay.report.render import Counts, Event, View, changes, conditions, happened, status
from forebay.resolve.problem import Problem

WALL = "2026-11-30T12:00:00Z"


def decision(serving: int, warm: int = 0, *steps: DecisionStep) -> Decision:
    return Decision(
        "ns/a", serving, warm, hold=False, steps=steps or (DecisionStep("demand", serving, Reason.NO_DEMAND, ()),)
    )


def view(serving: int = 2, warm: int = 0, *, ready: int | None = None, **more: Any) -> View:
    counts = Counts(total=serving + warm, warm=warm, serving=serving, ready=serving if ready is None else ready)
    return replace(View("ns/a", 3, decision(serving, warm), counts), **more)


def verdicts(of: View) -> dict[str, tuple[bool, str]]:
    return {told.type: (told.status, told.reason) for told in conditions(of)}


def step(stage: str, reason: Reason, *inputs: tuple[str, int]) -> DecisionStep:
    return DecisionStep(stage, 2, reason, inputs)


TABLE: dict[str, tuple[View, dict[str, tuple[bool, str]]]] = {
    "all is well": (
        view(2, 1),
        {
            "Ready": (True, "ReplicasReady"), "MetricsAvailable": (True, "AsExpected"),
            "ScalingActive": (True, "Autoscaling"), "AbleToScale": (True, "AsExpected"),
            "ScalingLimited": (False, "AsExpected"), "WarmPoolReady": (True, "WarmPoolFull"),
            "GPUCapacity": (True, "AsExpected"), "SLOMet": (True, "SLOUnmeasured"),
            "Progressing": (False, "AsExpected"),
        },
    ),
    "some serve": (view(2, ready=1), {"Ready": (True, "SomeReplicasReady")}),
    "none serves": (view(2, ready=0), {"Ready": (False, "NoReplicasReady")}),
    "a Batch service rests at zero": (view(0), {"Ready": (True, "ReplicasReady")}),
    "a policy that does not exist": (
        view(2, ready=0, problems=(Problem(Reason.POLICY_NOT_FOUND, "gold"),)), {"Ready": (False, "PolicyNotFound")},
    ),
    "an image that cannot be pulled, and nothing serves": (
        view(2, ready=0, problems=(Problem(Reason.IMAGE_PULL_FAILED),)), {"Ready": (False, "ImagePullFailed")},
    ),
    "an image that cannot be pulled, while the old ones serve": (
        view(2, ready=2, problems=(Problem(Reason.IMAGE_PULL_FAILED),)), {"Ready": (True, "ReplicasReady")},
    ),
    "metrics that are missing": (
        view(decision=decision(2, 0, step("signals", Reason.METRICS_STALE, ("serving", 8)))),
        {"MetricsAvailable": (False, "MetricsStale")},
    ),
    "garbage outweighs what is fresh": (
        view(
            decision=decision(2, 0, step("signals", Reason.METRICS_FRESH, ("serving", 2))),
            problems=(Problem(Reason.METRICS_GARBAGE, inputs=(("replicas", 1),)),),
        ),
        {"MetricsAvailable": (False, "MetricsGarbage")},
    ),
    "a bound that limits": (
        view(decision=decision(2, 0, step("bounds", Reason.MAX_REPLICAS))), {"ScalingLimited": (True, "MaxReplicas")},
    ),
    "GPUs that cannot be had": (
        view(decision=decision(2, 0, step("gpu-budget", Reason.GPU_CAPACITY))), {"GPUCapacity": (False, "GPUCapacity")},
    ),
    "a foreign autoscaler": (
        view(problems=(Problem(Reason.FOREIGN_AUTOSCALER),)), {"ScalingActive": (False, "ForeignAutoscaler")},
    ),
    "a warm pool that fills": (
        replace(view(2), decision=decision(2, 2)), {"WarmPoolReady": (False, "WarmPoolStarting")},
    ),
    "an SLO that holds": (view(attained_permille=995, attainment_permille=990), {"SLOMet": (True, "SLOMet")}),
    "an SLO that is missed": (view(attained_permille=900, attainment_permille=990), {"SLOMet": (False, "SLOMissed")}),
    "an SLO that nothing could hold": (
        view(decision=decision(2, 0, step("demand", Reason.SLO_INFEASIBLE))), {"SLOMet": (False, "SLOInfeasible")},
    ),
    "a rollout": (
        view(counts=Counts(total=3, serving=2, ready=2, starting=1, outdated=2)), {"Progressing": (True, "RollingOut")},
    ),
    "writes that the API server refuses": (
        view(problems=(Problem(Reason.WRITE_REFUSED, "quota", inputs=(("writes", 1),)),)),
        {"AbleToScale": (False, "WriteRefused")},
    ),
}  # fmt: skip


@pytest.mark.parametrize("sentence", TABLE)
def test_conditions(sentence: str) -> None:
    of, expected = TABLE[sentence]
    got = verdicts(of)
    assert len(got) == 9
    assert {kind: got[kind] for kind in expected} == expected


def test_a_status_is_within_the_bounds_of_the_api() -> None:
    long = decision(2, 0, *(step(f"s{i}", Reason.MAX_REPLICAS, ("wanted", 10**18)) for i in range(20)))
    told = status(view(decision=long, problems=(Problem(Reason.INVALID_SPEC, "x" * 5000),), ready=0), "m")
    assert len(told["lastDecision"]["steps"]) == 12
    assert all(len(s["message"]) <= 256 for s in told["lastDecision"]["steps"])
    assert all(len(c["message"]) <= 1024 for c in told["conditions"])
    assert told["selector"] == "forebay.dev/inferenceservice=a"


def test_an_event_is_told_when_a_warning_begins_and_when_it_ends_and_never_in_between() -> None:
    well, stale = status(view(), ""), status(view(decision=TABLE["metrics that are missing"][0].decision), "")
    began = changes(well, stale)
    assert [(e.reason, e.warning) for e in began] == [("MetricsStale", True)]
    assert changes(stale, stale) == ()
    assert [(e.reason, e.warning) for e in changes(stale, well)] == [("AsExpected", False)]
    assert happened(Reason.PROMOTED, 2) == Event("Promoted", False, "2 warm replicas now serve")


def test_every_reason_has_a_name_that_a_condition_may_bear() -> None:
    for reason, wording in WORDINGS.items():
        assert wording.name.isalnum(), reason
        assert len(wording.name) <= 128


# --- when to write ---------------------------------------------------------------------------------------------------


def test_nothing_new_is_never_written() -> None:
    gate = StatusGate()
    first = status(view(), "m")
    assert gate.due("u", {}, first, 0)
    gate.wrote("u", dated({}, first, WALL), 0)
    for later in (1, MIN_INTERVAL_MS, 10 * MIN_INTERVAL_MS):
        assert not gate.due("u", {}, status(view(), "m"), later)


def test_after_a_restart_what_is_stored_is_compared() -> None:
    stored = dated({}, status(view(), "m"), WALL)
    assert not StatusGate().due("u", stored, status(view(), "m"), 0)


def test_a_count_waits_its_turn_and_a_decision_does_not() -> None:
    gate = StatusGate()
    gate.wrote("u", dated({}, status(view(), "m"), WALL), 0)
    count = status(view(ready=1), "m")
    assert not gate.due("u", {}, count, MIN_INTERVAL_MS - 1)
    assert gate.due("u", {}, count, MIN_INTERVAL_MS)
    assert gate.due("u", {}, status(view(3), "m"), 1)
    assert gate.due("u", {}, status(view(), "other memory"), 1)


def test_numbers_in_a_message_are_not_worth_a_write() -> None:
    gate = StatusGate()
    before = status(view(attained_permille=995, attainment_permille=990), "m")
    gate.wrote("u", before, 0)
    assert not gate.due("u", {}, status(view(attained_permille=996, attainment_permille=990), "m"), MIN_INTERVAL_MS)


def test_a_condition_keeps_the_time_of_its_turn() -> None:
    first = dated({}, status(view(), "m"), "T1")
    second = dated(first, status(view(3, ready=0), "m"), "T2")
    times = {c["type"]: c["lastTransitionTime"] for c in second["conditions"]}
    assert times["Ready"] == "T2"
    assert times["AbleToScale"] == "T1"
    assert "lastScaleTime" not in first
    assert second["lastScaleTime"] == "T2"


def test_events_are_not_repeated_and_a_service_cannot_flood() -> None:
    gate = EventGate()
    same = Event("Promoted", False, "1")
    assert gate.admit("ns/a", [same], 0) == [same]
    assert gate.admit("ns/a", [same], EVENT_REPEAT_MS - 1) == []
    assert gate.admit("ns/a", [same], EVENT_REPEAT_MS) == [same]
    storm = [Event(f"E{i}", False, "") for i in range(50)]
    assert len(gate.admit("ns/b", storm, 0)) == EVENT_BURST
    assert gate.dropped_total == 40
    assert len(gate.admit("ns/b", storm[20:], EVENT_REFILL_MS)) == 1


def test_an_event_names_its_service() -> None:
    made = event_object("ns/a", "u", Event("R", True, "n"), name="a.1", wall_micro=WALL, instance="i")
    assert made["regarding"]["uid"] == "u"
    assert made["type"] == "Warning"


def test_observations_up_to_a_limit_are_counted_within_the_bucket() -> None:
    bounds, cumulative = (10, 20, 40), np.array([5, 15, 20, 22], np.int64)
    assert _below(cumulative, bounds, 20) == 15
    assert _below(cumulative, bounds, 30) == 17
    assert _below(cumulative, bounds, 100) == 20
    assert UNKNOWN < 0
