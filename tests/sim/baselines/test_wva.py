"""llm-d's WVA: its analyzers by the thresholds of its ConfigMap, and what its HPA makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forebay.sim.baselines.wva import Tokens, WvaSettings
from tests.sim.baselines.build import drive, rule, sample

# The HPA of WVA's samples (config/samples/hpa-integration.yaml) does not stabilize; nor shall it tolerate anything,
# so that a test sees what WVA emits.
BARE = {"up_stabilization_ms": 0, "down_stabilization_ms": 0, "tolerance_milli": 1}


@pytest.mark.parametrize(
    ("kv_milli", "waiting", "held", "expected"),
    [
        # Thresholds 0.80 and 5; scale-up where the mean spare of those below both is under 0.10 or 3.
        pytest.param([400, 400, 400], 0, 0, 2, id="one fewer would leave a spare of 0.20"),
        pytest.param([500, 500, 500], 0, 0, 3, id="one fewer would leave a spare of 0.05"),
        pytest.param([700, 700, 700], 0, 0, 3, id="a spare of exactly 0.10 is enough"),
        pytest.param([710, 700, 700], 0, 0, 4, id="a spare below 0.10 is not"),
        pytest.param([300, 300, 300], 2, 0, 3, id="a queue of two leaves a spare of three"),
        pytest.param([300, 300, 300], 3, 0, 4, id="a queue of three leaves a spare of two"),
        pytest.param([300, 300, 300], 0, 9, 4, id="a fair share of what the gateway holds is a queue as well"),
        pytest.param([800, 300, 300], 0, 0, 2, id="a saturated replica does not count, and the two others spare one"),
        pytest.param([800, 300], 0, 0, 2, id="only one that is not saturated is kept"),
        pytest.param([900, 900, 900], 9, 0, 4, id="all saturated"),
        pytest.param([100], 0, 0, 1, id="the last replica stays"),
    ],
)
def test_v1_changes_one_replica_by_percentages(kv_milli: list[int], waiting: int, held: int, expected: int) -> None:
    looked = sample(0, ready=len(kv_milli), running=1, kv_milli=kv_milli, waiting=waiting, held=held)
    assert rule("llm-d-wva-v1", low=1, **BARE).decide(looked) == expected


def test_v1_asks_for_nothing_new_until_what_it_asked_for_is_ready() -> None:
    driven = rule("llm-d-wva-v1", **BARE)
    assert driven.decide(sample(0, ready=3, kv_milli=900)) == 4
    assert driven.decide(sample(15_000, ready=3, starting=1, kv_milli=900)) == 4
    assert driven.decide(sample(30_000, ready=4, kv_milli=900)) == 5


@pytest.mark.parametrize(
    ("kv_milli", "running", "waiting", "starting", "expected"),
    [
        # A replica holds 0.8 of its KV; up where demand / 0.85 exceeds all that exist, down by demand / 0.70.
        pytest.param(640, 8, 0, 0, 4, id="four at 0.64 of 0.8 are between both"),
        pytest.param(680, 8, 0, 0, 4, id="four at 0.85 of what they hold are just enough"),
        pytest.param(720, 8, 0, 0, 5, id="2.88 / 0.85 is more than four times 0.8"),
        pytest.param(720, 8, 0, 1, 4, id="a replica that starts counts as supply"),
        pytest.param(400, 8, 0, 0, 3, id="1.6 / 0.70 leaves one whole replica of 0.8"),
        pytest.param(100, 8, 0, 0, 1, id="0.4 / 0.70 leaves three"),
        pytest.param(400, 4, 4, 0, 5, id="four that wait ask for as much as four that run: 3.2 / 0.85"),
    ],
)
def test_v2_changes_by_tokens(kv_milli: int, running: int, waiting: int, starting: int, expected: int) -> None:
    driven = rule("llm-d-wva-v2", batch_best=1000, **BARE)
    looked = sample(0, ready=4, starting=starting, running=running, waiting=waiting, kv_milli=kv_milli)
    assert driven.decide(looked) == expected + (starting if expected >= 4 else 0)


def test_v2_learns_from_a_long_queue_that_computing_binds_before_memory() -> None:
    usage, calm = np.array([0.3, 0.3]), sample(ready=2, running=10, kv_milli=300)
    tokens = Tokens(WvaSettings(), batch_best=1000)
    assert tokens.emit(calm, 2, usage, np.zeros(2)) == 2
    tokens.emit(calm, 2, usage, np.full(2, 10.0))
    # That queue showed that 0.3 of the KV is all a replica can work on: 0.6 / 0.85 of demand needs more than two.
    assert tokens.emit(calm, 2, usage, np.zeros(2)) == 3


def test_a_peak_counts_for_a_minute() -> None:
    def one_peak(at_ms: int, replicas: int) -> Any:
        return sample(at_ms, ready=replicas, running=1, kv_milli=900 if 0 <= at_ms < 15_000 else 620)

    driven = rule("llm-d-wva-v1", down_stabilization_ms=10**9, up_stabilization_ms=0, tolerance_milli=1)
    changes = drive(driven, one_peak, until_ms=300_000, replicas=3)
    assert changes == [(30_000, 4)]


def test_the_chart_waits_four_minutes_both_ways() -> None:
    def look(at_ms: int, replicas: int) -> Any:
        total_milli = 1600 if 1_000_000 <= at_ms < 2_000_000 else 800
        return sample(at_ms, ready=replicas, running=8, kv_milli=total_milli // replicas)

    (up_ms, up), (down_ms, down) = drive(rule("llm-d-wva-v2", batch_best=1000), look, until_ms=3_000_000, replicas=2)
    assert (up, down) == (3, 2)
    assert 1_240_000 <= up_ms <= 1_300_000
    # The greatest reading of the last minute and the age of the sample come on top.
    assert 2_290_000 <= down_ms <= 2_330_000


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        pytest.param(9, 10, id="one more than nine is 11 %"),
        pytest.param(10, 10, id="one more than ten is the tolerance"),
        pytest.param(12, 12, id="one more than twelve is 8 %"),
    ],
)
def test_the_tolerance_of_its_hpa_ignores_one_replica_of_many(replicas: int, expected: int) -> None:
    driven = rule("llm-d-wva-v1", up_stabilization_ms=0)
    assert driven.decide(sample(0, ready=replicas, running=1, kv_milli=900)) == expected


def test_from_zero_it_starts_one_replica_itself() -> None:
    driven = rule("llm-d-wva-v2", low=0)
    assert driven.decide(sample(0, ready=0)) == 0
    assert driven.decide(sample(15_000, ready=0, held=3)) == 1
