"""How the warm pool is sized, stage by stage and number by number."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from forebay.core import learning
from forebay.core.fleet import Mode
from forebay.core.memory import RISE_BINS
from forebay.core.reasons import Reason
from forebay.core.snapshot import State
from forebay.core.step import STAGES, step
from forebay.core.units import UNKNOWN
from tests.core import build

if TYPE_CHECKING:
    from forebay.core.decision import Decision

NOW_MS = 10_000_000
WARM = {"state": State.WARM}


def decide(
    *, serving: int = 1, running: int = 0, base_micro: int = 0, rises: dict[int, int] | None = None, **service: Any
) -> Decision:
    """Decide once for `serving` replicas with so many requests each, the base and the measured rises given."""
    spec = build.fleet(service)
    memory = build.settled(spec, serving, now_ms=NOW_MS)
    rise = np.zeros((1, RISE_BINS), np.int64)
    for replicas, periods in (rises or {}).items():
        rise[0, replicas] = periods
    learned = replace(memory.learned, base_micro=np.array([base_micro]), rise=rise)
    memory = replace(memory, learned=learned)
    rows = [{"requests_running": running} for _ in range(serving)]
    _, decisions = step(spec, memory, build.snapshot(NOW_MS, rows))
    return decisions.decision(0)


# A base of 0.9 replicas is 7.2 requests at once, which vary by 2.68, a third of a replica: 0.9 + 0.335 are two.
# Five times that are 4.5, and 36 requests, which vary by six, three quarters of a replica: 5.25 are six.
BASE = {"base_micro": 900_000}


@pytest.mark.parametrize(
    ("more", "warm", "reason"),
    [
        pytest.param({}, 0, Reason.NONE, id="without traffic there is nothing to burst"),
        pytest.param(BASE, 5, Reason.WARM_POOL_POLICY_BURST, id="fivefold: six replicas, of which one serves"),
        pytest.param(BASE | {"serving": 2}, 4, Reason.WARM_POOL_POLICY_BURST, id="two serve: four are warm"),
        pytest.param(
            BASE | {"burst_multiplier_milli": 1000}, 1, Reason.WARM_POOL_MEASURED, id="no burst: the base itself"
        ),
        # A burst that takes three minutes is half grown when a cold start of 90 s is done: 1 + 4 x 0.5 = three times.
        # 2.7 replicas and 0.58: four.
        pytest.param(
            BASE | {"burst_within_ms": 180_000}, 3, Reason.WARM_POOL_POLICY_BURST, id="a slow burst needs less"
        ),
        pytest.param(BASE | {"warm_gpus_max": 2}, 2, Reason.WARM_POOL_LIMITED, id="no more than maxIdleGPUs"),
        pytest.param(
            BASE | {"warm_gpus_max": 7, "gpus_per_replica": 4}, 1, Reason.WARM_POOL_LIMITED, id="GPUs, not replicas"
        ),
        pytest.param(BASE | {"replicas_max": 3}, 2, Reason.WARM_POOL_LIMITED, id="no more than maxReplicas in all"),
        pytest.param(BASE | {"rises": {0: 100}}, 4, Reason.WARM_POOL_POLICY_BURST, id="history is short: it fades"),
        pytest.param(
            BASE | {"rises": {0: 380, 3: 20}}, 4, Reason.WARM_POOL_MEASURED, id="history is long: what was seen"
        ),
        pytest.param(
            BASE | {"rises": {0: 400}}, 1, Reason.WARM_POOL_MEASURED, id="bursts that never came are not awaited"
        ),
        pytest.param(
            BASE | {"rises": {0: 397, 9: 3}},
            1,
            Reason.WARM_POOL_MEASURED,
            id="one period in 133 may miss: 99 % is asked",
        ),
        pytest.param(BASE | {"serving": 7}, 0, Reason.WARM_POOL_DRAWN, id="the burst is being served"),
        pytest.param(
            BASE | {"serving": 0, "batch_class": True, "replicas_min": 0},
            0,
            Reason.NONE,
            id="none where nothing serves",
        ),
    ],
)
def test_the_size_of_the_pool(more: dict[str, Any], warm: int, reason: Reason) -> None:
    serving = more.get("serving", 1)
    decision = decide(**more, running=8 if serving == 7 else 1)
    verdict = decision.steps[STAGES.index("warm-pool")]
    assert (decision.replicas_warm, verdict.reason) == (warm, reason)


class Life:
    """One service second by second; the toy of the base and the periods."""

    def __init__(self) -> None:
        self.spec = build.fleet({"lead_cold_ms": 30_000})
        self.memory = build.settled(self.spec, 9, now_ms=NOW_MS)
        self.now_ms = NOW_MS
        self.arrived = 0

    def seconds(self, count: int, arrivals: int, **gateway: int) -> Life:
        for _ in range(count):
            self.now_ms += 1000
            self.arrived += arrivals
            row = {"arrivals_total": self.arrived, "arrival_prompt_tokens_total": 500 * self.arrived}
            shot = build.snapshot(self.now_ms, [{}] * 9, [row | gateway])
            self.memory, _ = step(self.spec, self.memory, shot)
        return self

    @property
    def base_milli(self) -> int:
        return int(self.memory.learned.base_micro[0]) // 1000

    @property
    def rises(self) -> dict[int, int]:
        row = self.memory.learned.rise[0]
        return {int(place): int(row[place]) for place in np.flatnonzero(row)}


def test_the_base_is_the_first_traffic_when_it_has_filled_the_stable_window() -> None:
    life = Life().seconds(59, 2)
    assert life.base_milli == 0
    # 2 requests/s x (256 x 26.4 ms / 8 + 56 ms) = 1.8 replicas
    assert 1600 < life.seconds(5, 2).base_milli < 2000


def test_a_burst_is_not_the_base_until_it_has_lasted_five_minutes() -> None:
    life = Life().seconds(100, 2)
    base = life.base_milli
    assert life.seconds(240, 10).base_milli <= base * 2
    assert life.seconds(120, 10).base_milli > base * 4


def test_the_base_forgets_within_minutes_when_traffic_stops() -> None:
    life = Life().seconds(100, 2)
    assert life.seconds(420, 0).base_milli < 200


def test_the_base_does_not_follow_what_nobody_can_see() -> None:
    life = Life().seconds(100, 2)
    base = life.base_milli
    for _ in range(100):
        life.now_ms += 1000
        unread = [build.UNREAD] * 9
        life.memory, _ = step(life.spec, life.memory, build.snapshot(life.now_ms, unread, [{"age_ms": 9000}]))
    assert life.base_milli == base


def test_rises_above_the_base_are_counted_by_periods_of_a_cold_start() -> None:
    # The first traffic is the base; then eight periods pass in which nothing rises above it.
    life = Life().seconds(100, 2)
    quiet = life.rises[0]
    assert life.seconds(240, 2).rises == {0: quiet + 8}
    # Ten requests/s need seven or more above it, in each of the two periods that the burst touches.
    rises = life.seconds(60, 10).rises
    assert sum(count for rise, count in rises.items() if rise >= 7) == 2


def test_a_pool_for_bursts_of_a_large_fleet_is_no_smaller_than_they_were() -> None:
    # A burst of fifty was once remembered as "more than 31", and met with 32.
    many = {"replicas_max": 200, "warm_gpus_max": 200}
    learned = learning.learn_rise(build.initial_memory(build.fleet({}), 0).learned, np.array([True]), np.array([50]))
    place = int(np.flatnonzero(learned.rise[0])[0])
    assert 50 <= decide(**(BASE | many), running=1, rises={place: 400}).replicas_warm <= 57


# One replica of eight requests serves and is half busy with four; four more are held warm for a burst of five times.
@pytest.mark.parametrize(
    ("running", "last", "more", "serving", "reason"),
    [
        pytest.param(
            UNKNOWN, 4, {"gateway": {"age_ms": 9000}}, 4, Reason.WARM_SERVES, id="nothing is known: none is parked"
        ),
        pytest.param(UNKNOWN, 1, {"gateway": {"age_ms": 9000}}, 1, Reason.NONE, id="nor promoted"),
        pytest.param(1, 1, {}, 1, Reason.NONE, id="an eighth is busy: the rest waits"),
        pytest.param(5, 1, {}, 2, Reason.WARM_SERVES, id="more than half is busy: as many serve beside it"),
        pytest.param(5, 2, {}, 2, Reason.WARM_SERVES, id="and stay"),
        pytest.param(5, 4, {}, 3, Reason.WARM_SERVES, id="but what is beyond four times the need is parked again"),
        pytest.param(5, 4, {"gateway": {"age_ms": 9000}}, 4, Reason.WARM_SERVES, id="unless something is unknown"),
        pytest.param(
            5, 1, {"mode": Mode.MANUAL, "replicas_manual": 1}, 1, Reason.NONE, id="not where a person decides"
        ),
        pytest.param(5, 5, {}, 3, Reason.WARM_SERVES, id="nor do all that once served go on serving"),
    ],
)
def test_what_is_held_serves_where_it_helps(
    running: int, last: int, more: dict[str, Any], serving: int, reason: Reason
) -> None:
    gateway = more.get("gateway", {})
    spec = build.fleet({"warm_gpus_max": 4} | {name: value for name, value in more.items() if name != "gateway"})
    memory = build.settled(spec, last, now_ms=NOW_MS)
    memory = replace(
        memory,
        safety=replace(memory.safety, replicas_warm=np.array([5 - last])),
        learned=replace(memory.learned, base_micro=np.array([900_000])),
        recent=replace(memory.recent, timers=replace(memory.recent.timers, needed=np.array([1]))),
    )
    first, others = ({"requests_running": running}, {}) if running != UNKNOWN else (build.UNREAD, build.UNREAD)
    rows = [first] + [others] * (last - 1) + [others | WARM] * (5 - last)
    _, decisions = step(spec, memory, build.snapshot(NOW_MS, rows, [gateway]))
    decision = decisions.decision(0)
    verdict = decision.steps[STAGES.index("promotion")]
    assert (verdict.replicas, verdict.reason) == (serving, reason)


def test_a_restart_does_not_look_like_a_rise() -> None:
    spec = build.fleet({"lead_cold_ms": 10_000})
    memory = build.initial_memory(spec, NOW_MS)
    for second in range(60):
        shot = build.snapshot(NOW_MS + 1000 * second, [{"requests_running": 8}] * 9, [{"arrivals_total": 9 * second}])
        memory, _ = step(spec, memory, shot)
    assert memory.learned.rise.sum() == 0
