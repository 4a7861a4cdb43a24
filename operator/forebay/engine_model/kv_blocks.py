"""Paged KV cache: blocks of 16 tokens, reference counts, a hash chain over full blocks, and eviction of the oldest.

The ground floor of the engine model. The ring of free blocks is two flat integer arrays and functions over them, so
that a compiler for arrays can take the rules as they stand.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableSequence, Sequence
from hashlib import blake2b
from typing import TypeAlias

BLOCK_TOKENS = 16  # vLLM's default on GPUs; a prefix shorter than one block is never shared
NO_HASH = -1

Ints: TypeAlias = MutableSequence[int]


class BlocksExhaustedError(RuntimeError):
    """More blocks were asked for than are free; whoever asks must look at `free` first."""


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


def ring_append(before: Ints, after: Ints, anchor: int, item: int) -> None:
    """Put `item` at the young end of the ring that starts and ends at `anchor`."""
    last = before[anchor]
    after[last] = item
    before[item] = last
    after[item] = anchor
    before[anchor] = item


def ring_remove(before: Ints, after: Ints, item: int) -> None:
    """Take `item` out of its ring."""
    left, right = before[item], after[item]
    after[left] = right
    before[right] = left


class BlockPool:
    """All KV blocks of one engine.

    A block is *held* (references > 0) or *free*. A free block may still bear the hash of what it holds: then it is
    cached, and a later request with the same prefix takes it back. The oldest free block is given out first, and only
    then is its content forgotten.

    Parameters
    ----------
    total
        Blocks that requests can hold, at least 1.
    """

    __slots__ = ("_after", "_before", "_by_hash", "_hashes", "_references", "free", "total")

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError(f"a block pool needs at least one block, got {total}")
        self.total = total
        self.free = total
        self._references = [0] * total
        self._hashes = [NO_HASH] * total
        self._by_hash: dict[int, int] = {}
        self._before = [total, *range(total)]
        self._after = [*range(1, total + 1), 0]

    @property
    def used(self) -> int:
        """Blocks held by at least one request."""
        return self.total - self.free

    @property
    def cached(self) -> int:
        """Blocks, held or free, that a request with the same prefix would find."""
        return len(self._by_hash)

    def find(self, hashes: Sequence[int], limit: int) -> list[int]:
        """Return the blocks of the longest cached prefix, at most `limit` of them."""
        found: list[int] = []
        for index in range(min(limit, len(hashes))):
            block = self._by_hash.get(hashes[index])
            if block is None:
                break
            found.append(block)
        return found

    def free_among(self, blocks: Iterable[int]) -> int:
        """Count the blocks that `hold` would take out of the free ones."""
        return sum(1 for block in blocks if self._references[block] == 0)

    def hold(self, blocks: Iterable[int]) -> None:
        """Add a reference to each block."""
        for block in blocks:
            if self._references[block] == 0:
                ring_remove(self._before, self._after, block)
                self.free -= 1
            self._references[block] += 1

    def take(self, count: int) -> list[int]:
        """Hand out the `count` oldest free blocks, each with one reference; what they cached is forgotten.

        Raises
        ------
        BlocksExhaustedError
            When fewer are free; nothing has changed then.
        """
        if count > self.free:
            raise BlocksExhaustedError(f"{count} blocks asked for, {self.free} free of {self.total}")
        taken: list[int] = []
        for _ in range(count):
            block = self._after[self.total]
            ring_remove(self._before, self._after, block)
            self._forget(block)
            self._references[block] = 1
            taken.append(block)
        self.free -= count
        return taken

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each block, the last block first: a prefix's tail is evicted before its head."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                ring_append(self._before, self._after, self.total, block)
                self.free += 1

    def remember(self, block: int, content_hash: int) -> None:
        """Let later requests find a full block, unless another block with the same content is found already."""
        if content_hash not in self._by_hash:
            self._forget(block)
            self._hashes[block] = content_hash
            self._by_hash[content_hash] = block

    def forget_all(self) -> None:
        """Empty the prefix cache; held blocks stay held."""
        for block in self._by_hash.values():
            self._hashes[block] = NO_HASH
        self._by_hash.clear()

    def _forget(self, block: int) -> None:
        if self._hashes[block] != NO_HASH:
            del self._by_hash[self._hashes[block]]
            self._hashes[block] = NO_HASH
