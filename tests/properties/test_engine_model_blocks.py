"""Whatever is done to a block pool, every block is either held or free, once."""

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from tests.engine_model.build import BlockPool

TOTAL = 12
HASHES = st.lists(st.integers(0, 20), min_size=1, max_size=4)


class Blocks(RuleBasedStateMachine):
    """A pool beside a model of it: the multiset of references, and what each block was last remembered for."""

    holdings = Bundle("holdings")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(TOTAL)
        self.references: Counter[int] = Counter()
        self.content: dict[int, int] = {}

    @rule(target=holdings, count=st.integers(0, 5))
    def take(self, count: int) -> object:
        if count > self.pool.free:
            return multiple()
        blocks = self.pool.take(count)
        assert not any(self.references[block] for block in blocks)
        self.references.update(blocks)
        for block in blocks:
            self.content.pop(block, None)
        return blocks

    @rule(target=holdings, hashes=HASHES, limit=st.integers(0, 5))
    def hold_what_is_found(self, hashes: list[int], limit: int) -> list[int]:
        blocks = self.pool.find(hashes, limit)
        assert [self.content[block] for block in blocks] == hashes[: len(blocks)]
        before = self.pool.free
        expected = len({block for block in blocks if not self.references[block]})
        self.pool.hold(blocks)
        assert before - self.pool.free == expected
        self.references.update(blocks)
        return blocks

    @rule(blocks=holdings, content=st.integers(0, 20))
    def remember(self, blocks: list[int], content: int) -> None:
        for block in blocks[:1]:
            if content not in self.content.values():
                self.content[block] = content
            self.pool.remember(block, content)

    @rule(blocks=consumes(holdings))
    def release(self, blocks: list[int]) -> None:
        self.pool.release(blocks)
        self.references.subtract(blocks)

    @rule()
    def forget_all(self) -> None:
        self.pool.forget_all()
        self.content.clear()

    @invariant()
    def every_block_is_held_or_free(self) -> None:
        held = {block for block, count in self.references.items() if count > 0}
        assert self.pool.used == len(held)
        assert self.pool.free == TOTAL - len(held)
        assert self.pool.cached == len(self.content)
        # Walking the ring of free blocks meets exactly the blocks that nobody holds.
        ring, at = [], self.pool.bank.younger[TOTAL]
        while at != TOTAL:
            ring.append(at)
            at = self.pool.bank.younger[at]
        assert sorted(ring) == sorted(set(range(TOTAL)) - held)
        assert all(self.pool.find([content], 1) == [block] for block, content in self.content.items())


TestBlocks = Blocks.TestCase
