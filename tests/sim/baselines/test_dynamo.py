"""NVIDIA Dynamo's planner: static thresholds, SLA-based throughput by hand, and both together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engine_model.step_time import StepTimes
from forebay.sim.baselines.dynamo_throughput import Engine
from forebay.sim.baselines.predictors import Autoregression, Constant
from tests.sim.baselines.build import drive, rule, sample

# 10 ms a step, 1 ms a sequence, 0.1 ms a prompt token; nothing by context, so that numbers can be read.
TIMES = StepTimes(c0_ps=10 * 10**9, c1_ps=10**9, c2_ps=0, p1_ps=10**8, p2_fs=0)
PROFILE: dict[str, Any] = {"times": TIMES, "kv_tokens": 1_000_000}


@pytest.mark.parametrize(
    ("kv_milli", "running", "waiting", "starting", "expected"),
    [
        # load_scaling.py, `_agg_easy_decision`: (running + queued KV) / KV, up above 1.0 anywhere, down below 0.6
        # everywhere.
        pytest.param([1000, 500, 500], 10, [1, 0, 0], 0, 4, id="one engine above its KV"),
        pytest.param([1000, 500, 500], 10, [0, 0, 0], 0, 3, id="exactly its KV is not above"),
        pytest.param([590, 590, 590], 10, [0, 0, 0], 0, 2, id="all below 0.6"),
        pytest.param([600, 100, 100], 10, [0, 0, 0], 0, 3, id="one at 0.6 keeps all"),
        pytest.param([1000, 1000, 1000], 10, [9, 9, 9], 1, 4, id="nothing new while one starts"),
        pytest.param([0], 0, [0], 0, 1, id="the last one stays: min_endpoint"),
    ],
)
def test_load_with_static_thresholds(
    kv_milli: list[int], running: int, waiting: list[int], starting: int, expected: int
) -> None:
    looked = sample(0, ready=len(kv_milli), starting=starting, running=running, waiting=waiting, kv_milli=kv_milli)
    assert rule("dynamo-load").decide(looked) == expected


def test_load_moves_one_replica_every_five_seconds() -> None:
    changes = drive(
        rule("dynamo-load", high=6), lambda at, n: sample(at, ready=n, running=9, held=500), until_ms=60_000, replicas=2
    )
    assert changes == [(0, 3), (5000, 4), (10_000, 5), (15_000, 6)]


@pytest.mark.parametrize(
    ("isl", "osl", "itl_ms", "ttft_ms", "expected"),
    [
        # A step of b sequences: 10 + b * (1 + 0.1 * isl / osl) ms.
        pytest.param(100, 100, 50, 500, 1000 * (40 / 1.1) / (100 * 50), id="ITL bounds the batch at 40 / 1.1"),
        pytest.param(100, 100, 50, 40, 1000 * (20 / 1.1) / (100 * 30), id="TTFT leaves 30 ms for a step"),
        pytest.param(100, 100, 5000, 5000, 1000 * 64 / (100 * (10 + 64 * 1.1)), id="slots bound it at 64"),
        pytest.param(100_000, 900_000, 5000, 50_000, 1000 / (900_000 * (11 + 1 / 90)), id="KV bounds it at one"),
        pytest.param(100, 100, 5, 500, 1000 / (100 * 11.1), id="where nothing holds the SLA, one request at a time"),
    ],
)
def test_what_one_engine_can_do(isl: int, osl: int, itl_ms: int, ttft_ms: int, expected: float) -> None:
    engine = Engine(TIMES, 1_000_000, 64)
    assert engine.requests_per_s(isl, osl, isl, ttft_ms, itl_ms) == pytest.approx(expected)


def traffic(at_ms: int, replicas: int, rate: float, *, isl: int = 100, osl: int = 100, itl_ms: float = 50) -> Any:
    """Return a world in which so many requests a second have come and ended for ever."""
    requests = round(rate * max(at_ms + 10_000_000, 0) / 1000)
    return sample(
        at_ms,
        ready=replicas,
        running=1,
        arrivals_total=requests,
        finished_total=requests,
        prompt_tokens_total=requests * isl,
        generation_tokens_total=requests * osl,
        ttft_sum_ms=requests * (isl // 10 + 50),
        ttft_count=requests,
        itl_sum_ms=round(requests * osl * itl_ms),
        itl_count=requests * osl,
    )


def test_throughput_divides_the_forecast_by_what_one_engine_can_do() -> None:
    # 7.27 requests a second each, as above: 40 need 5.5. At 4 replicas the profile expects 10 + 40 * 1.1 = 54 ms of a
    # full batch, observed are 54: no correction.
    driven = rule("dynamo-throughput", batch_best=40, predictor="constant", **PROFILE)
    changes = drive(driven, lambda at, n: traffic(at, n, 40, itl_ms=54), until_ms=400_000, replicas=4)
    assert changes == [(180_000, 6)]


def test_a_slower_engine_than_profiled_gets_fewer_requests() -> None:
    driven = rule("dynamo-throughput", batch_best=40, predictor="constant", **PROFILE)
    changes = drive(driven, lambda at, n: traffic(at, n, 40, itl_ms=2 * 54), until_ms=200_000, replicas=4)
    # Twice the expected ITL halves the target to 25 ms: (15 / 1.1) / (100 * 25 ms) = 5.45 requests a second.
    assert changes == [(180_000, 8)]


def test_it_holds_until_a_request_has_a_length_and_leaves_one_when_none_comes() -> None:
    driven = rule("dynamo-throughput", predictor="constant", **PROFILE)
    assert [driven.decide(sample(at, ready=3)) for at in (0, 180_000)] == [3, 3]
    first = {"arrivals_total": 9000, "prompt_tokens_total": 9000, "generation_tokens_total": 9000}
    assert driven.decide(sample(360_000, ready=3, **first)) == 3  # none has ended, so none has a length
    assert driven.decide(sample(540_000, ready=3, **first, finished_total=9000)) == 3
    after = {"arrivals_total": 18_000, "prompt_tokens_total": 18_000, "generation_tokens_total": 18_000}
    assert driven.decide(sample(720_000, ready=3, **after, finished_total=18_000)) > 0
    assert driven.decide(sample(900_000, ready=3, **after, finished_total=18_000)) == 1


def test_both_keep_the_floor_of_the_slow_loop_and_grow_above_it() -> None:
    def calm(at_ms: int, replicas: int) -> Any:
        return traffic(at_ms, replicas, 40, itl_ms=54)

    driven = rule("dynamo-both", batch_best=40, predictor="constant", **PROFILE)
    changes = drive(driven, calm, until_ms=360_000, replicas=8)
    # An idle batch of one is far within the SLA, so the fast loop shrinks one at a time; the floor lifts it to six.
    assert changes[0][1] == 7
    assert changes[-1][1] == 6
    assert changes[-1][0] == 180_000


@pytest.mark.parametrize(
    ("running", "waiting", "expected"),
    [
        pytest.param([20, 20], [0, 0], 2, id="30 ms a step holds ITL, one fewer would have 50"),
        pytest.param([45, 45], [0, 0], 3, id="55 ms a step on every engine misses it"),
        pytest.param([45, 5], [0, 0], 2, id="one engine that holds it is enough to wait"),
        pytest.param([5, 5], [60, 60], 3, id="sixty prompts of 10 ms miss TTFT on every engine"),
        pytest.param([5, 5], [0, 0], 1, id="one could do the work of both within 80 %"),
    ],
)
def test_both_changes_one_replica_by_expected_latencies(running: list[int], waiting: list[int], expected: int) -> None:
    looked = sample(
        0, ready=2, running=running, waiting=waiting, kv_milli=100, arrivals_total=10, prompt_tokens_total=1000
    )
    assert rule("dynamo-both", batch_best=256, **PROFILE).decide(looked) == expected


@pytest.mark.parametrize(
    ("points", "forecast"),
    [
        # predictors.py: minimum_data_points 5, constant data forecast themselves, leading zeros are no load.
        pytest.param([], 0, id="nothing yet"),
        pytest.param([1, 5, 2], 2, id="fewer than five points: the last one"),
        pytest.param([7] * 9, 7, id="a constant series"),
        pytest.param([0, 0, 0, 3], 3, id="zeros before the first load are skipped"),
        # (0, 1, 0) "collapses", as predictors.py says, and is fitted again to log1p(y): not quite 80.
        pytest.param([10, 20, 30, 40, 50, 60, 70], 80.5, id="a straight line goes on"),
    ],
)
def test_the_stand_in_for_arima(points: list[float], forecast: float) -> None:
    series = Autoregression()
    for point in points:
        series.add(point)
    assert series.next() == pytest.approx(forecast, abs=0.01)


def test_the_stand_in_for_arima_follows_an_autoregression_better_than_the_last_value() -> None:
    dice = np.random.default_rng(7)
    series, last, level = Autoregression(), Constant(), 100.0
    errors = []
    for _ in range(200):
        errors.append((abs(series.next() - level), abs(last.next() - level)))
        series.add(level)
        last.add(level)
        level = 100 + 0.3 * (level - 100) + dice.normal(0, 10)
    ours, naive = np.mean(errors[50:], axis=0)
    assert ours < 0.9 * naive


@given(st.lists(st.floats(0, 1e9), max_size=40))
def test_any_series_has_a_finite_forecast(points: list[float]) -> None:
    series = Autoregression()
    for point in points:
        series.add(point)
    assert 0 <= series.next() < np.inf


@pytest.mark.parametrize("name", ["dynamo-throughput", "dynamo-both"])
def test_a_profile_is_needed(name: str) -> None:
    with pytest.raises(ValueError, match="no default for kv_tokens, times"):
        rule(name)
