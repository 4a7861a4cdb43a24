"""A service that nobody has asked yet: what it will be asked is unknown, and minReplicas stands for it."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.core import codec
from forebay.core.memory import initial_memory
from forebay.core.reasons import Reason
from forebay.core.step import step
from tests.core import build

START_MS = 10_000_000
MINUTE_MS = 60_000
BURST_OF_THREE = {"replicas_min": 2, "burst_multiplier_milli": 3000}


def warm_after(silence_ms: int, **service: Any) -> tuple[int, list[Reason]]:
    """Run a service that gets no request for so long, a look each 10 s, and return its warm replicas and why."""
    spec = build.fleet(service)
    memory = initial_memory(spec, START_MS)
    for at_ms in range(0, silence_ms + 1, 10_000):
        memory, decisions = step(spec, memory, build.snapshot(START_MS + at_ms, [{}] * service["replicas_min"]))
    decision = decisions.decision(0)
    return decision.replicas_warm, [verdict.reason for verdict in decision.steps]


@pytest.mark.parametrize(
    ("service", "warm"),
    [
        pytest.param(BURST_OF_THREE, 4, id="three times two, of which two serve"),
        pytest.param(BURST_OF_THREE | {"warm_gpus_max": 3}, 3, id="no more than the policy pays for"),
        pytest.param(BURST_OF_THREE | {"replicas_max": 5}, 3, id="no more than maxReplicas leaves"),
        pytest.param(BURST_OF_THREE | {"burst_multiplier_milli": 1000}, 0, id="none where no burst is expected"),
        pytest.param(BURST_OF_THREE | {"batch_class": True, "replicas_min": 0}, 0, id="none for a service at zero"),
    ],
)
def test_a_new_service_is_ready_for_the_burst_that_its_policy_expects(service: dict[str, Any], warm: int) -> None:
    assert warm_after(MINUTE_MS, **service)[0] == warm


def test_the_policy_is_named_as_the_reason() -> None:
    assert Reason.WARM_POOL_POLICY_BURST in warm_after(MINUTE_MS, **BURST_OF_THREE)[1]


def test_a_service_that_nobody_uses_keeps_no_pool() -> None:
    assert warm_after(15 * MINUTE_MS, **BURST_OF_THREE)[0] == 0


def test_a_restart_does_not_make_an_unused_service_new() -> None:
    spec = build.fleet(BURST_OF_THREE)
    known = codec.restore(initial_memory(spec, START_MS), {"a/s0": {"replicas_serving": 2, "replicas_warm": 0}}, {})
    _, decisions = step(spec, known, build.snapshot(START_MS, [{}] * 2))
    assert decisions.replicas_warm.tolist() == [0]


def test_a_request_now_and_then_does_not_start_a_pool_each_time() -> None:
    spec = build.fleet(BURST_OF_THREE)
    memory = initial_memory(spec, START_MS)
    warm = []
    for tick in range(400):
        requests = tick // 100  # one in 1,000 s
        look = build.snapshot(START_MS + 10_000 * tick, [{}] * 2, [{"arrivals_total": requests}])
        memory, decisions = step(spec, memory, look)
        warm.append(int(decisions.replicas_warm[0]))
    assert max(warm[:60]) == 4
    assert max(warm[120:]) == 0
