"""Blocks are held, freed, found again by content, and evicted oldest first; none is ever lost."""

import random

import pytest

from forebay.engine_model.bank import NO_HASH
from forebay.engine_model.kv_blocks import chain_hash
from tests.engine_model.build import BlockPool


def test_a_hash_names_the_content_and_everything_before_it() -> None:
    first, other = chain_hash(0, b"system prompt"), chain_hash(0, b"another one")
    assert chain_hash(0, b"system prompt") == first
    assert len({first, other, chain_hash(first, b"question"), chain_hash(other, b"question")}) == 4
    assert all(0 <= value < 2**63 and value != NO_HASH for value in (first, other))


def test_a_freed_prefix_is_found_again_until_its_blocks_are_needed() -> None:
    pool = BlockPool(4)
    blocks = pool.take(2)
    pool.remember(blocks[0], 11)
    pool.remember(blocks[1], 12)
    pool.release(blocks)
    assert (pool.free, pool.cached, pool.find([11, 12, 13], 9)) == (4, 2, blocks)
    assert pool.find([11, 12], 1) == blocks[:1]
    pool.take(3)  # two blocks that never held anything, then the oldest cached one: the prefix's tail
    assert pool.find([11, 12], 2) == blocks[:1]
    pool.take(1)
    assert pool.find([11, 12], 2) == []


def test_a_shared_block_is_freed_by_its_last_holder() -> None:
    pool = BlockPool(2)
    blocks = pool.take(1)
    pool.hold(blocks)
    assert (pool.used, pool.free_among(blocks)) == (1, 0)
    pool.release(blocks)
    assert pool.used == 1
    pool.release(blocks)
    assert (pool.used, pool.free_among(blocks)) == (0, 1)


def test_holding_a_free_block_saves_it_from_eviction() -> None:
    pool = BlockPool(2)
    (block,) = pool.take(1)
    pool.remember(block, 7)
    pool.release([block])
    pool.hold([block])
    pool.take(1)
    assert pool.find([7], 1) == [block]
    assert pool.free == 0


def test_a_freed_block_that_nobody_can_find_is_given_out_before_those_that_somebody_may_find() -> None:
    pool = BlockPool(3)
    found, nameless = pool.take(2)
    pool.remember(found, 7)
    pool.release([found, nameless])  # and a third block that was never used, the oldest
    assert pool.take(2)[0] == nameless
    assert pool.find([7], 1) == [found]


def test_the_same_content_computed_twice_is_found_in_the_first_place() -> None:
    pool = BlockPool(2)
    first, second = pool.take(2)
    pool.remember(first, 7)
    pool.remember(second, 7)
    assert pool.find([7], 1) == [first]


def test_forgetting_all_keeps_what_is_held() -> None:
    pool = BlockPool(2)
    (block,) = pool.take(1)
    pool.remember(block, 7)
    pool.forget_all()
    assert (pool.cached, pool.used, pool.find([7], 1)) == (0, 1, [])
    pool.release([block])
    assert pool.free == 2


def test_a_pool_needs_a_block() -> None:
    with pytest.raises(ValueError, match="at least one KV block"):
        BlockPool(0)


def test_a_million_random_operations_lose_no_block() -> None:
    dice = random.Random(3)
    pool = BlockPool(64)
    held: list[list[int]] = []
    for _ in range(1_000_000):
        content = dice.randrange(100)
        if held and dice.random() < 0.5:
            pool.release(held.pop(dice.randrange(len(held))))
        elif found := pool.find([content, content + 1, content + 2], dice.randrange(4)):
            pool.hold(found)
            held.append(found)
        elif pool.free:
            held.append(pool.take(min(pool.free, dice.randrange(1, 4))))
            pool.remember(held[-1][0], content)
    assert pool.used == len({block for blocks in held for block in blocks})
    for blocks in held:
        pool.release(blocks)
    assert pool.free == 64
    assert sorted(pool.take(64)) == list(range(64))
    assert pool.cached == 0
