"""Whatever happens in whatever order, the book adds up."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forebay.routing.book import Book
from forebay.routing.service import Limits, Outcome, ServiceSpec
from forebay.wire.signals import ReplicaSignals

KEYS = ("n/a", "n/b")
UIDS = ("u0", "u1", "u2")
LIMITS = Limits(queue_requests_max=6, queue_bytes_max=3_000, start_wait_ms=5_000, busy_wait_ms=2_000)
keys = st.sampled_from(KEYS)
uids = st.sampled_from(UIDS)


class Gateway(RuleBasedStateMachine):
    """Every request of the model is in exactly one of: held, with a replica, ended (with how)."""

    def __init__(self) -> None:
        super().__init__()
        self.book = Book(LIMITS)
        self.now_ms = 1_000
        self.number = 0
        self.place: dict[str, str] = {}  # request to "held", "sent" or an Outcome
        self.of: dict[str, str] = {}
        self.turned_away = 0
        self.routable: dict[str, bool] = {}  # endpoint
        for key in KEYS:
            self.book.set_service(ServiceSpec(key, priority=100, batch_max=2, prompt_tokens_max=1_000), self.now_ms)

    def _move(self, name: str, before: str, after: str) -> None:
        assert self.place[name] == before, f"{name} was {self.place[name]}"
        self.place[name] = after

    def _named(self, place: str) -> list[str]:
        return sorted(name for name, at in self.place.items() if at == place)

    @rule(ms=st.integers(0, 4_000))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @rule(
        key=keys,
        tenant=st.sampled_from("xyz"),
        priority=st.none() | st.integers(-5, 200),
        body_bytes=st.integers(0, 1_500),
    )
    def arrives(self, key: str, tenant: str, priority: int | None, body_bytes: int) -> None:
        self.number += 1
        name = f"q{self.number:04}"
        verdict = self.book.admit(
            key, name, tenant=tenant, priority=priority, body_bytes=body_bytes, now_ms=self.now_ms
        )
        for gone in verdict.evicted:
            self._move(gone, "held", Outcome.REFUSED)
        if verdict.admitted:
            self.place[name], self.of[name] = "held", key
        else:
            self.turned_away += 1

    @rule(key=keys)
    def released(self, key: str) -> None:
        for route in self.book.release(key, self.now_ms):
            self._move(route.request_id, "held", "sent")
            assert all(self.routable[endpoint] for endpoint in route.endpoints)
            assert all(endpoint.startswith(key) for endpoint in route.endpoints)
        service = self.book.services[key]
        first = service.queue.first()
        if first is not None:  # work-conserving: whoever waits has no replica with room
            assert not any(
                r.routable and r.has_room(*r.look(self.now_ms), first.prompt_tokens) for r in service.replicas.values()
            )

    @rule(key=keys)
    def expired(self, key: str) -> None:
        for name, _ in self.book.expire(key, self.now_ms):
            self._move(name, "held", Outcome.REFUSED)

    @precondition(lambda self: self._named("sent"))
    @rule(data=st.data(), outcome=st.sampled_from([Outcome.ANSWERED, Outcome.ABORTED, Outcome.FAILED]))
    def ends(self, data: Any, outcome: Outcome) -> None:
        name = data.draw(st.sampled_from(self._named("sent")))
        assert self.book.end(name, outcome, self.now_ms) == self.of[name]
        self._move(name, "sent", outcome)
        assert not self.book.end(name, outcome, self.now_ms)

    @precondition(lambda self: self._named("held"))
    @rule(data=st.data())
    def client_leaves(self, data: Any) -> None:
        name = data.draw(st.sampled_from(self._named("held")))
        assert self.book.abort(name, self.now_ms)
        self._move(name, "held", Outcome.ABORTED)
        assert not self.book.abort(name, self.now_ms)

    @rule(key=keys, uid=uids, routable=st.booleans())
    def replica_changes(self, key: str, uid: str, *, routable: bool) -> None:
        endpoint = f"{key}/{uid}"
        self.routable[endpoint] = routable
        self.book.set_replica(key, f"{key}/{uid}", endpoint, routable=routable, now_ms=self.now_ms)

    @rule(key=keys, uid=uids)
    def replica_goes(self, key: str, uid: str) -> None:
        self.routable[f"{key}/{uid}"] = False
        self.book.drop_replica(key, f"{key}/{uid}", self.now_ms)

    @rule(
        key=keys,
        uid=uids,
        age_ms=st.none() | st.integers(0, 5_000),
        numbers=st.fixed_dictionaries(
            {
                "requests_running": st.none() | st.integers(0, 5),
                "requests_waiting": st.none() | st.integers(0, 5),
                "prompt_tokens_total": st.none() | st.integers(0, 10_000),
                "requests_finished_total": st.none() | st.integers(0, 100),
                "ttft_sum_ms": st.none() | st.integers(0, 10_000),
                "kv_used_permille": st.none() | st.integers(0, 1_000),
                "kv_blocks_total": st.none() | st.integers(0, 50),
                "kv_block_tokens": st.none() | st.integers(0, 16),
            }
        ),
    )
    def replica_reports(self, key: str, uid: str, age_ms: int | None, numbers: dict[str, int | None]) -> None:
        report = ReplicaSignals(pod_uid=f"{key}/{uid}", phase="ready", sample_age_ms=age_ms, **numbers)  # type: ignore[arg-type] - all of them are counts
        self.book.observe(key, report, self.now_ms)

    @invariant()
    def every_request_is_in_one_place(self) -> None:
        signals = self.book.signals(self.now_ms)
        for key in KEYS:
            here = [self.place[name] for name, of in self.of.items() if of == key]
            s = signals[key]
            assert s.admitted_total == len(here)
            assert s.requests_held == here.count("held")
            assert s.requests_in_flight == here.count("sent")
            assert s.answered_total == here.count(Outcome.ANSWERED)
            assert s.refused_total == here.count(Outcome.REFUSED)
            assert s.aborted_total == here.count(Outcome.ABORTED)
            assert s.failed_total == here.count(Outcome.FAILED)
        assert sum(s.arrivals_total - s.admitted_total for s in signals.values()) == self.turned_away

    @invariant()
    def the_queue_is_bounded(self) -> None:
        queues = [s.queue for s in self.book.services.values()]
        assert all(len(q.waiting) <= LIMITS.queue_requests_max for q in queues)
        assert sum(q.body_bytes for q in queues) <= LIMITS.queue_bytes_max
        for queue in queues:
            assert queue.body_bytes == sum(w.body_bytes for w in queue.waiting.values())
            assert queue.prompt_tokens == sum(w.prompt_tokens for w in queue.waiting.values())

    @invariant()
    def pending_tokens_are_those_of_what_runs(self) -> None:
        for service in self.book.services.values():
            for replica in service.replicas.values():
                assert replica.pending_tokens == sum(sent.pending_tokens for sent in replica.sent.values())
                assert replica.pending_tokens >= 0


TestGateway = Gateway.TestCase
