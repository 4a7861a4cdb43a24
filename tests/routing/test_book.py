"""The book's rules, each as one situation with its outcome."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from forebay.routing import rules
from forebay.routing.book import Book
from forebay.routing.rules import UNKNOWN
from forebay.routing.service import Counters, Limits, Outcome, Refusal, ServiceSpec
from forebay.wire.signals import ReplicaSignals

KEY = "chat/a"
LIMITS = Limits(queue_requests_max=4, queue_bytes_max=10_000, start_wait_ms=100_000, busy_wait_ms=20_000)
SPEC = ServiceSpec(KEY, priority=100, batch_max=8, prompt_tokens_max=4_000)


def a_book(*, replicas: int = 0, now_ms: int = 1_000, **limits: Any) -> Book:
    fields = ("queue_requests_max", "queue_bytes_max", "start_wait_ms", "busy_wait_ms")
    book = Book(Limits(**{name: limits.get(name, getattr(LIMITS, name)) for name in fields}))
    book.set_service(SPEC, now_ms)
    for i in range(replicas):
        serve(book, f"r{i}", now_ms)
    return book


def serve(book: Book, uid: str, now_ms: int, *, routable: bool = True) -> None:
    book.set_replica(KEY, uid, f"10.0.0.{uid[1:]}:8000", routable=routable, now_ms=now_ms)


def admit(
    book: Book,
    name: str,
    now_ms: int = 1_000,
    *,
    tenant: str = "t",
    priority: int | None = None,
    body_bytes: int = 100,
) -> bool:
    return book.admit(KEY, name, tenant=tenant, priority=priority, body_bytes=body_bytes, now_ms=now_ms).admitted


def released(book: Book, now_ms: int = 1_000) -> list[str]:
    return [route.request_id for route in book.release(KEY, now_ms)]


def report(uid: str, **numbers: Any) -> ReplicaSignals:
    known = {"sample_age_ms": 0, "requests_running": 0, "requests_waiting": 0} | numbers
    return ReplicaSignals(pod_uid=uid, phase="ready", **known)


def test_at_zero_a_request_is_held_and_goes_to_the_first_replica_that_serves() -> None:
    book = a_book()
    assert admit(book, "q")
    assert released(book) == []
    serve(book, "r1", 5_000)
    [route] = book.release(KEY, 5_000)
    assert (route.request_id, route.endpoints, route.waited_ms) == ("q", ("10.0.0.1:8000",), 4_000)


def test_a_full_queue_refuses_the_newcomer_of_the_same_tenant() -> None:
    book = a_book()
    assert [admit(book, name) for name in "abcde"] == [True] * 4 + [False]
    signals = book.signals(1_000)[KEY]
    assert (signals.arrivals_total, signals.admitted_total, signals.refused_total) == (5, 4, 0)


def test_a_full_queue_gives_up_the_newest_of_the_lowest_priority_first() -> None:
    book = a_book()
    for name, priority in (("a", 50), ("b", 10), ("c", 10), ("d", None)):
        admit(book, name, priority=priority)
    verdict = book.admit(KEY, "e", tenant="t", priority=None, body_bytes=100, now_ms=1_000)
    assert (verdict.admitted, verdict.evicted) == (True, ("c",))
    assert book.signals(1_000)[KEY].refused_total == 1


def test_one_tenant_that_fills_the_queue_does_not_lock_out_another() -> None:
    book = a_book()
    for name in "abcd":
        admit(book, name, tenant="greedy")
    verdict = book.admit(KEY, "e", tenant="modest", priority=None, body_bytes=100, now_ms=1_000)
    assert (verdict.admitted, verdict.evicted) == (True, ("d",))


def test_a_header_lowers_the_priority_and_never_raises_it() -> None:
    book = a_book()
    admit(book, "low", priority=5)
    admit(book, "usual")
    admit(book, "boast", priority=10**9, tenant="other")
    serve(book, "r1", 1_000)
    assert released(book) == ["boast", "usual", "low"]  # both at 100, tenants by name; then 5
    book = a_book()
    admit(book, "usual")
    admit(book, "boast", priority=10**9)
    serve(book, "r1", 1_000)
    assert released(book) == ["usual", "boast"]


def test_bytes_are_bounded_over_all_services_together() -> None:
    book = a_book(queue_bytes_max=1_000)
    book.set_service(ServiceSpec("chat/b", priority=1, batch_max=1, prompt_tokens_max=100), 1_000)
    assert admit(book, "a", body_bytes=900)
    assert not book.admit("chat/b", "b", tenant="t", priority=None, body_bytes=200, now_ms=1_000).admitted
    assert book.admit("chat/b", "c", tenant="t", priority=None, body_bytes=100, now_ms=1_000).admitted


def test_nobody_is_evicted_for_bytes_that_would_still_not_fit() -> None:
    book = a_book(queue_bytes_max=1_000)
    admit(book, "low", priority=1, body_bytes=100)
    admit(book, "high", body_bytes=800)
    assert not admit(book, "big", body_bytes=300)
    assert book.signals(1_000)[KEY].requests_held == 2
    assert admit(book, "fits", body_bytes=200)
    assert book.signals(1_000)[KEY].refused_total == 1


def test_waiting_for_a_start_and_for_room_have_budgets_of_their_own() -> None:
    book = a_book()
    admit(book, "q")
    assert book.expire(KEY, 100_999) == []
    serve(book, "r1", 100_999)
    book.set_replica(KEY, "r1", "10.0.0.1:8000", routable=True, now_ms=100_999)
    for i in range(9):
        book.services[KEY].replicas["r1"].send(f"other{i}", 10, 40, 100_999)
    assert released(book, 101_000) == []
    assert book.expire(KEY, 120_998) == []  # 99.999 s at zero, 19.999 s of saturation
    assert book.expire(KEY, 120_999) == [("q", Refusal.STILL_BUSY)]


def test_what_waits_at_zero_for_too_long_is_refused() -> None:
    book = a_book()
    admit(book, "q", 1_000)
    admit(book, "later", 1_001)
    assert book.expire(KEY, 101_000) == [("q", Refusal.NOT_STARTED)]
    assert book.signals(101_000)[KEY].requests_held == 1


def test_a_full_engine_gets_no_queue_so_that_a_promoted_replica_takes_it_over_at_once() -> None:
    book = a_book(replicas=1, queue_requests_max=100)
    for i in range(20):
        admit(book, f"q{i}")
    book.observe(KEY, report("r0"), 1_000)
    assert len(released(book)) == 9  # the batch of 8 and one on the way
    serve(book, "r1", 2_000)
    assert len(released(book, 2_000)) == 8  # not heard of yet: no allowance
    assert book.signals(2_000)[KEY].requests_held == 3


def test_the_end_of_a_request_makes_room_for_the_next() -> None:
    book = a_book(replicas=1, queue_requests_max=100)
    for i in range(10):
        admit(book, f"q{i}")
    book.observe(KEY, report("r0"), 1_000)
    assert released(book) == [f"q{i}" for i in range(9)]
    assert book.end("q3", Outcome.ANSWERED, 1_500)
    assert released(book, 1_500) == ["q9"]


def test_load_goes_where_the_first_token_comes_soonest() -> None:
    book = a_book(replicas=3)
    targets = []
    for i in range(3):
        admit(book, f"q{i}", body_bytes=4_000)
        targets += [route.endpoints[0] for route in book.release(KEY, 1_000)]
    assert sorted(targets) == ["10.0.0.0:8000", "10.0.0.1:8000", "10.0.0.2:8000"]


def test_every_route_names_fallbacks() -> None:
    book = a_book(replicas=6)
    admit(book, "q")
    [route] = book.release(KEY, 1_000)
    assert len(set(route.endpoints)) == 4


def test_a_draining_replica_gets_nothing_new_and_keeps_what_it_has() -> None:
    book = a_book(replicas=1)
    admit(book, "q")
    assert released(book) == ["q"]
    serve(book, "r0", 1_100, routable=False)
    admit(book, "next")
    assert released(book, 1_200) == []
    book.drop_replica(KEY, "r0", 1_300)
    assert book.signals(1_300)[KEY].requests_in_flight == 1
    assert book.end("q", Outcome.ANSWERED, 1_400)
    assert book.services[KEY].replicas == {}


def test_a_replica_short_of_kv_is_passed_over_when_another_has_room() -> None:
    book = a_book(replicas=2)
    kv = {"kv_blocks_total": 100, "kv_block_tokens": 16}
    for _ in range(2):  # what others run counts once two reports show it
        book.observe(KEY, report("r0", requests_running=2, kv_used_permille=990, **kv), 1_000)
        book.observe(KEY, report("r1", requests_running=5, kv_used_permille=500, **kv), 1_000)
    admit(book, "q", body_bytes=400)  # 100 tokens; r0 has 16 free
    [route] = book.release(KEY, 1_000)
    assert route.endpoints == ("10.0.0.1:8000", "10.0.0.0:8000")


def test_a_report_that_grows_old_leads_to_caution_and_never_to_full_for_ever() -> None:
    book = a_book(replicas=1)
    for _ in range(2):
        book.observe(KEY, report("r0", requests_running=8, requests_waiting=5), 1_000)
    admit(book, "q")
    assert released(book, 1_000) == []
    assert released(book, 5_000) == []  # stale: what it said still counts
    assert released(book, 11_000) == ["q"]  # ten seconds old: it says nothing any more


def test_a_stale_replica_is_behind_a_fresh_one_with_more_load() -> None:
    book = a_book(replicas=2)
    book.observe(KEY, report("r0"), 1_000)
    for at in (5_000, 5_001):
        book.observe(KEY, report("r1", requests_running=4), at)
    admit(book, "q", 5_001)
    [route] = book.release(KEY, 5_001)
    assert route.endpoints[0] == "10.0.0.1:8000"


def test_a_slow_replica_is_found_by_its_own_numbers_and_gets_less() -> None:
    book = a_book(replicas=2)
    for uid, ttft_ms in (("r0", 2_000), ("r1", 500)):
        first = report(uid, prompt_tokens_total=0, requests_finished_total=0, ttft_sum_ms=0, queue_time_sum_ms=0)
        book.observe(KEY, first, 1_000)
        then = report(
            uid, prompt_tokens_total=4_000, requests_finished_total=4, ttft_sum_ms=ttft_ms, queue_time_sum_ms=0
        )
        book.observe(KEY, then, 2_000)
    admit(book, "q", 2_000, body_bytes=4_000)
    [route] = book.release(KEY, 2_000)
    assert route.endpoints[0] == "10.0.0.1:8000"
    assert book.services[KEY].replicas["r0"].prefill_tokens_per_s == 2_000


@pytest.mark.parametrize(
    ("known", "tokens", "time_ms", "rate"),
    [
        (UNKNOWN, 12_000, 1_000, 12_000),  # the first measurement is taken as it is
        (8_000, 12_000, 300, 8_932),  # a prompt from the cache, five times as fast, moves it by an eighth
        (8_000, 80_000, 10_000, 8_000),
        (8_000, 40_000, 10_000, 6_000),  # half as fast for ten seconds: half of the way
        (UNKNOWN, 1, 5_000, 1),
    ],
)
def test_a_measured_prefill_weighs_by_the_time_it_took(known: int, tokens: int, time_ms: int, rate: int) -> None:
    assert rules.prefill_rate(known, tokens, time_ms) == rate


def paced(uid: str, gaps: int, gap_ms: int) -> ReplicaSignals:
    return report(
        uid, prompt_tokens_total=0, requests_finished_total=0, itl_sum_ms=gaps * gap_ms, itl_buckets=(0, gaps)
    )


def test_a_replica_whose_tokens_come_slowly_gets_less() -> None:
    book = a_book(queue_requests_max=64)
    book.set_service(replace(SPEC, batch_max=64), 1_000)
    for uid in ("r1", "r2"):
        serve(book, uid, 1_000)
        book.observe(KEY, paced(uid, 0, 0), 1_000)
    book.observe(KEY, paced("r1", 100, 60), 2_000)
    book.observe(KEY, paced("r2", 100, 30), 2_000)
    for number in range(60):
        assert admit(book, f"q{number}", 2_000)
    # By pace alone 60 x (33 + a) = 30 x (33 + b), nine of sixty; the prompts that pile up before the quick one add six.
    sent = Counter(route.endpoints[0] for route in book.release(KEY, 2_000))
    assert sent == {"10.0.0.1:8000": 15, "10.0.0.2:8000": 45}


def test_fewer_gaps_than_say_anything_teach_no_pace() -> None:
    book = a_book()
    serve(book, "r1", 1_000)
    book.observe(KEY, paced("r1", 0, 0), 1_000)
    book.observe(KEY, paced("r1", 5, 500), 2_000)
    assert book.services[KEY].replicas["r1"].pace == UNKNOWN


def test_pending_tokens_are_what_the_engine_has_not_counted_yet() -> None:
    book = a_book(replicas=1)
    replica = book.services[KEY].replicas["r0"]
    book.observe(KEY, report("r0", prompt_tokens_total=500, requests_finished_total=3), 900)
    for name in "ab":
        admit(book, name, body_bytes=400)
    assert released(book) == ["a", "b"]
    assert replica.pending_tokens == 200
    book.observe(KEY, report("r0", requests_running=2, prompt_tokens_total=630, requests_finished_total=3), 1_500)
    assert replica.pending_tokens == 70
    book.end("b", Outcome.ABORTED, 1_600)
    assert replica.pending_tokens == 0


def test_a_restarted_engine_is_a_new_baseline_and_not_a_negative_count() -> None:
    book = a_book(replicas=1)
    book.observe(KEY, report("r0", prompt_tokens_total=500, requests_finished_total=3), 1_000)
    book.observe(KEY, report("r0", prompt_tokens_total=10, requests_finished_total=1), 2_000)
    assert book.services[KEY].estimator.windows == 0
    assert book.services[KEY].replicas["r0"].report_ms == 2_000


@pytest.mark.parametrize("gateways", [1, 3])
def test_the_tokens_of_a_byte_are_learned_also_where_gateways_share_the_engines(gateways: int) -> None:
    book = a_book(replicas=1, queue_requests_max=1_000)
    estimator = book.services[KEY].estimator
    for i in range(64):  # every body has 1,000 bytes and 400 tokens; the engine sees all gateways' requests
        totals = {"prompt_tokens_total": 400 * i * gateways, "requests_finished_total": i * gateways}
        book.observe(KEY, report("r0", **totals), 1_000 + i)
        admit(book, f"q{i}", 1_000 + i, body_bytes=1_000)
        assert released(book, 1_000 + i) == [f"q{i}"]
        book.end(f"q{i}", Outcome.ANSWERED, 1_000 + i)
    assert estimator.ratio_milli == 400
    assert estimator.error_permille == 0
    assert estimator.tokens(10**9, 4_000) == 4_000


def test_a_service_that_is_deleted_refuses_what_it_holds_and_finishes_what_runs() -> None:
    book = a_book(replicas=1)
    admit(book, "runs")
    released(book)
    serve(book, "r0", 1_000, routable=False)
    admit(book, "waits")
    assert book.drop_service(KEY) == ["waits"]
    assert KEY in book.services
    assert book.end("runs", Outcome.ANSWERED, 2_000)
    assert book.services == {}
    assert book.drop_service(KEY) == []


def test_the_counters_of_a_former_process_go_on_and_unseen_ends_are_failures() -> None:
    book = a_book(replicas=2)
    former = Counters(arrivals=12, admitted=10, answered=4, refused=1, aborted=1, failed=0)  # 4 ran or were held
    assert book.restore(KEY, former, {"r0": 1, "r1": 1}, 1_000) == 2
    assert book.services[KEY].counters.failed == 2
    assert not book.end_adopted("10.9.9.9:8000", Outcome.ANSWERED, 1_000)
    assert book.end_adopted("10.0.0.1:8000", Outcome.ANSWERED, 1_000)
    assert not book.end_adopted("10.0.0.1:8000", Outcome.ANSWERED, 1_000)
    signals = book.signals(1_000)[KEY]
    assert (signals.answered_total, signals.failed_total, signals.requests_in_flight) == (5, 2, 1)


def test_what_was_admitted_after_the_last_line_is_not_forgotten() -> None:
    book = a_book(replicas=1)
    assert book.restore(KEY, Counters(arrivals=1, admitted=1, answered=1), {"r0": 3}, 1_000) == 0
    assert book.services[KEY].counters.admitted == 4


def test_an_unknown_request_has_no_end() -> None:
    book = a_book()
    assert not book.end("nobody", Outcome.ANSWERED, 1_000)
    assert not book.abort("nobody", 1_000)
    assert not book.refuse("nobody")
