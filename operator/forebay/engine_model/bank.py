"""The state of a bank of equal engines as flat arrays of integers: the ground floor of the engine model.

The rules in `kv_blocks` and `scheduler` are functions over these arrays. One engine in a pod runs them plain, on lists;
a simulator has them compiled and runs them on int64 arrays, a lane an engine. There is no second implementation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Lists where the rules run plain, int64 arrays where they are compiled.
Ints: TypeAlias = "list[int] | NDArray[np.int64]"

BLOCK_TOKENS = 16  # vLLM's default on GPUs: on CPUs it wants 32; a prefix shorter than one block is never shared
NO_HASH = -1
NEVER = -1  # `cached` of a request that was not admitted yet

# `size`: what every engine of the bank is made of.
LANES, SEQS_MAX, STEP_TOKENS_MAX, BLOCKS, CACHING, MAP_SLOTS, ROW_BLOCKS, ID_BLOCKS, KV_BLOCK_TOKENS = range(9)
SIZES = 9
# `counts`: what a lane counts; the last ones speak of its present step.
(
    RUNNING,
    WAITING,
    BLOCKS_FREE,
    BLOCKS_CACHED,
    PREEMPTIONS,
    STEP_DECODING,
    STEP_CONTEXT_TOKENS,
    STEP_PROMPT_TOKENS,
    STEP_PAIRS,
    STEP_PREEMPTED,
    STEP_ADMITTED,
    EMITTED,
    FINISHED,
    STEP_TOKENS,
) = range(14)
COUNTS = 14


class Bank(NamedTuple):
    """All arrays. A lane is an engine, a row a request; row numbers begin at `size[LANES]`.

    The entries below a row number of LANES belong to lanes: they anchor the rings of waiting requests.
    """

    size: Ints  # [SIZES]
    counts: Ints  # [lanes * COUNTS]
    # Batches, [lanes * seqs_max] each: rows in the order in which they were admitted, and what the last step did.
    running: Ints
    emitted: Ints  # rows with one more output token
    finished: Ints  # those of them that have reached their limit
    # Requests, one entry a row.
    prompt: Ints  # tokens
    limit: Ints  # output tokens that it will have in the end
    output: Ints  # output tokens so far
    computed: Ints  # tokens whose KV is there
    chunk: Ints  # tokens in the present step
    cached: Ints  # prompt tokens found cached when first admitted; NEVER before
    preempted: Ints  # times
    held: Ints  # blocks
    remembered: Ints  # blocks that others can find
    id_at: Ints  # where its prefix ids begin in `ids`
    id_count: Ints
    before: Ints  # the ring of its lane's waiting requests
    after: Ints
    table: Ints  # [rows * row_blocks] its blocks; empty without prefix caching, where only their number counts
    # Prefix ids: `size[ID_BLOCKS]` blocks share one, and equal ids mean equal content and equal content before it.
    ids: Ints
    # Blocks, [lanes * (blocks + 1)] each, the last entry of a lane anchors its ring of free blocks; empty without
    # prefix caching.
    references: Ints
    content: Ints  # the hash that a block is found by, or NO_HASH
    older: Ints
    younger: Ints
    # Which block holds which content, [lanes * map_slots] each: open addressing, linear probing.
    map_hash: Ints
    map_block: Ints


def new_bank(
    *,
    lanes: int,
    seqs_max: int,
    step_tokens_max: int,
    blocks: int,
    row_blocks: int,
    caching: bool,
    block_tokens: int = BLOCK_TOKENS,
) -> Bank:
    """Make a bank of idle engines without any row, on lists.

    Parameters
    ----------
    lanes
        Engines.
    seqs_max, step_tokens_max
        Most requests, and most tokens, in one step of one engine.
    blocks
        KV blocks that requests of one engine can hold, at least 1.
    row_blocks
        Most blocks that one request can hold; matters with prefix caching only.
    caching
        Whether full blocks are found again by content.
    block_tokens
        Tokens that a block holds.

    Raises
    ------
    ValueError
        When there are no blocks.
    """
    if blocks < 1:
        raise ValueError(f"an engine needs at least one KV block, got {blocks}")
    slots = 1 << (2 * blocks - 1).bit_length() if caching else 0
    places = lanes * (blocks + 1) if caching else 0
    older, younger = list(range(places)), list(range(places))
    for lane in range(lanes if caching else 0):
        first, anchor = lane * (blocks + 1), lane * (blocks + 1) + blocks
        for block in range(first, anchor):
            older[block], younger[block] = block - 1, block + 1
        older[first], younger[anchor], older[anchor] = anchor, first, anchor - 1
    counts = [0] * (lanes * COUNTS)
    for lane in range(lanes):
        counts[lane * COUNTS + BLOCKS_FREE] = blocks
    anchors, row_places = [0] * lanes, row_blocks if caching else 0
    return Bank(
        size=[lanes, seqs_max, step_tokens_max, blocks, int(caching), slots, row_places, 1, block_tokens],
        counts=counts,
        running=[0] * (lanes * seqs_max),
        emitted=[0] * (lanes * seqs_max),
        finished=[0] * (lanes * seqs_max),
        **{name: list(anchors) for name in ROW_FIELDS},
        before=list(range(lanes)),
        after=list(range(lanes)),
        table=[0] * (lanes * row_places),
        ids=[],
        references=[0] * places,
        content=[NO_HASH] * places,
        older=older,
        younger=younger,
        map_hash=[NO_HASH] * (lanes * slots),
        map_block=[0] * (lanes * slots),
    )


ROW_FIELDS = (
    "prompt",
    "limit",
    "output",
    "computed",
    "chunk",
    "cached",
    "preempted",
    "held",
    "remembered",
    "id_at",
    "id_count",
)


def add_row(bank: Bank) -> int:
    """Lengthen a bank of lists by one row; return its number."""
    row = len(bank.prompt)
    for name in (*ROW_FIELDS, "before", "after", *(["table"] * bank.size[ROW_BLOCKS])):
        getattr(bank, name).append(0)
    return row


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
