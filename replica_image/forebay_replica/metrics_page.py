"""What an engine's /metrics page says, as signals: parsed, or one named error.

A page has 600 lines and more, of which some 70 matter: those are picked by name first. The labels of a series never
change while an engine lives, so the parser (20 us a line) sees each series once and only the values are read anew
each time; a page of 100 kB then costs well under 2 ms. A number that the page does not bear, or bears as NaN, is None
and never zero.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from forebay.wire import engine_metrics as names
from forebay.wire.signals import ITL_BOUNDS_MS, TTFT_BOUNDS_MS, ReplicaSignals

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# A line of a wanted sample: its series, then its value, then perhaps a time.
_LINE = re.compile(rf"\n((?:{'|'.join(sorted(names.sample_names()))})(?:\{{[^\n]*\}})?)[ \t]+([^ \t\n]+)")
_BOUNDS_MS = {"ttft_buckets": TTFT_BOUNDS_MS, "itl_buckets": ITL_BOUNDS_MS}
_MAX_COUNT = 1 << 62  # what a ReplicaSignals may carry
_SERIES_REMEMBERED = 4096  # 32 ranks; beyond that the oldest are parsed again


class Sample(NamedTuple):
    """One line of a page."""

    labels: Mapping[str, str]
    value: float


Samples = dict[str, list[Sample]]


class MetricsPageError(ValueError):
    """The page is not one of an engine that we know."""


@dataclass(frozen=True, slots=True)
class EnginePage:
    """One page. Fields that ReplicaSignals has as well mean the same there."""

    model: str | None = None
    requests_running: int | None = None
    requests_waiting: int | None = None
    requests_queued: int | None = None  # all that wait, deferred ones included
    kv_blocks_total: int | None = None
    kv_block_tokens: int | None = None
    kv_used_permille: int | None = None
    prompt_tokens_total: int | None = None
    generation_tokens_total: int | None = None
    prefix_query_tokens_total: int | None = None
    prefix_hit_tokens_total: int | None = None
    preemptions_total: int | None = None
    requests_finished_total: int | None = None
    ttft_sum_ms: int | None = None
    itl_sum_ms: int | None = None
    queue_time_sum_ms: int | None = None
    ttft_buckets: tuple[int, ...] | None = None
    itl_buckets: tuple[int, ...] | None = None
    awake: bool | None = None  # all ranks hold their GPU memory

    @property
    def idle(self) -> bool | None:
        """Nothing runs and nothing waits; None when either is not known."""
        if self.requests_running is None or self.requests_queued is None:
            return None
        return self.requests_running + self.requests_queued == 0

    def signals(self) -> dict[str, Any]:
        """Return the fields that a ReplicaSignals bears too."""
        return {name: getattr(self, name) for name in _SHARED}


_SHARED = tuple(sorted({f.name for f in fields(EnginePage)} & {f.name for f in fields(ReplicaSignals)}))


def read_page(page: bytes) -> EnginePage:
    """Read an engine's page.

    Several data-parallel ranks on one page (label `engine`) add up; KV use is the mean of the ranks, weighted by
    their blocks.

    Raises
    ------
    MetricsPageError
        When the page cannot be parsed, bears no metric of a known engine, or mixes two models.
    """
    found = _samples(page)
    spelled: dict[str, Any] = {name: _count(_pick(found, s)) for name, s in names.NUMBERS.items()}
    spelled |= {name: _count(_pick(found, s), scale=1000) for name, s in names.SECONDS.items()}
    spelled |= {name: _buckets(_pick(found, s), _BOUNDS_MS[name]) for name, s in names.BUCKETS.items()}
    awake = spelled.pop("ranks_awake")
    ranks = len(_pick(found, names.NUMBERS["ranks_awake"]))
    blocks, block_tokens = _capacity(_pick(found, names.KV_CAPACITY), ranks=len(_pick(found, names.KV_USED)))
    return EnginePage(
        model=_model(found),
        kv_blocks_total=None if blocks is None else sum(blocks.values()),
        kv_block_tokens=block_tokens,
        kv_used_permille=_kv_used(_pick(found, names.KV_USED), blocks),
        awake=None if awake is None else awake == ranks,
        **spelled,
    )


def _samples(page: bytes) -> Samples:
    found: Samples = {}
    try:
        for series, value in _LINE.findall("\n" + page.decode()):
            name, labels = _parse_series(series)
            found.setdefault(name, []).append(Sample(labels, float(value)))
    except ValueError as error:
        raise MetricsPageError(f"not in the Prometheus text format: {error}") from error
    if not found:
        raise MetricsPageError("no metric of a known engine on the page")
    return found


@lru_cache(maxsize=_SERIES_REMEMBERED)
def _parse_series(series: str) -> tuple[str, Mapping[str, str]]:
    """Return the name and labels of `name{label="value",...}`."""
    try:
        (family,) = text_string_to_metric_families(f"{series} 0\n")
        (sample,) = family.samples
    except Exception as error:  # on a broken line the parser raises whatever its slicing runs into
        raise ValueError(f"{series[:80]!r}: {error!r}") from error
    return sample.name, sample.labels


def _pick(found: Samples, spellings: Sequence[names.Spelling]) -> list[Sample]:
    """Return the samples of the first spelling that the page bears."""
    for spelling in spellings:
        samples = found.get(spelling.name, [])
        if spelling.label is not None:
            key, value = spelling.label
            samples = [sample for sample in samples if sample.labels.get(key) == value]
        if samples:
            return samples
    return []


def _model(found: Samples) -> str | None:
    models = {
        s.labels[names.LABEL_MODEL] for samples in found.values() for s in samples if names.LABEL_MODEL in s.labels
    }
    if len(models) > 1:
        raise MetricsPageError(f"one page for several models: {', '.join(sorted(models)[:4])}")
    return models.pop() if models else None


def _count(samples: Iterable[Sample], scale: int = 1) -> int | None:
    """Sum as a whole number; None without samples, or if one of them is no count."""
    values = [sample.value * scale for sample in samples]
    if not values or not all(_is_count(value) for value in values):
        return None
    return sum(round(value) for value in values)


def _is_count(value: float) -> bool:
    return math.isfinite(value) and 0 <= value < _MAX_COUNT


def _capacity(samples: list[Sample], ranks: int) -> tuple[dict[str, int] | None, int | None]:
    """KV blocks of each rank, and the tokens of one block if all ranks agree on them."""
    blocks = [_whole(sample.labels.get(names.LABEL_BLOCKS)) for sample in samples]
    sizes = {_whole(sample.labels.get(names.LABEL_BLOCK_TOKENS)) for sample in samples}
    engines = [sample.labels.get(names.LABEL_ENGINE, "") for sample in samples]
    known = [count for count in blocks if count is not None]
    # Old pages tell the capacity without a rank; with several ranks it is then unknown whose it is.
    if not known or len(known) < len(blocks) or len(set(engines)) < len(engines) or len(engines) < ranks:
        return None, None
    return dict(zip(engines, known, strict=True)), sizes.pop() if len(sizes) == 1 else None


def _whole(text: str | None) -> int | None:
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > 18:  # noqa: PLR2004 - fits into int64
        return None
    return int(text)


def _kv_used(samples: list[Sample], blocks: dict[str, int] | None) -> int | None:
    if not samples or not all(math.isfinite(s.value) and 0 <= s.value <= 1 for s in samples):
        return None
    weights = [(blocks or {}).get(sample.labels.get(names.LABEL_ENGINE, ""), 0) for sample in samples]
    if 0 in weights:
        weights = [1] * len(samples)
    return round(1000 * sum(s.value * w for s, w in zip(samples, weights, strict=True)) / sum(weights))


def _buckets(samples: list[Sample], bounds_ms: Sequence[int]) -> tuple[int, ...] | None:
    """Cumulative counts at our bounds, then the count of all.

    Where an engine has other bounds than ours, the count at its largest bound up to ours stands: certainly so many
    were as fast, so latency is overstated rather than guessed. Nothing is interpolated.
    """
    ranks: dict[str, list[tuple[float, float]]] = {}
    for sample in samples:
        try:
            bound_ms = float(sample.labels[names.LABEL_BOUND]) * 1000
        except (KeyError, ValueError):
            return None
        ranks.setdefault(sample.labels.get(names.LABEL_ENGINE, ""), []).append((bound_ms, sample.value))
    columns = [_one_rank(sorted(rank), bounds_ms) for rank in ranks.values()]
    known = [column for column in columns if column is not None]
    if not known or len(known) < len(columns):
        return None
    return tuple(sum(counts) for counts in zip(*known, strict=True))


def _one_rank(buckets: list[tuple[float, float]], bounds_ms: Sequence[int]) -> list[int] | None:
    counts = [value for _, value in buckets]
    if not all(_is_count(value) for value in counts) or counts != sorted(counts) or buckets[-1][0] != math.inf:
        return None
    column = []
    position, reached = 0, 0
    for bound_ms in (*bounds_ms, math.inf):
        # A bound of 0.07 s times 1000 is not 70 exactly: a microsecond of tolerance.
        while position < len(buckets) and buckets[position][0] <= bound_ms + 0.001:
            reached = round(counts[position])
            position += 1
        column.append(reached)
    return column
