"""What one replica can do: every number here is worked out by hand.

A decode step of B sequences takes 20 + 0.5*B ms; a prompt of 1000 tokens takes 100 ms to prefill.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from forebay.core import learning
from forebay.core.capacity import Capacity, capacity_of_one
from forebay.core.units import UNKNOWN
from tests.core import build
from tests.core.test_sight import look

PS_PER_MS = build.PS_PER_MS


def capacity(service: dict[str, Any], seen: Any = None, **learned: int) -> Capacity:
    """Work out one service's capacity for prompts of 1000 tokens and answers of 200, unless said."""
    spec = build.fleet(service)
    sums = {"prompts": 1, "prompt_tokens": 1000, "answers_twice": 2, "answer_tokens": 200} | learned
    memory = build.initial_memory(spec, 0)
    known = replace(memory.learned, **{name: np.array([value]) for name, value in sums.items()})
    return capacity_of_one(spec, learning.what_is_usual(spec, known), look([]) if seen is None else seen)


@pytest.mark.parametrize(
    ("service", "learned", "column", "expected"),
    [
        # 20 + 0.5 x 8 ms
        pytest.param({}, {}, "step_us", 24_000, id="a step of eight sequences"),
        # 200 tokens x 24 ms / 8 sequences
        pytest.param({}, {}, "answer_us", 600_000, id="an answer's share of the steps"),
        pytest.param({}, {}, "prefill_us", 100_000, id="a prompt's prefill"),
        # 200 x 24 ms + 100 ms
        pytest.param({}, {}, "residence_ms", 4900, id="a request's time in the batch"),
        # 500 + 150 for 1000 prompt tokens - 100 prefill - 24 step - 200 promotion
        pytest.param({}, {}, "slack_ms", 326, id="what the TTFT target leaves for waiting"),
        pytest.param({}, {}, "batch_best", 8, id="slots bound the batch"),
        # 4000 KV tokens / (1000 + 200 of a whole sequence)
        pytest.param({"kv_tokens_prior": 4000}, {}, "batch_best", 3, id="the KV budget bounds the batch"),
        pytest.param({"kv_tokens_prior": 100}, {}, "batch_best", 1, id="a sequence that does not fit is tried alone"),
        pytest.param({"kv_tokens_prior": UNKNOWN}, {}, "batch_best", 8, id="an unknown KV budget bounds nothing"),
        # Each sequence costs a step 0.5 ms of its own and a 200th of a prefill, 0.5 ms: 20 + B stay within 78.1 %
        # of 50, so that 99 % of the requests, 2.326 deviations of 12 % away, stay within 50.
        pytest.param({"batch_max": 64}, {}, "batch_best", 19, id="the ITL target bounds the batch, prefill counted"),
        # 13 sequences stay within 85 % of that; their step takes 26.5 ms: 200 x 26.5 / 13.
        pytest.param(
            {"batch_max": 64}, {}, "answer_keep_us", 407_692, id="at 85 % of the step time an answer costs more"
        ),
        # 200 x 29.5 / 19
        pytest.param({"batch_max": 64}, {}, "answer_us", 310_526, id="than at the whole of it"),
        # 1.645 deviations: 83.5 % of 50
        pytest.param(
            {"batch_max": 64, "attainment_permille": 950}, {}, "batch_best", 21, id="a lesser promise takes more"
        ),
        pytest.param(
            {"batch_max": 64, "attainment_permille": 500}, {}, "batch_best", 30, id="half of the requests: the mean"
        ),
        pytest.param({}, {}, "answer_keep_us", 600_000, id="but not where the slots bound both"),
        pytest.param({"itl_mean_ms": 20}, {}, "feasible", False, id="a step of one takes 20.5 ms: 20 is infeasible"),
        pytest.param({"itl_mean_ms": 20}, {}, "batch_best", 8, id="infeasible: slots and KV alone, nothing is chased"),
        pytest.param(
            {"ttft_target_ms": 1, "ttft_per_1k_prompt_tokens_ms": 100}, {}, "feasible", False, id="so is TTFT"
        ),
        pytest.param({}, {}, "feasible", True, id="the default promise can be kept"),
        # x = 2 x (650 - 100 - 24) / 100 = 10.52; x / (1 + x) = 0.9131
        pytest.param({}, {}, "prefill_share_milli", 913, id="queueing bounds the prefill share"),
        # 650 x 0.85 = 552.5: x = 2 x 428.5 / 100 = 8.57; x / (1 + x) = 0.8955
        pytest.param({}, {}, "prefill_keep_milli", 895, id="at 85 % of the TTFT target"),
        pytest.param(
            {"ttft_target_ms": 1, "ttft_per_1k_prompt_tokens_ms": 100}, {}, "prefill_share_milli", 1000, id="lifted"
        ),
        # Half the prompt cached: 500 tokens x 0.1 ms
        pytest.param(
            {},
            {"prefix_query_tokens": 10, "prefix_hit_tokens": 5},
            "prefill_us",
            50_000,
            id="cached tokens cost nothing",
        ),
        # 50 ms / 1000 tokens
        pytest.param(
            {}, {"prefix_query_tokens": 10, "prefix_hit_tokens": 5}, "prefill_ns_per_token", 50_000, id="a token of it"
        ),
        # 1000^2 x 50 ns = 50 ms more
        pytest.param({"step_p2_fs": 50_000_000}, {}, "prefill_us", 150_000, id="attention grows with the square"),
        # context 1000 + 100: 8 x 1100 x 0.5 us = 4.4 ms more
        pytest.param({"step_c2_ps": PS_PER_MS // 2000}, {}, "step_us", 28_400, id="context makes steps longer"),
        pytest.param({"step_c0_ps": UNKNOWN}, {}, "modelled", False, id="without a prior nothing is modelled"),
        pytest.param({"step_c0_ps": UNKNOWN}, {}, "feasible", True, id="and nothing is called infeasible"),
        pytest.param({"step_c0_ps": UNKNOWN, "batch_max": 4}, {}, "batch_best", 4, id="slots are all that is known"),
    ],
)
def test_what_one_replica_can_do(service: dict[str, Any], learned: dict[str, int], column: str, expected: int) -> None:
    assert getattr(capacity(service, **learned), column).tolist() == [expected]


def test_what_the_engine_says_of_its_kv_slots_beats_the_formula() -> None:
    seen = look([{"kv_tokens_total": 6000}])
    assert capacity({}, seen).batch_best.tolist() == [5]
    assert capacity({}, seen).kv_tokens.tolist() == [6000]
