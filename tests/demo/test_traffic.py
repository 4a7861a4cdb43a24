"""The schedule: the same for the same seed, in the shape of the recording, within what the engines take."""

from collections import Counter

import pytest

from e2e.demo.plan import BATCH, CHAT, CODE, COMPRESSED, FULL, Plan
from e2e.demo.prompts import filler
from e2e.demo.traffic import read_trace, schedule
from forebay_replica.engine_emulated.text import chat_prompt

PLANS = {"full": FULL, "compressed": COMPRESSED}


@pytest.fixture(params=PLANS.values(), ids=PLANS)
def plan(request: pytest.FixtureRequest) -> Plan:
    assert isinstance(request.param, Plan)
    return request.param


def test_the_recordings_are_whole() -> None:
    conv, code = read_trace("conv"), read_trace("code")
    assert (len(conv), len(code)) == (19_366, 8_819)
    assert (conv[0].at_s, conv[0].prompt_tokens, conv[0].output_tokens) == (0.0, 374, 44)


def test_the_same_seed_gives_the_same_schedule_and_another_seed_another(plan: Plan) -> None:
    assert schedule(plan, 1) == schedule(plan, 1)
    assert schedule(plan, 1) != schedule(plan, 2)


def test_requests_are_numbered_in_the_order_of_their_times(plan: Plan) -> None:
    requests = schedule(plan, 1)
    assert [r.number for r in requests] == list(range(len(requests)))
    assert [r.at_ms for r in requests] == sorted(r.at_ms for r in requests)
    assert requests[0].at_ms >= 0
    assert requests[-1].at_ms < plan.seconds * 1000


def test_every_request_fits_its_model(plan: Plan) -> None:
    for request in schedule(plan, 1):
        assert request.prompt_tokens >= 10
        assert request.output_tokens >= 1
        assert request.prompt_tokens + request.output_tokens < plan.max_model_len


def test_chat_is_five_times_as_busy_in_the_burst(plan: Plan) -> None:
    in_burst = Counter(
        plan.burst_from_s * 1000 <= r.at_ms < plan.burst_until_s * 1000 for r in schedule(plan, 1) if r.service == CHAT
    )
    length = plan.burst_until_s - plan.burst_from_s
    burst_rate, base_rate = in_burst[True] / length, in_burst[False] / (plan.seconds - length)
    assert base_rate == pytest.approx(1.4, rel=0.2)
    assert burst_rate == pytest.approx(7.0, rel=0.2)


def test_code_keeps_the_bursts_of_its_recording() -> None:
    seconds = Counter(r.at_ms // 1000 for r in schedule(FULL, 1) if r.service == CODE)
    assert max(seconds.values()) >= 5  # ten times the mean rate of 0.5
    assert len(seconds) < FULL.seconds / 2  # and silence in most seconds


def test_batches_are_so_far_apart_that_the_service_goes_to_zero_between_them(plan: Plan) -> None:
    first, second = plan.jobs
    assert {first.service, second.service} == {BATCH}
    # a cold start, twenty seconds of work, and the idle time lie between them
    assert second.at_s - first.at_s >= plan.cold_start_s + 20 + plan.idle_s


def test_a_prompt_has_the_wished_length_and_shares_no_beginning_with_another() -> None:
    one, other = filler(1, 7, 500), filler(1, 8, 500)
    assert one == filler(1, 7, 500)
    assert chat_prompt([("user", one)]).tokens == 500
    assert one.split()[0] != other.split()[0]
    assert chat_prompt([("user", filler(1, 1007, 10))]).tokens == 10
