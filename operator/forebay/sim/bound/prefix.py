"""How much of a prompt somebody else's prompt holds too: what an infinite cache that all replicas share could save."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from forebay.core.units import I64
    from forebay.sim.trace import Trace


@dataclass(frozen=True, slots=True)
class Reuse:
    """Leading tokens of each of N prompts; an engine computes at least a prompt's last token, so below its length."""

    earlier: I64  # [N] that an earlier request's prompt begins with too: nobody need compute them again
    anyone: I64  # [N] that any other request's prompt begins with: their KV may be held once for both


def reuse(trace: Trace) -> Reuse:
    """Compare all prompts, one depth of their prefix trees at a time.

    A request is followed only as deep as it has company, so the work is that of the shared blocks.
    """
    count = len(trace)
    earlier, anyone = np.zeros((2, count), np.int64)
    if trace.prefix_ids is None or trace.prefix_offsets is None:
        return Reuse(earlier, anyone)
    names, name = np.unique(trace.prefix_ids, return_inverse=True)
    start, blocks = trace.prefix_offsets[:-1], np.diff(trace.prefix_offsets)
    alive = np.arange(count)
    node = np.zeros(count, np.int64)  # of those alive: which prefix of `depth` blocks each one has
    depth = 0
    while alive.size:
        longer = blocks[alive] > depth
        alive, node = alive[longer], node[longer]
        _, first, node, sharers = np.unique(
            node * len(names) + name[start[alive] + depth], return_index=True, return_inverse=True, return_counts=True
        )
        depth += 1
        company = sharers[node] > 1
        earlier[alive[alive[first][node] < alive]] = depth
        anyone[alive[company]] = depth
        alive, node = alive[company], node[company]
    most = trace.prompt_tokens - 1
    tokens = trace.prefix_block_tokens
    return Reuse(np.minimum(earlier * tokens, most), np.minimum(anyone * tokens, most))
