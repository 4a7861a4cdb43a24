"""The scorecard from hand-made records: every expected number is worked out in a comment."""

import pytest

from e2e.demo import score
from e2e.demo.fleet import Span
from e2e.demo.promote import MEASURED, Promotion
from e2e.demo.records import Outcome, Record
from forebay.core.goodness import Targets

CHAT, BATCH = "chat/chat-8b", "batch/batch-8b"
TARGETS = {
    CHAT: Targets(ttft_ms=500, ttft_per_1k_prompt_tokens_ms=150, itl_mean_ms=50, itl_worst_second_ms=200),
    BATCH: Targets(ttft_ms=60_000, ttft_per_1k_prompt_tokens_ms=0, itl_mean_ms=500, itl_worst_second_ms=5000),
}


def answered(number: int, sent_ms: int, *, first: int = 200, gap: int = 25, tokens: int = 10, **more: object) -> Record:
    times = [first + gap * i for i in range(tokens)]
    record = Record(
        number=number,
        service=CHAT,
        scheduled_at_ms=sent_ms,
        sent_at_ms=sent_ms,
        prompt_tokens=1000,
        output_tokens=tokens,
        outcome=Outcome.ANSWERED,
        status=200,
        usage_output_tokens=tokens,
        end_ms=times[-1],
        token_ms=times,
    )
    for name, value in more.items():
        setattr(record, name, value)
    return record


def ended(number: int, sent_ms: int, outcome: Outcome | None) -> Record:
    return answered(number, sent_ms, outcome=outcome, token_ms=[], status=503)


def card(records: list[Record], **more: object) -> score.Scorecard:
    given = {
        "targets": TARGETS,
        "interactive": (CHAT,),
        "burst_service": CHAT,
        "burst_from_ms": 10_000,
        "traffic_ms": 40_000,
        "spans": (),
        "promotions": (),
        "decisions": None,
        "changes": None,
    }
    return score.score(records, **{**given, **more})  # type: ignore[arg-type]


def test_each_request_ends_in_one_way_and_what_ends_in_none_is_lost() -> None:
    records = [answered(0, 0), answered(1, 1)] + [ended(2 + i, 2, o) for i, o in enumerate([*list(Outcome)[1:], None])]
    requests = card(records).overall
    assert requests == score.Requests(admitted=6, answered=2, refused=1, aborted=1, failed=1, lost=1)


def test_one_lost_request_fails_the_demo_even_with_a_goodput_of_999_permille() -> None:
    records = [answered(i, i) for i in range(1999)] + [ended(1999, 5, None)]
    result = card(records)
    assert result.classes["Interactive"].goodput_permille == 999
    assert result.failures() == ["1 requests were lost: sent, and ended in no way"]


def test_refused_requests_count_against_goodput_and_every_attainment() -> None:
    # 4 sent: one good, one with a TTFT of 651 ms (limit 500 + 150), one with gaps of 60 ms, one refused.
    records = [answered(0, 0), answered(1, 0, first=651), answered(2, 0, gap=60), ended(3, 0, Outcome.REFUSED)]
    chat = card(records).services[CHAT]
    assert (chat.good, chat.goodput_permille, chat.ttft_permille, chat.itl_permille) == (1, 250, 500, 500)


def test_goodput_just_under_95_percent_fails_and_names_the_class() -> None:
    # 949 of 1,000 is 94.9 %.
    records = [answered(i, i) for i in range(949)] + [ended(i, i, Outcome.REFUSED) for i in range(949, 1000)]
    assert card(records).failures() == ["goodput of the Interactive services is 94.9 %, and 95 % are asked"]
    assert card([*records, *(answered(1000 + i, 0) for i in range(20))]).failures() == []


def test_batch_is_judged_by_its_own_targets() -> None:
    slow = answered(0, 0, first=59_000, gap=400, service=BATCH)
    result = card([slow, answered(1, 0)])
    assert result.classes["Batch"].goodput_permille == 1000
    assert result.services[BATCH].tpot_p50_ms == 400


def test_a_token_that_the_engine_counted_and_nobody_got_is_missing() -> None:
    records = [answered(0, 0, usage_output_tokens=12), answered(1, 0, usage_output_tokens=None), answered(2, 0)]
    assert card(records).services[CHAT].tokens_missing == 2


def test_the_engines_count_of_the_prompt_decides_how_much_time_it_earned() -> None:
    # 500 + 150 x 2 = 800 ms for the 2,000 tokens counted, 650 for the 1,000 planned.
    assert card([answered(0, 0, first=800, usage_prompt_tokens=2000)]).services[CHAT].good == 1
    assert card([answered(0, 0, first=800)]).services[CHAT].good == 0


def per_second(good_of_second: dict[int, bool]) -> list[Record]:
    return [answered(s, s * 1000, first=200 if good else 5000) for s, good in good_of_second.items()]


RECOVERIES = {
    "all good: absorbed at once": (dict.fromkeys(range(40), True), 0),
    # The step is at 10 s; bad until 17 s: the first ten good seconds start 7 s after the step.
    "bad for seven seconds": ({s: not 10 <= s < 17 for s in range(40)}, 7),
    "bad before the step does not count": ({s: s >= 10 for s in range(40)}, 0),
    # Good 10..14, bad 15..20: the first window without a bad second starts at 21, 11 s after the step.
    "a window must be good as a whole": ({s: not 15 <= s <= 20 for s in range(40)}, 11),
    # Good from 31 s on only: nine seconds are left, and a window needs ten.
    "never within the traffic": ({s: s >= 31 for s in range(40)}, None),
    "seconds without a request neither help nor hurt": ({10: False, 11: False, 30: True, 39: True}, 2 + 9),
}


@pytest.mark.parametrize(("seconds", "expected"), RECOVERIES.values(), ids=RECOVERIES)
def test_recovery(seconds: dict[int, bool], expected: int | None) -> None:
    assert card(per_second(seconds)).recovery_s == expected


def test_gpu_seconds_count_each_state_within_the_traffic_only() -> None:
    spans = [
        Span(CHAT, "a", "starting", 1, -90_000, -1_000),  # before the traffic: nothing
        Span(CHAT, "a", "warm", 1, -1_000, 10_000),  # 10 s of it
        Span(CHAT, "a", "serving", 1, 10_000, None),  # until the end: 30 s
        Span(CHAT, "b", "serving", 2, 5_000, 15_000),  # 10 s on two GPUs
        Span(CHAT, "c", "draining", 1, 39_000, 50_000),  # 1 s
        Span(CHAT, "d", "starting", 0, 0, None),  # pending: holds no GPU
    ]
    result = card([answered(0, 0)], spans=spans)
    assert result.gpu_seconds[CHAT] == {"draining": 1.0, "serving": 50.0, "warm": 10.0}
    assert result.gpu_seconds[BATCH] == {}


def test_promote_latency_is_told_as_percentiles_and_as_unknown_without_one() -> None:
    promotions = [Promotion(CHAT, str(ms), 0, ms) for ms in (900, 100, 200)]
    assert card([], promotions=promotions).as_json()["promote_ms"] == {
        "count": 3,
        "measured": MEASURED,
        "p50": 200,
        "p99": 900,
    }
    assert card([]).as_json()["promote_ms"] == {"count": 0, "measured": MEASURED, "p50": None, "p99": None}
