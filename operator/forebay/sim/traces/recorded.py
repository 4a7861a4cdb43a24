"""From counters that somebody read now and then to requests that could have moved them so.

Requests of an interval between two readings are spread evenly over it: the first comes half a gap after its beginning.
Lengths are means: where tokens are counted on arrival, over the interval; elsewhere over a stretch of at least 60 s in
which at least 20 requests ended, for tokens and ends of one request are counted at different times. Remainders are
dealt out, so that sums stay exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from forebay.sim.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forebay.core.units import I64

STRETCH_US = 60_000_000
STRETCH_REQUESTS = 20


class Growth(NamedTuple):
    """By how much the counters of one pod grew between two of its readings."""

    from_us: int
    to_us: int
    requests: int
    prompt_tokens: int
    output_tokens: int  # 0 where counters tell of arrivals


class Counters:
    """Follows counters that several pods keep, each from its own first reading on, which is where it begins to count.

    Attributes
    ----------
    growth : list[Growth]
        What was seen so far, in order of seeing.
    """

    def __init__(self) -> None:
        self.growth: list[Growth] = []
        self._last: dict[str, tuple[int, tuple[int, int, int]]] = {}

    def see(self, pod: str, at_us: int, requests: int, prompt_tokens: int, output_tokens: int = 0) -> None:
        """Take a reading. One that is no newer than the last is the same; one that is less comes after a restart."""
        totals = (requests, prompt_tokens, output_tokens)
        before_us, before = self._last.get(pod, (at_us, totals))
        if pod in self._last and at_us <= before_us:
            return
        self._last[pod] = (at_us, totals)
        restarted = any(now < then for now, then in zip(totals, before, strict=True))
        grown = totals if restarted else tuple(now - then for now, then in zip(totals, before, strict=True))
        if any(grown):
            self.growth.append(Growth(before_us, at_us, *grown))

    def begin_anew(self) -> None:
        """Forget all readings: what comes next is of another clock."""
        self._last.clear()


def from_engines(name: str, engines: Mapping[str, I64]) -> Trace:
    """Make up the requests of engines, which count those that ended and say how many they have.

    What has ended and what is there is what came. A restart loses what was there; the first reading of an engine says
    nothing about when its requests came.

    Parameters
    ----------
    name
        Of the trace.
    engines
        Engine to its readings [K, 5]: time in us, requests ended, requests there, prompt tokens, output tokens; those
        but the third are counters.

    Raises
    ------
    ValueError
        As `estimate`.
    """
    arrivals, ends = Counters(), Counters()
    for engine, readings in engines.items():
        came, ended_before = 0, 0
        for at_us, ended, there, prompt_tokens, output_tokens in readings.tolist():
            # A page's numbers are not of one instant, so a request may be missing on it; but it has come.
            came = ended + there if ended < ended_before else max(came, ended + there)
            ended_before = ended
            arrivals.see(engine, at_us, came, 0)
            ends.see(engine, at_us, ended, prompt_tokens, output_tokens)
    from_us = min((int(readings[0, 0]) for readings in engines.values() if len(readings)), default=0)
    return estimate(name, arrivals.growth, ends.growth, from_us=from_us, prompts_on_arrival=False)


def estimate(
    name: str, arrivals: Sequence[Growth], ends: Sequence[Growth], *, from_us: int, prompts_on_arrival: bool
) -> Trace:
    """Make up requests.

    Parameters
    ----------
    name
        Of the trace.
    arrivals, ends
        Of requests that came, and of those that ended.
    from_us
        What becomes time 0.
    prompts_on_arrival
        Whether prompt tokens are those of `arrivals`, else of `ends`.

    Raises
    ------
    ValueError
        When no request came, or none ended.
    """
    came, ended = np.array(arrivals, np.int64).reshape(-1, 5), np.array(ends, np.int64).reshape(-1, 5)
    came = came[came[:, 2] > 0]
    if not len(came):
        raise ValueError(f"{name}: no request came: record a span with traffic")
    if not ended[:, 2].sum():
        raise ValueError(f"{name}: {came[:, 2].sum()} requests came and none ended, so how long they are is unknown")
    counts = came[:, 2]
    source = np.repeat(np.arange(len(came)), counts)
    rank = np.arange(len(source)) - np.repeat(np.cumsum(counts) - counts, counts)
    arrival_us = came[source, 0] + (2 * rank + 1) * (came[source, 1] - came[source, 0]) // (2 * counts[source])
    order = np.argsort(arrival_us, kind="stable")
    arrival_us = arrival_us[order]
    prompts = _dealt(came[source, 3], counts[source], rank)[order]
    return Trace(
        name=name,
        arrival_us=arrival_us - from_us,
        prompt_tokens=prompts if prompts_on_arrival else _stretched(arrival_us, ended, tokens=3),
        output_tokens=_stretched(arrival_us, ended, tokens=4),
    )


def _dealt(tokens: I64, among: I64, rank: I64) -> I64:
    """Give the request of this rank its share of tokens; shares differ by one at most, and none is zero."""
    return np.maximum(tokens * (rank + 1) // among - tokens * rank // among, 1)


def _stretched(arrival_us: I64, ended: I64, tokens: int) -> I64:
    """Give each request the mean length of the stretch in which it came."""
    edges_us, counts, sums = _stretches(ended, tokens)
    stretch = np.minimum(np.searchsorted(edges_us, arrival_us), len(edges_us) - 1)
    first = np.searchsorted(stretch, stretch)
    return _dealt(sums[stretch], counts[stretch], np.arange(len(stretch)) - first)


def _stretches(ended: I64, tokens: int) -> tuple[I64, I64, I64]:
    """Cut time into stretches: (last instant, requests that ended, tokens) of each."""
    ended = ended[np.argsort(ended[:, 1], kind="stable")]
    edges, counts, sums = [], [], []
    begun_us, requests, length = int(ended[0, 0]), 0, 0
    for to_us, more, amount in ended[:, [1, 2, tokens]].tolist():
        requests, length = requests + more, length + amount
        if to_us - begun_us >= STRETCH_US and requests >= STRETCH_REQUESTS:
            edges.append(to_us)
            counts.append(requests)
            sums.append(length)
            begun_us, requests, length = to_us, 0, 0
    if edges:
        # What is left over at the end is no stretch of its own.
        counts[-1], sums[-1] = counts[-1] + requests, sums[-1] + length
    else:
        edges, counts, sums = [int(ended[-1, 1])], [requests], [length]
    return np.array(edges), np.array(counts), np.array(sums)
