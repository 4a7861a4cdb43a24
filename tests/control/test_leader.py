"""The election in virtual time: who leads, when, and that never two may write at once."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from forebay.actuate.errors import ConflictError, UnreachableError
from forebay.control.leader import Election, Lease

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

DURATION_MS = 10_000


class Store:
    """A lease as the API server keeps it, and a network that can be cut for one process."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.version = 0

    def for_process(self) -> Link:
        return Link(self)


class Link:
    """One process's way to the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.refused = False
        self.black_hole = False
        self.answer_delay_s = 0.0

    async def read(self) -> Lease | None:
        await self._cross()
        return self._store.lease

    async def write(self, lease: Lease) -> Lease:
        await self._cross()
        current = self._store.lease
        if (current.version if current is not None else "") != lease.version:
            raise ConflictError("409")
        self._store.version += 1
        self._store.lease = replace(lease, version=str(self._store.version))
        await asyncio.sleep(self.answer_delay_s)
        return self._store.lease

    async def _cross(self) -> None:
        await asyncio.sleep(0.01)
        if self.refused:
            raise UnreachableError("connection refused")
        if self.black_hole:
            await asyncio.Event().wait()


class Process:
    """One candidate whose clock can be stopped, as SIGSTOP does to everything but time itself."""

    def __init__(self, store: Store, identity: str) -> None:
        self.link = store.for_process()
        self.election = Election(self.link, identity, DURATION_MS, asyncio.get_running_loop().time)

    @property
    def may_write(self) -> bool:
        return self.election.left_s() > 0


@asynccontextmanager
async def standing(*processes: Process) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(process.election.run()) for process in processes]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], bool], limit_s: float) -> float:
    """Wait in virtual time; returns how long it took. Steps of 50 ms."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    while not condition():
        assert loop.time() - start <= limit_s
        await asyncio.sleep(0.05)
    return loop.time() - start


async def never(condition: Callable[[], bool], for_s: float) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + for_s
    while loop.time() < end:
        assert not condition()
        await asyncio.sleep(0.05)


pytestmark = pytest.mark.looptime


async def test_one_of_two_leads_and_goes_on_leading() -> None:
    store = Store()
    a, b = Process(store, "a_1"), Process(store, "b_1")
    async with standing(a, b):
        await until(lambda: a.may_write or b.may_write, 1)
        leader = a if a.may_write else b
        await never(lambda: not leader.may_write or (a.may_write and b.may_write), 60)
        assert leader.election.term == 1


async def test_a_crashed_leader_is_followed_within_its_lease_and_two_looks_under_a_higher_term() -> None:
    store = Store()
    a, b = Process(store, "a_1"), Process(store, "b_1")
    async with standing(b), standing(a):
        await until(lambda: a.may_write or b.may_write, 1)
        leader, other = (a, b) if a.may_write else (b, a)
        leader.link.black_hole = True
        took_s = await until(lambda: other.may_write, 15)
        # A look, up to 2 s later, sees the renewal that was the last; its 10 s end up to another look before the next.
        assert took_s <= 14
        assert not leader.may_write
        assert other.election.term == 2
        assert not leader.election.leading.is_set()


async def test_a_clean_shutdown_hands_over_at_the_next_look() -> None:
    store = Store()
    a, b = Process(store, "a_1"), Process(store, "b_1")
    async with standing(b):
        await until(lambda: b.may_write, 1)
        async with standing(a):
            await asyncio.sleep(1)
            b_task_ends = store.lease
            assert b_task_ends is not None
            assert b_task_ends.holder == "b_1"
    async with standing(a):
        assert await until(lambda: a.may_write, 5) <= 2.5


@pytest.mark.parametrize("fault", ["refused", "black_hole"])
async def test_a_leader_without_the_server_stops_before_its_successor_may_start(fault: str) -> None:
    store = Store()
    a, b = Process(store, "a_1"), Process(store, "b_1")
    async with standing(a):
        await until(lambda: a.may_write, 1)
        async with standing(b):
            setattr(a.link, fault, True)
            await never(lambda: a.may_write and b.may_write, 30)
            assert b.may_write
            setattr(a.link, fault, False)
            await never(lambda: a.may_write, 10)
            assert not a.election.leading.is_set()


async def test_validity_counts_from_before_the_renewal_was_sent() -> None:
    store = Store()
    a = Process(store, "a_1")
    a.link.answer_delay_s = 1.5
    async with standing(a):
        await until(lambda: a.may_write, 5)
        # The answer came 1.5 s after the write; the lease is not counted from the answer.
        assert a.election.left_s() <= 8.5 - 1.5


async def test_a_renewal_whose_answer_never_comes_in_time_is_not_believed() -> None:
    store = Store()
    a = Process(store, "a_1")
    a.link.answer_delay_s = 100
    async with standing(a):
        await never(lambda: a.may_write, 30)


async def test_a_foreign_write_of_the_lease_ends_leadership_at_the_next_renewal() -> None:
    store = Store()
    a = Process(store, "a_1")
    async with standing(a):
        await until(lambda: a.may_write, 1)
        assert store.lease is not None
        store.version += 1
        store.lease = replace(store.lease, holder="somebody", version=str(store.version))
        assert await until(lambda: not a.may_write, 5) <= 2.1
        assert not a.election.leading.is_set()
        assert a.election.term == 1
        await until(lambda: a.election.holder == "somebody", 3)


async def test_the_next_life_of_the_same_pod_need_not_wait() -> None:
    store = Store()
    a = Process(store, "a_1")
    async with standing(a):
        await until(lambda: a.may_write, 1)
        a.link.refused = True  # it dies without handing over
    again = Process(store, "a_2")
    async with standing(again):
        assert await until(lambda: again.may_write, 1) < 1
        assert again.election.term == 2


async def test_a_renewal_whose_answer_was_lost_is_taken_for_our_own() -> None:
    store = Store()
    a = Process(store, "a_1")
    async with standing(a):
        await until(lambda: a.may_write, 1)
        a.link.answer_delay_s = 60
        await asyncio.sleep(5)
        a.link.answer_delay_s = 0
        await never(lambda: not a.may_write, 20)
        assert a.election.term == 1


async def test_a_slow_server_is_no_reason_to_stop_leading() -> None:
    store = Store()
    a = Process(store, "a_1")
    async with standing(a):
        await until(lambda: a.may_write, 1)
        a.link.answer_delay_s = 2.5
        await never(lambda: not a.may_write, 60)


async def test_an_interruption_in_which_nobody_else_led_keeps_the_term() -> None:
    store = Store()
    a = Process(store, "a_1")
    async with standing(a):
        await until(lambda: a.may_write, 1)
        a.link.refused = True
        await until(lambda: not a.may_write, 10)
        a.link.refused = False
        await until(lambda: a.may_write, 3)
        assert a.election.term == 1
