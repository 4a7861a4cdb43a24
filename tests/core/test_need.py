"""Three currencies: prefill, decode, slots. A replica as in test_capacity, its prior's scale 1.1 included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forebay.core import learning, need
from forebay.core.capacity import capacity_of_one
from forebay.core.forecast import Rates
from forebay.core.reasons import Reason
from forebay.core.units import UNKNOWN
from tests.core import build
from tests.core.test_sight import look


def needed(service: dict[str, Any] | None = None, **rates: int) -> tuple[need.Need, int]:
    """The need, and the replicas for it, of a service with prompts of 1000 tokens and answers of 200."""
    spec = build.fleet(service or {})
    memory = build.initial_memory(spec, 0)
    learned = build.replace(
        memory.learned,
        prompts=np.array([1]),
        prompt_tokens=np.array([1000]),
        answers_twice=np.array([2]),
        answer_tokens=np.array([200]),
    )
    usual = learning.what_is_usual(spec, learned)
    capacity = capacity_of_one(spec, usual, look([]))
    names = ("stable", "stable_prompt", "burst", "burst_prompt", "burst_sure", "running_stable", "running_burst")
    columns = {f"{name}_milli": np.array([rates.get(name, 0)]) for name in names}
    result = need.need_of(Rates(burst=np.array([rates.get("burst", 0) > 0]), **columns), capacity, usual)
    return result, int(need.replicas_for(result.milli, spec, capacity, usual)[0])


ONE_A_SECOND = {"stable": 1000, "stable_prompt": 1_000_000}
CPU = {"step_c0_ps": UNKNOWN, "batch_max": 4}


@pytest.mark.parametrize(
    ("service", "rates", "milli", "reason"),
    [
        pytest.param({}, {}, 0, Reason.NO_DEMAND, id="nothing comes"),
        # One request a second: 0.6 s of steps and 0.1 s of prefill.
        pytest.param({}, ONE_A_SECOND, 700, Reason.DECODE_DEMAND, id="both kinds of work share the replica's time"),
        # Ten times the prompt: 1 s of prefill.
        pytest.param(
            {},
            {"stable": 1000, "stable_prompt": 10_000_000},
            1600,
            Reason.PREFILL_DEMAND,
            id="long prompts ask by prefill",
        ),
        # 10 s of prefill a second, of which a replica may do 0.913: decode has nearly none.
        pytest.param(
            {}, {"stable": 100, "stable_prompt": 100_000_000}, 10_953, Reason.TTFT_QUEUEING, id="the prefill queue asks"
        ),
        pytest.param(
            {},
            ONE_A_SECOND | {"running_stable": 16_000},
            2000,
            Reason.BATCH_OCCUPANCY,
            id="batches are fuller than that",
        ),
        pytest.param(
            {},
            ONE_A_SECOND | {"burst": 5000, "burst_prompt": 5_000_000},
            3500,
            Reason.BURST_DETECTED,
            id="a burst asks for five times as much",
        ),
        pytest.param(
            {"itl_mean_ms": 20}, ONE_A_SECOND, 700, Reason.SLO_INFEASIBLE, id="infeasible is said, not chased"
        ),
        pytest.param(CPU, ONE_A_SECOND, 0, Reason.NO_DEMAND, id="without a model rates are not worth replicas"),
        pytest.param(CPU, ONE_A_SECOND | {"running_stable": 3000}, 750, Reason.BATCH_OCCUPANCY, id="batches are"),
        pytest.param(
            CPU,
            ONE_A_SECOND | {"running_stable": 3000, "burst": 2000},
            1500,
            Reason.BURST_DETECTED,
            id="and a burst fills them as much faster as it arrives",
        ),
    ],
)
def test_the_need(service: dict[str, Any], rates: dict[str, int], milli: int, reason: Reason) -> None:
    result, _ = needed(service, **rates)
    assert result.milli.tolist() == [milli]
    assert Reason(int(result.reason[0])) is reason


def test_prefill_and_decode_are_told_apart() -> None:
    result, _ = needed(**ONE_A_SECOND)
    assert (result.prefill_milli.tolist(), result.decode_milli.tolist()) == ([100], [600])


def test_equal_requests_a_second_with_other_lengths_need_other_numbers() -> None:
    short, _ = needed(stable=1000, stable_prompt=100_000)
    long, _ = needed(stable=1000, stable_prompt=8_000_000)
    assert (short.milli.tolist(), long.milli.tolist()) == ([610], [1400])


def test_of_a_burst_only_what_is_beyond_chance_is_sure() -> None:
    result, _ = needed(stable=1000, stable_prompt=1_000_000, burst=5000, burst_prompt=5_000_000, burst_sure=800)
    assert (result.milli.tolist(), result.sure_milli.tolist(), result.stable_milli.tolist()) == ([3500], [2800], [700])


def test_needs_beyond_all_measure_still_grow_with_their_certainty() -> None:
    # 10^9 thousandths is the most; by rates, 971,523 of 971,523.5 came out less than 971,522 of 971,522.1.
    needs = [needed(stable=1, burst=10**11, burst_sure=sure)[0].sure_milli.item() for sure in (970, 971, 972)]
    assert needs == [970_000_000, 971_000_000, 972_000_000]


@pytest.mark.parametrize(
    ("service", "rates", "replicas"),
    [
        # 0.735 of 8 slots are 5.9 requests at once, which vary by 2.4: 0.30 replicas, more than 15 %.
        pytest.param({}, {"stable": 1050, "stable_prompt": 1_050_000}, 2, id="few slots need a margin for chance"),
        # 200 replicas of 8 slots: 1600 requests vary by 40, five replicas; 15 % are 30.
        pytest.param({"replicas_max": 999}, {"running_stable": 1_600_000}, 230, id="many need the policy's headroom"),
        pytest.param({}, {"running_stable": 100}, 1, id="a tenth of a request is one replica"),
        pytest.param({}, {}, 0, id="nothing is none"),
        # CPU: 3 of 4 slots vary by 1.73: (3 + 1.73) / 4 = 1.18
        pytest.param(CPU, {"running_stable": 3000}, 2, id="three of four slots are too many for one"),
        pytest.param(CPU, {"running_stable": 2000}, 1, id="two of four are not"),
    ],
)
def test_whole_replicas(service: dict[str, Any], rates: dict[str, int], replicas: int) -> None:
    assert needed(service, **rates)[1] == replicas
