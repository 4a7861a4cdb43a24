"""Two tenants that both wait are served alike, in tokens, whatever the sizes of their requests."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from forebay.routing.flow import FairQueue, Waiting


def a_waiting(name: str, tenant: str, tokens: int, priority: int = 0) -> Waiting:
    return Waiting(name, tenant, priority, tokens, body_bytes=tokens, arrived_ms=0, start_limit_ms=0, busy_limit_ms=0)


costs = st.lists(st.integers(1, 1_000), min_size=1, max_size=30)


@given(left=costs, right=costs)
def test_tenants_that_both_wait_differ_by_no_more_than_one_request_each(left: list[int], right: list[int]) -> None:
    queue = FairQueue()
    for tenant, sizes in (("l", left), ("r", right)):
        for i, tokens in enumerate(sizes):
            queue.push(a_waiting(f"{tenant}{i}", tenant, tokens))
    served = {"l": 0, "r": 0}
    left_to_serve = {"l": len(left), "r": len(right)}
    while all(left_to_serve.values()):
        taken = queue.take_first()
        served[taken.tenant] += taken.prompt_tokens
        left_to_serve[taken.tenant] -= 1
        assert abs(served["l"] - served["r"]) <= max(left) + max(right)


@given(
    requests=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 500), st.integers(0, 3)), min_size=1, max_size=40
    )
)
def test_priorities_come_first_and_a_tenant_keeps_its_own_order(requests: list[tuple[str, int, int]]) -> None:
    queue = FairQueue()
    for i, (tenant, tokens, priority) in enumerate(requests):
        queue.push(a_waiting(f"{i:03}", tenant, tokens, priority))
    taken = [queue.take_first() for _ in requests]
    assert sorted(t.request_id for t in taken) == [f"{i:03}" for i in range(len(requests))]
    assert all(a.priority >= b.priority for a, b in pairwise(taken))
    for key in {(t.tenant, t.priority) for t in taken}:
        names = [t.request_id for t in taken if (t.tenant, t.priority) == key]
        assert names == sorted(names)
    assert queue.first() is None
    assert (queue.prompt_tokens, queue.body_bytes) == (0, 0)


@given(
    rounds=st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(1, 300), st.sampled_from(["push", "take", "remove"])),
        max_size=200,
    )
)
def test_what_came_in_goes_out_once_and_nothing_piles_up(rounds: list[tuple[str, int, str]]) -> None:
    queue = FairQueue()
    inside: set[str] = set()
    for i, (tenant, tokens, what) in enumerate(rounds):
        if what == "push":
            queue.push(a_waiting(str(i), tenant, tokens))
            inside.add(str(i))
        elif what == "take" and inside:
            inside.remove(queue.take_first().request_id)
        elif what == "remove" and inside:
            name = min(inside)
            assert queue.remove(name) is not None
            inside.remove(name)
        assert set(queue.waiting) == inside
        assert (queue.first() is None) == (not inside)
        for level in queue._levels.values():
            assert len(level.heap) <= 4


def test_a_thousand_api_keys_that_left_are_forgotten_while_one_still_waits() -> None:
    queue = FairQueue()
    queue.push(a_waiting("stays", "z", 10**9))
    queue.push(a_waiting("stays too", "z", 1))
    for i in range(1_000):
        queue.push(a_waiting(str(i), f"key{i}", 1))
        assert queue.remove(str(i)) is not None
    assert len(queue._levels[0].tenants) < 100
