"""TELL: which share of requests was good lately, from the engines' own histograms.

The histograms know TTFT and ITL apart and do not know a request's worst second, so the share told is the smaller of the
two: an upper bound of what clients saw. The demo's scorecard and the benchmark judge single requests.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from forebay.core.units import UNKNOWN
from forebay.wire.signals import ITL_BOUNDS_MS, TTFT_BOUNDS_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.core.fleet import FleetSpec
    from forebay.core.snapshot import Snapshot
    from forebay.core.units import I64

WINDOW_MS = 1_800_000  # the policy's attainment is over 30 minutes
SLICE_MS = 60_000
_TTFT = len(TTFT_BOUNDS_MS) + 1


class Attainment:
    """Counts good and all first tokens, good and all gaps, per service over the last 30 minutes.

    Parameters
    ----------
    window_ms
        How far back it counts instead.
    """

    def __init__(self, window_ms: int = WINDOW_MS) -> None:
        self._window_ms = window_ms
        self._before: dict[str, I64] = {}  # replica uid to both histograms
        self._slices: deque[tuple[int, dict[str, I64]]] = deque()  # since, service to [ttft good, all, itl good, all]

    def take(self, fleet: FleetSpec, snapshot: Snapshot) -> None:
        """Add what happened since the last look. A counter that went back, and a new replica, is a new baseline."""
        rows = snapshot.replicas
        now = np.concatenate([rows.ttft_buckets, rows.itl_buckets], axis=1)
        sums: dict[str, I64] = {}
        seen: dict[str, I64] = {}
        for row, uid in enumerate(rows.uid):
            if (now[row] == UNKNOWN).any():
                if uid in self._before:
                    seen[uid] = self._before[uid]
                continue
            seen[uid] = now[row]
            before = self._before.get(uid)
            if before is None or (delta := now[row] - before).min() < 0 or not delta.any():
                continue
            place = int(rows.service[row])
            good = _good(
                fleet, place, delta, _mean_prompt(int(rows.prompt_tokens_total[row]), int(now[row, _TTFT - 1]))
            )
            key = fleet.services[place]
            sums[key] = sums[key] + good if key in sums else good
        self._before = seen
        self._add(snapshot.now_ms, sums)

    def _add(self, now_ms: int, sums: dict[str, I64]) -> None:
        if not self._slices or now_ms - self._slices[-1][0] >= SLICE_MS:
            self._slices.append((now_ms, {}))
        current = self._slices[-1][1]
        for key, value in sums.items():
            current[key] = current[key] + value if key in current else value
        while now_ms - self._slices[0][0] > self._window_ms:
            self._slices.popleft()

    def permille(self) -> dict[str, int]:
        """Return the share of good requests of every service that had any, in thousandths."""
        total: dict[str, I64] = {}
        for _, sums in self._slices:
            for key, value in sums.items():
                total[key] = total[key] + value if key in total else value
        shares = {}
        for key, (ttft_good, ttft_all, itl_good, itl_all) in total.items():
            parts = [good * 1000 // every for good, every in ((ttft_good, ttft_all), (itl_good, itl_all)) if every > 0]
            if parts:
                shares[key] = int(min(parts))
        return shares


def _mean_prompt(prompt_tokens: int, first_tokens: int) -> int:
    return prompt_tokens // first_tokens if prompt_tokens != UNKNOWN and first_tokens > 0 else 0


def _good(fleet: FleetSpec, place: int, delta: I64, prompt_tokens: int) -> I64:
    ttft, itl = delta[:_TTFT], delta[_TTFT:]
    limit = int(fleet.ttft_target_ms[place] + fleet.ttft_per_1k_prompt_tokens_ms[place] * prompt_tokens // 1000)
    return np.array(
        [
            _below(ttft, TTFT_BOUNDS_MS, limit), ttft[-1],
            _below(itl, ITL_BOUNDS_MS, int(fleet.itl_worst_second_ms[place])), itl[-1],
        ],
        np.int64,
    )  # fmt: skip


def _below(cumulative: I64, bounds: Sequence[int], limit: int) -> int:
    """Count observations up to a limit, a bucket that the limit divides by its share of the bucket's width."""
    lower, under = 0, 0
    counts: list[int] = cumulative.tolist()
    for bound, count in zip(bounds, counts, strict=False):
        if bound >= limit:
            return under + (count - under) * (limit - lower) // (bound - lower)
        lower, under = bound, count
    return under
