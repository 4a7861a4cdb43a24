"""A bank of one engine for tests of its rules: a pool of blocks, or a scheduler whose requests have names."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.engine_model import bank as arrays
from forebay.engine_model import kv_blocks, scheduler
from forebay.engine_model.bank import Bank, add_row, new_bank
from forebay.engine_model.kv_blocks import chain_hash

ROW_BLOCKS = 16


class BlockPool:
    """The blocks of one engine, each list of blocks a request's."""

    def __init__(self, total: int) -> None:
        self.bank = new_bank(
            lanes=1, seqs_max=1, step_tokens_max=1, blocks=total, row_blocks=max(ROW_BLOCKS, total), caching=True
        )
        self.total = total
        self._row = add_row(self.bank)

    @property
    def free(self) -> int:
        return self.bank.counts[arrays.BLOCKS_FREE]

    @property
    def used(self) -> int:
        return self.total - self.free

    @property
    def cached(self) -> int:
        return self.bank.counts[arrays.BLOCKS_CACHED]

    def row(self, blocks: list[int], hashes: list[int] | None = None) -> int:
        """The one row, its table holding these blocks: only the pool's own state lasts."""
        scheduler.place_row(self.bank, self._row, 1, 1, 0, len(hashes or []))
        self.bank.ids[:] = hashes or []
        base = self._row * self.bank.size[arrays.ROW_BLOCKS]
        self.bank.table[base : base + len(blocks)] = blocks
        return self._row

    def blocks(self, row: int, count: int) -> list[int]:
        base = row * self.bank.size[arrays.ROW_BLOCKS]
        return list(self.bank.table[base : base + count])

    def take(self, count: int) -> list[int]:
        row = self.row([])
        kv_blocks.take(self.bank, 0, row, 0, count)
        return self.blocks(row, count)

    def hold(self, blocks: list[int]) -> None:
        kv_blocks.hold(self.bank, 0, self.row(blocks), len(blocks))

    def release(self, blocks: list[int]) -> None:
        kv_blocks.release(self.bank, 0, self.row(blocks), len(blocks))

    def free_among(self, blocks: list[int]) -> int:
        return kv_blocks.free_among(self.bank, self.row(blocks), len(blocks))

    def find(self, hashes: list[int], limit: int) -> list[int]:
        row = self.row([], hashes)
        return self.blocks(row, kv_blocks.find_prefix(self.bank, 0, row, limit))

    def remember(self, block: int, content: int) -> None:
        kv_blocks.remember(self.bank, 0, block, content)

    def forget_all(self) -> None:
        kv_blocks.forget_all(self.bank, 0)


@dataclass
class Step:
    """What a step was."""

    shares: dict[str, int]
    admitted: dict[str, int]  # name -> tokens found cached at the first admission
    preempted: int
    decoding: int
    context_tokens: int
    prompt_tokens: int
    pairs: int


class Scheduler:
    """One engine's queue and batch; requests are known by name."""

    def __init__(
        self, blocks: int = 1000, *, seqs: int = 8, budget: int = 64, caching: bool = True, block_tokens: int = 16
    ) -> None:
        self.bank: Bank = new_bank(
            lanes=1,
            seqs_max=seqs,
            step_tokens_max=budget,
            blocks=blocks,
            row_blocks=ROW_BLOCKS,
            caching=caching,
            block_tokens=block_tokens,
        )
        self.names: dict[int, str] = {}

    def add(self, name: str, prompt: int, *, output: int = 100, generated: int = 0, text: str | None = None) -> int:
        hashes: list[int] = []
        for index in range((prompt + output) // 16):
            hashes.append(chain_hash(hashes[-1] if hashes else 0, f"{text or name} {index}".encode()))
        row = add_row(self.bank)
        scheduler.place_row(self.bank, row, prompt, output, len(self.bank.ids), len(hashes))
        self.bank.ids.extend(hashes)
        self.bank.output[row] = generated
        scheduler.queue(self.bank, 0, row)
        self.names[row] = name
        return row

    def row(self, name: str) -> int:
        return next(row for row, other in self.names.items() if other == name)

    def remove(self, name: str) -> None:
        scheduler.remove_row(self.bank, 0, self.row(name))

    @property
    def running(self) -> list[str]:
        return [self.names[row] for row in self.bank.running[: self.bank.counts[arrays.RUNNING]]]

    @property
    def waiting(self) -> list[str]:
        names, row = [], self.bank.after[0]
        while row != 0:
            names.append(self.names[row])
            row = self.bank.after[row]
        assert len(names) == self.bank.counts[arrays.WAITING]
        return names

    def step(self) -> Step:
        """Form a step and end it."""
        count = self.bank.counts
        scheduler.form_step(self.bank, 0)
        rows = self.bank.running[: count[arrays.RUNNING]]
        admitted = rows[len(rows) - count[arrays.STEP_ADMITTED] :]
        step = Step(
            {self.names[row]: self.bank.chunk[row] for row in rows if self.bank.chunk[row]},
            {self.names[row]: self.bank.cached[row] for row in admitted},
            count[arrays.STEP_PREEMPTED],
            count[arrays.STEP_DECODING],
            count[arrays.STEP_CONTEXT_TOKENS],
            count[arrays.STEP_PROMPT_TOKENS],
            count[arrays.STEP_PAIRS],
        )
        scheduler.end_step(self.bank, 0)
        assert count[arrays.STEP_TOKENS] == sum(step.shares.values())
        return step
