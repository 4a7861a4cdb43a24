"""The past as a journal has it; a simulated fleet writes one, so that what really happened is known exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from forebay.api.slo_policy import SLOPolicySpec
from forebay.core.memory import initial_memory
from forebay.core.snapshot import State
from forebay.core.units import UNKNOWN
from forebay.report.journal import Journal, segments
from forebay.sim.backtest import alone, from_past, with_policy
from forebay.sim.datapath import layout
from forebay.sim.run import ForebayJudge, Pool, run
from forebay.sim.scenario import ScenarioError
from forebay.sim.service import SimulatedService
from forebay.sim.traces.journal import ServiceUnknownError
from forebay.sim.world import World
from tests.core import build as core_build
from tests.sim import build

if TYPE_CHECKING:
    from pathlib import Path

    from forebay.core.decision import Decisions
    from forebay.core.snapshot import Snapshot

SLO = SLOPolicySpec.model_validate(
    {
        "ttft": {"targetMilliseconds": 700, "perThousandPromptTokensMilliseconds": 90},
        "itl": {"meanMilliseconds": 40, "worstSecondMilliseconds": 160},
        "burst": {"multiplier": 4, "withinSeconds": 20},
        "headroomPercent": 30,
        "maxIdleGPUs": 2,
        "priority": 7,
    }
)


def journal(folder: Path, *told: dict[str, int], gpus_max: int = 12) -> list[SimulatedService]:
    """Let a fleet run for two minutes and write down every look."""
    fleet = core_build.fleet(*told, gpus_max=gpus_max)
    trace = build.drawn(4, 240, 120, prompt=(10, 900), output=(1, 90))
    services = [
        SimulatedService(trace, fleet, row, classes=(build.TARGETS,), world=World(1, cold_s=25), lanes=16)
        for row in range(len(told))
    ]
    book, memory = Journal(folder, 1 << 30), initial_memory(fleet, 3_600_000)

    def tell(snapshot: Snapshot, decisions: Decisions) -> None:
        book.record(fleet, memory, snapshot, decisions)

    run(services, ForebayJudge(fleet, [Pool(tuple(range(len(told))), 12)], tell), [2] * len(told))
    return services


def test_the_past_is_what_happened(tmp_path: Path) -> None:
    (real,) = journal(tmp_path, {"gpus_per_replica": 2})
    past, scenario, _ = from_past(segments(tmp_path), None, SLO, None)
    assert past.service == "a/s0"
    # The first look is after a second, the last one 120 s after the trace's end.
    assert past.seconds == pytest.approx(239, abs=2)
    assert past.replicas_first == 2
    assert past.arrivals == pytest.approx(len(real.trace), abs=8)
    assert (past.refused, past.failed) == (0, 0)
    in_trace = np.array(past.at_s) <= real.trace.duration_us / 1e6
    held_s = np.diff(np.array(past.at_s)[in_trace], prepend=0) * np.array(past.replicas)[in_trace]
    assert 2 * held_s.sum() == pytest.approx(sum(real.gpu_us.values()) / 1e6, rel=0.03)
    assert sum(past.gpu_us.values()) >= sum(real.gpu_us.values()) * 0.97
    assert past.attained_permille is not None
    assert past.gpus_offered == 12
    assert len(scenario.traces[0]) == past.arrivals


def test_the_policy_is_the_only_thing_that_differs() -> None:
    fleet = core_build.fleet({}, {"batch_max": 5})
    other = with_policy(fleet, 1, SLO)
    changed = {
        name for name in fleet.__dataclass_fields__ if not np.array_equal(getattr(fleet, name), getattr(other, name))
    }
    assert changed == {
        "priority", "ttft_target_ms", "ttft_per_1k_prompt_tokens_ms", "itl_mean_ms", "itl_worst_second_ms",
        "burst_multiplier_milli", "burst_within_ms", "headroom_milli", "warm_gpus_max",
    }  # fmt: skip
    assert [int(column[1]) for column in (other.ttft_target_ms, other.itl_mean_ms, other.priority)] == [700, 40, 7]
    assert other.ttft_target_ms[0] == fleet.ttft_target_ms[0]
    single = alone(other, 1, 9)
    assert (single.services, single.pools, single.gpus_max.tolist()) == (("a/s1",), ("gpus",), [9])
    assert (single.batch_max.tolist(), single.pool.tolist()) == ([5], [0])


def test_of_several_services_one_is_chosen(tmp_path: Path) -> None:
    journal(tmp_path, {}, {})
    with pytest.raises(ServiceUnknownError, match="choose one: a/s0, a/s1"):
        from_past(segments(tmp_path), None, SLO, None)
    past, scenario, judge = from_past(segments(tmp_path), "a/s1", SLO, 5)
    assert past.service == "a/s1"
    assert scenario.fleet.services == judge.memory.services == ("a/s1",)
    assert scenario.fleet.gpus_max.tolist() == [5]


def test_a_service_of_unknown_speed_cannot_be_simulated(tmp_path: Path) -> None:
    journal(tmp_path, {})
    for file in segments(tmp_path):
        file.unlink()
    fleet = core_build.fleet({"step_c0_ps": UNKNOWN}, gpus_max=12)
    book, memory = Journal(tmp_path, 1 << 30), initial_memory(fleet, 0)
    decided = ForebayJudge(fleet, [Pool((0,), 12)])
    one = build.service(build.trace_of((0, 4, 1), (5_000, 4, 1)))
    decided._tell = lambda snapshot, decisions: book.record(fleet, memory, snapshot, decisions)
    run([one], decided, [1])
    with pytest.raises(ScenarioError, match="a/s0: nothing is known of its speed"):
        from_past(segments(tmp_path), None, SLO, None)


def test_the_simulated_side_serves_what_was_recorded(tmp_path: Path) -> None:
    journal(tmp_path, {})
    past, scenario, judge = from_past(segments(tmp_path), None, SLO, None)
    (one,) = scenario.services(World(1))
    run([one], judge, [past.replicas_first])
    assert one.path.clock[layout.ANSWERED] == past.arrivals
    assert one.count(State.SERVING) >= 1
