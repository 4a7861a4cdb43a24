"""Shrinking waits, is judged by halves of the delay, and is not tried again for a while where it was regretted."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.core.reasons import Reason
from forebay.core.snapshot import State
from forebay.core.step import STAGES, step
from tests.core import build

NOW_MS = 10_000_000
QUIET: dict[str, Any] = {}


class Service:
    """One service whose replicas are what it decided a second ago."""

    def __init__(self, last: int, **service: Any) -> None:
        self.spec = build.fleet({"warm_gpus_max": 0, "burst_multiplier_milli": 1000} | service)
        self.memory = build.settled(self.spec, last, now_ms=NOW_MS)
        self.serving = last
        self.now_ms = NOW_MS
        self.reasons: set[Reason] = set()

    def seconds(self, count: int, *, running: int = 0, waiting: int = 0, **replica: Any) -> list[int]:
        """Let every replica hold so many requests; return what was decided second by second."""
        decided = []
        for _ in range(count):
            self.now_ms += 1000
            tokens = {"generation_tokens_total": self.now_ms // 1000}
            rows = [
                tokens
                | {"requests_running": running, "requests_waiting": waiting, "kv_tokens_used": 1200 * running}
                | replica
            ] * self.serving
            self.memory, decisions = step(self.spec, self.memory, build.snapshot(self.now_ms, rows))
            self.serving = int(decisions.replicas_serving[0])
            self.reasons = {Reason(int(reason)) for reason in decisions.reason[STAGES.index("consolidation")]}
            decided.append(self.serving)
        return decided


def test_a_replica_that_is_not_needed_goes_after_the_delay() -> None:
    service = Service(2)
    assert service.seconds(120) == [2] * 120
    assert service.reasons == {Reason.SHRINK_WAITS}
    assert service.seconds(1) == [1]
    assert service.reasons == {Reason.SHRINK}


def test_several_go_one_a_second() -> None:
    service = Service(5)
    service.seconds(120)
    assert service.seconds(5) == [4, 3, 2, 1, 1]


@pytest.mark.parametrize(("oldest_ms", "kept"), [(300, False), (400, True)])
def test_nothing_that_was_ordered_goes_while_somebody_waits_beyond_the_promise(oldest_ms: int, kept: bool) -> None:
    # 337 ms of the promise are left for waiting. One replica serves, four take very long to start.
    service = Service(5)
    rows = [{"requests_running": 1}] + [{"state": State.STARTING, "ready": False}] * 4
    gateway = {"requests_held": 1, "held_prompt_tokens": 9, "held_oldest_ms": oldest_ms}
    decided = []
    for _ in range(140):
        service.now_ms += 1000
        service.memory, decisions = step(service.spec, service.memory, build.snapshot(service.now_ms, rows, [gateway]))
        decided.append(int(decisions.replicas_serving[0]))
    assert (decided[-1] == 5) is kept


def test_what_was_needed_in_the_delay_is_kept() -> None:
    service = Service(5)
    service.seconds(30)
    # 13 requests wait for a moment where each replica has eight slots: 3 x 8 > 5 + 13.
    service.seconds(1, running=1, waiting=3)
    assert min(service.seconds(150)) >= 2


def test_unknown_time_stops_the_clock_and_does_not_set_it_back() -> None:
    service = Service(2)
    service.seconds(100)
    assert service.seconds(50, age_ms=9000) == [2] * 50
    assert service.reasons == {Reason.GATEWAY_DEMAND_ONLY}
    assert service.seconds(19) == [2] * 19
    assert 1 in service.seconds(4)


def test_need_that_comes_back_starts_the_clock_anew() -> None:
    service = Service(2)
    service.seconds(100)
    service.seconds(10, running=8)
    # The stable window forgets them after a minute; until then two are needed.
    assert min(service.seconds(100)) == 2


@pytest.mark.parametrize(
    ("running", "kv", "goes"),
    [
        pytest.param(2, 1200, True, id="four requests fit into one replica with a fifth to spare"),
        # 2 x 3.5 of 8 slots are 0.875 of one replica: more than 80 %.
        pytest.param(3, 1200, False, id="six and their margin for chance do not"),
        pytest.param(1, 60_000, False, id="nor does a KV cache of 120,000 tokens in 90 % of 100,000 slots"),
    ],
)
def test_fewer_must_suffice_with_a_fifth_to_spare(running: int, kv: int, goes: bool) -> None:
    service = Service(2)
    decided = service.seconds(200, running=running, kv_tokens_used=kv)
    assert (min(decided) == 1) == goes


def test_a_regretted_removal_is_not_tried_again_for_half_an_hour() -> None:
    service = Service(2, scale_down_delay_ms=10_000)
    assert 1 in service.seconds(30, running=2)
    assert service.seconds(1, running=4, waiting=150) == [2]
    assert service.seconds(200, running=2) == [2] * 200
    assert service.reasons == {Reason.SHRINK_WAS_REGRETTED}
    service.now_ms += 1_800_000
    assert min(service.seconds(100, running=2)) == 1


def delay_s(service: Service) -> int:
    return int(service.memory.recent.timers.delay_ms[0]) // 1000


def test_a_burst_that_comes_back_doubles_the_delay_up_to_eightfold_and_calm_halves_it() -> None:
    service = Service(4, scale_down_delay_ms=10_000)
    delays = []
    for _ in range(5):
        while service.serving > 1:
            assert service.now_ms < NOW_MS + 2_000_000
            service.seconds(1)
        service.seconds(1, running=8, waiting=500)
        delays.append(delay_s(service))
    assert delays == [20, 40, 80, 80, 80]
    # Between bursts that are closer than that nothing goes any more.
    assert min(service.seconds(70)) == service.serving > 1
    # 160 s without one halve it, and again.
    service.seconds(160)
    assert delay_s(service) == 40
    service.seconds(160)
    assert delay_s(service) == 20


def test_the_same_load_does_not_stretch_the_delay() -> None:
    service = Service(2, scale_down_delay_ms=10_000)
    assert 1 in service.seconds(30, running=2)
    service.seconds(1, running=3)
    assert delay_s(service) < 0


def test_a_removal_is_tried_again_when_the_load_has_become_less() -> None:
    service = Service(2, scale_down_delay_ms=10_000)
    assert 1 in service.seconds(30, running=2)
    assert service.seconds(1, running=4, waiting=150) == [2]
    service.seconds(100, running=2)
    assert min(service.seconds(100)) == 1
