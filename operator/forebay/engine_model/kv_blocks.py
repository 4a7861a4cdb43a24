"""Paged KV cache: blocks of some tokens, reference counts, a hash chain over full blocks, and eviction of the oldest.

A block is *held* (references > 0) or *free*. A free block may still bear the hash of what it holds: then it is cached,
and a later request with the same prefix takes it back. Blocks that bear no hash are given out first, then the oldest,
and only then is its content forgotten. A bank without prefix caching has no identities at all: blocks are a number.
"""

from __future__ import annotations

from hashlib import blake2b

from forebay.engine_model.bank import (
    BLOCKS,
    BLOCKS_CACHED,
    BLOCKS_FREE,
    CACHING,
    COUNTS,
    ID_BLOCKS,
    MAP_SLOTS,
    NO_HASH,
    ROW_BLOCKS,
    Bank,
    ring_append,
    ring_remove,
)


def chain_hash(parent: int, content: bytes) -> int:
    """Name a full block by what it holds and by everything before it.

    Parameters
    ----------
    parent
        Hash of the block before, 0 for the first.
    content
        The block's tokens in any fixed encoding.

    Returns
    -------
    int
        63 bits, never NO_HASH: two of 10^7 different blocks collide with a chance of 10^-5.
    """
    digest = blake2b(content, digest_size=8, key=parent.to_bytes(8, "little")).digest()
    return int.from_bytes(digest, "little") >> 1


def block_hash(bank: Bank, row: int, index: int) -> int:
    """Return the hash of a request's full block `index`; it must be below its `id_count * size[ID_BLOCKS]`."""
    share = bank.size[ID_BLOCKS]
    return bank.ids[bank.id_at[row] + index // share] * share + index % share


def map_slot(bank: Bank, lane: int, content: int) -> int:
    """Return where in the map a content is, or would be."""
    slots = bank.size[MAP_SLOTS]
    base = lane * slots
    # 31 bits times 30: neither lists nor int64 arrays overflow. Neighbours are scattered by the odd factor.
    at = (((content ^ (content >> 31)) & 0x7FFFFFFF) * 668265263 >> 7) & (slots - 1)
    while bank.map_hash[base + at] != NO_HASH and bank.map_hash[base + at] != content:
        at = (at + 1) & (slots - 1)
    return base + at


def map_forget(bank: Bank, lane: int, content: int) -> None:
    """Take a content out of the map, and move back what probing had pushed past it."""
    slots = bank.size[MAP_SLOTS]
    base = lane * slots
    hole = map_slot(bank, lane, content) - base
    bank.map_hash[base + hole] = NO_HASH
    at = (hole + 1) & (slots - 1)
    while bank.map_hash[base + at] != NO_HASH:
        moved, block = bank.map_hash[base + at], bank.map_block[base + at]
        bank.map_hash[base + at] = NO_HASH
        home = map_slot(bank, lane, moved)
        bank.map_hash[home] = moved
        bank.map_block[home] = block
        at = (at + 1) & (slots - 1)


def find_prefix(bank: Bank, lane: int, row: int, limit: int) -> int:
    """Write the blocks of the longest cached prefix of a request, at most `limit`, into its table; return how many."""
    known = min(limit, bank.id_count[row] * bank.size[ID_BLOCKS])
    base = row * bank.size[ROW_BLOCKS]
    for index in range(known):
        slot = map_slot(bank, lane, block_hash(bank, row, index))
        if bank.map_hash[slot] == NO_HASH:
            return index
        bank.table[base + index] = bank.map_block[slot]
    return known


def free_among(bank: Bank, row: int, count: int) -> int:
    """Count those of the first blocks in a request's table that `hold` would take out of the free ones."""
    base = row * bank.size[ROW_BLOCKS]
    free = 0
    for index in range(count):
        if bank.references[bank.table[base + index]] == 0:
            free += 1
    return free


def hold(bank: Bank, lane: int, row: int, count: int) -> None:
    """Add a reference to each of the first blocks in a request's table."""
    base = row * bank.size[ROW_BLOCKS]
    for index in range(count):
        block = bank.table[base + index]
        if bank.references[block] == 0:
            ring_remove(bank.older, bank.younger, block)
            bank.counts[lane * COUNTS + BLOCKS_FREE] -= 1
        bank.references[block] += 1


def take(bank: Bank, lane: int, row: int, start: int, count: int) -> None:
    """Hand a request the `count` oldest free blocks, from place `start` of its table on; what they cached is forgotten.

    There must be as many: whoever takes looks at the count of free blocks first.
    """
    if count == 0:  # most decodes stay within their block
        return
    bank.counts[lane * COUNTS + BLOCKS_FREE] -= count
    if bank.size[CACHING] == 0:
        return
    base = row * bank.size[ROW_BLOCKS] + start
    anchor = lane * (bank.size[BLOCKS] + 1) + bank.size[BLOCKS]
    for index in range(count):
        block = bank.younger[anchor]
        ring_remove(bank.older, bank.younger, block)
        forget_block(bank, lane, block)
        bank.references[block] = 1
        bank.table[base + index] = block


def release(bank: Bank, lane: int, row: int, count: int) -> None:
    """Drop one reference of each of a request's blocks, the last first: a prefix's tail is evicted before its head.

    What nobody can find is of use to nobody: it goes to the old end, and spares a block that somebody may find
    (vllm/v1/core/block_pool.py:free_blocks of 0.32).
    """
    if bank.size[CACHING] == 0:
        bank.counts[lane * COUNTS + BLOCKS_FREE] += count
        return
    base = row * bank.size[ROW_BLOCKS]
    anchor = lane * (bank.size[BLOCKS] + 1) + bank.size[BLOCKS]
    for index in range(count - 1, -1, -1):
        block = bank.table[base + index]
        bank.references[block] -= 1
        if bank.references[block] == 0:
            place = bank.younger[anchor] if bank.content[block] == NO_HASH else anchor
            ring_append(bank.older, bank.younger, place, block)
            bank.counts[lane * COUNTS + BLOCKS_FREE] += 1


def remember(bank: Bank, lane: int, block: int, content: int) -> None:
    """Let later requests find a full block, unless another block with the same content is found already."""
    if bank.map_hash[map_slot(bank, lane, content)] != NO_HASH:
        return
    forget_block(bank, lane, block)
    slot = map_slot(bank, lane, content)
    bank.map_hash[slot] = content
    bank.map_block[slot] = block
    bank.content[block] = content
    bank.counts[lane * COUNTS + BLOCKS_CACHED] += 1


def forget_block(bank: Bank, lane: int, block: int) -> None:
    """Let nobody find a block any more."""
    if bank.content[block] != NO_HASH:
        map_forget(bank, lane, bank.content[block])
        bank.content[block] = NO_HASH
        bank.counts[lane * COUNTS + BLOCKS_CACHED] -= 1


def forget_all(bank: Bank, lane: int) -> None:
    """Empty a lane's prefix cache; held blocks stay held."""
    if bank.size[CACHING] == 0:
        return
    first = lane * (bank.size[BLOCKS] + 1)
    for block in range(first, first + bank.size[BLOCKS]):
        forget_block(bank, lane, block)
