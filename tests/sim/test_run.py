"""The simulated loop: who judges when, on what, and what is accounted for it. All numbers are worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from forebay.core.snapshot import State
from forebay.sim.run import ForebayJudge, Pool, RuleJudge, run
from forebay.sim.score import recovery_s, score_of
from forebay.sim.service import SimulatedService, Wanted
from forebay.sim.world import World
from tests.core import build as core_build
from tests.sim import build
from tests.sim.build import EXACT, SECOND, TARGETS, trace_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.core.decision import Decisions
    from forebay.core.snapshot import Snapshot
    from forebay.sim.sample import Sample
    from forebay.sim.trace import Trace

SLOW = World(0, model_error=0, noise_milli=0, stragglers=False, cold_s=30, cold_sd_s=0)
LAST = (100_000, 4, 1)


class Script:
    """Wants (serving, warm) from a second on."""

    hears_pushes = False

    def __init__(self, wants: dict[int, tuple[int, int]], gpus: int = 16) -> None:
        self.wants, self.gpus = wants, gpus
        self.now = (1, 0)
        self.seen: list[tuple[int, ...]] = []

    def judge(self, services: Sequence[SimulatedService], now_us: int) -> None:
        (one,) = services
        self.now = self.wants.get(now_us // SECOND, self.now)
        one.settle(Wanted(*self.now), now_us, self.gpus - one.gpus)
        self.seen.append(tuple(one.count(state) for state in State))


def played(script: Script, trace: Trace, **told: int) -> SimulatedService:
    one = build.service(trace, world=SLOW, lanes=4, **told)
    run([one], script, [1])
    return one


def test_promotions_demotions_and_drains_are_paid_for_as_long_as_they_last() -> None:
    # Second 10: one warm replica more (30 s cold). 50: both serve. 70: one is warm again. 80: it goes, idle as it is.
    script = Script({10: (1, 1), 50: (2, 0), 70: (1, 1), 80: (1, 0)})
    one = played(script, trace_of((0, 4, 1), LAST), gpus_per_replica=2)
    assert score_of(one).gpu_hours_by_state == {
        "starting": pytest.approx(2 * 30 / 3600),
        "warm": pytest.approx(2 * (10 + 10) / 3600),
        "serving": pytest.approx(2 * (100 + 20) / 3600),
        "draining": pytest.approx(2 * 0.5 / 3600),  # it is looked at twice a second
    }
    assert score_of(one).gpu_hours == pytest.approx(2 * 170.5 / 3600)
    assert one.actions == 4
    # What stands at the end of seconds 9, 10, 40, 50, 70, 80, 81: starting, warm, serving, draining.
    assert [script.seen[second - 1] for second in (9, 10, 40, 50, 70, 80, 81)] == [
        (0, 0, 1, 0), (1, 0, 1, 0), (0, 1, 1, 0), (0, 0, 2, 0), (0, 1, 1, 0), (0, 0, 1, 1), (0, 0, 1, 0),
    ]  # fmt: skip


def test_a_pool_without_room_gives_none() -> None:
    one = played(Script({10: (3, 0)}, gpus=4), trace_of((0, 4, 1), LAST), gpus_per_replica=2)
    assert one.count(State.SERVING) == 2
    assert one.replicas_made == 2


def test_recovery_is_the_time_until_ten_seconds_were_good() -> None:
    # Ten requests a second. Of those in seconds 20 to 30 every other one asks for a prompt that takes too long.
    requests = [(10 * place * 10, 8000 if 20 <= place // 10 < 31 and place % 2 else 4, 1) for place in range(600)]
    one = build.service(trace_of(*requests), lanes=8, kv_tokens_prior=90_000, batch_max=64, step_tokens_max=9000)
    run([one], Script({1: (4, 0)}), [4])
    assert one.path.second_arrived.tolist() == [10] * 60
    assert set(np.flatnonzero(one.path.second_good < 10)) <= set(range(20, 32))
    bad_until = int(np.flatnonzero(one.path.second_good < 10)[-1])
    assert recovery_s(one, 20) == bad_until + 1 - 20
    assert recovery_s(one, 40) == 0
    assert recovery_s(one, 55) is None  # no ten seconds are left


def test_who_never_recovers_is_said_not_to() -> None:
    one = build.service(trace_of(*[(place * 100, 4, 1) for place in range(400)]))
    run([one], Script({1: (0, 0)}), [0])
    assert recovery_s(one, 5) is None
    assert score_of(one).goodput == 0


class Record:
    """A rule that wants two replicas and remembers what it was shown."""

    interval_ms, delay_ms, warm_replicas = 5_000, 12_000, 1

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def decide(self, sample: Sample) -> int:
        self.samples.append(sample)
        return 2


def test_a_rule_acts_at_its_own_pace_on_samples_as_old_as_its_metrics() -> None:
    rule = Record()
    fleet = core_build.fleet({})
    trace = trace_of((500, 40, 30), (700, 40, 30), (60_000, 4, 1))
    one = build.service(trace, world=SLOW, lanes=8, serving=0)
    run([one], RuleJudge([rule], fleet, [Pool((0,), 8)]), [1])
    # It is asked at seconds 1, 6, 11, ... and shown the half second at least 12 s before, from second 16 on.
    assert [sample.at_ms for sample in rule.samples][:3] == [3_500, 8_500, 13_500]
    first = rule.samples[0]
    assert (first.arrivals_total, first.finished_total, first.prompt_tokens_total) == (2, 2, 80)
    assert (first.generation_tokens_total, first.ttft_count, first.itl_count) == (60, 2, 58)
    assert first.itl_sum_ms == pytest.approx(58 * 21, abs=58)
    assert one.count(State.SERVING) == 2
    assert one.count(State.WARM) == 1


def test_a_rule_never_passes_its_service_s_bounds() -> None:
    class Wild(Record):
        warm_replicas = 0

        def decide(self, sample: Sample) -> int:
            super().decide(sample)
            return 99 if sample.at_ms < 30_000 else -5

    one = build.service(trace_of((0, 4, 1), LAST), world=SLOW, lanes=9)
    seen: list[int] = []
    fleet = core_build.fleet({"replicas_min": 1, "replicas_max": 3})
    judge = RuleJudge([Wild()], fleet, [Pool((0,), 99)])
    run([one], judge, [1], lambda *_: seen.append(one.count(State.STARTING, State.SERVING)))
    assert max(seen) == 3
    assert seen[-1] == 1


def forebay_run(trace: Trace, tell: object = None, **told: int) -> tuple[SimulatedService, ForebayJudge]:
    fleet = core_build.fleet(told, gpus_max=12)
    one = SimulatedService(trace, fleet, 0, classes=(TARGETS,), world=replace(SLOW, cold_s=20), lanes=16)
    judge = ForebayJudge(fleet, [Pool((0,), 12)], tell)  # type: ignore[arg-type]
    run([one], judge, [1])
    return one, judge


def test_the_product_s_own_step_follows_a_load_that_rises_tenfold_and_ends() -> None:
    early = [(place * 1000, 1000, 100) for place in range(60)]
    late = [(60_000 + place * 100, 1000, 100) for place in range(900)]
    looks: list[tuple[Snapshot, Decisions]] = []
    one, _ = forebay_run(trace_of(*early, *late), lambda *look: looks.append(look), scale_down_delay_ms=20_000)
    serving = [int(decisions.replicas_serving[0]) for _, decisions in looks]
    # Ten requests a second cost 0.4 s of a replica each: four at the least.
    assert 4 <= max(serving) <= 12
    assert serving[50] <= 3
    assert serving[-1] < max(serving)
    assert score_of(one).goodput > 0.8
    assert score_of(one).unfinished == 0
    assert all(int(snapshot.gpus_allocatable[0]) == 12 for snapshot, _ in looks)


def test_equal_runs_are_equal_to_the_last_byte() -> None:
    trace = build.drawn(5, 200, 40, prompt=(10, 900), output=(1, 90))
    runs = []
    for _ in range(2):
        one, judge = forebay_run(trace)
        runs.append((build.columns(one), judge.memory.safety.replicas_serving.tolist(), score_of(one)))
    assert all(runs[0][0][name].tobytes() == runs[1][0][name].tobytes() for name in runs[0][0])
    assert runs[0][1:] == runs[1][1:]


def test_a_gateway_that_begins_to_hold_is_looked_at_within_a_quarter_of_a_second() -> None:
    looks: list[int] = []
    trace = trace_of(*[(10_000 + place, 500, 200) for place in range(60)], (20_000, 4, 1))
    forebay_run(trace, lambda snapshot, _: looks.append(snapshot.now_ms % 3_600_000))
    assert 10_250 in looks
    assert looks[:9] == list(range(1_000, 10_000, 1_000))


def test_worlds_in_one_run_do_as_they_do_alone() -> None:
    traces = [build.drawn(seed, 300, 60, prompt=(10, 900), output=(1, 90)) for seed in (1, 2)]

    def playing(*which: int) -> list[bytes]:
        fleet = core_build.fleet(*({} for _ in which))
        fleet = replace(fleet, pools=tuple(f"p{place}" for place in range(len(which))))
        fleet = replace(fleet, pool=np.arange(len(which)), gpus_max=np.full(len(which), 8))
        services = [
            SimulatedService(traces[one], fleet, place, classes=(TARGETS,), world=EXACT, lanes=12)
            for place, one in enumerate(which)
        ]
        pools = [Pool((place,), 8) for place in range(len(which))]
        judge = ForebayJudge(fleet, pools)
        judge.hears_pushes = False  # one world's push makes the judgement look at all of them
        run(services, judge, [2] * len(which))
        return [one.path.last.tobytes() + one.path.score.tobytes() for one in services]

    assert playing(0, 1) == [*playing(0), *playing(1)]
