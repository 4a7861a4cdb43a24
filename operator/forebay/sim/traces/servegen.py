"""ServeGen: what is known of each client of a service, and requests drawn from that.

github.com/alibaba/ServeGen, arXiv 2505.09999, in the condensed form of `tests/data/traces/servegen`: two files a model.
`<model>-clients-rate.csv.gz` has, for each client and 600 s, its rate and the distribution of the gaps between its
requests (Gamma or Weibull). `<model>-clients-lengths.csv.gz` has, for each client and 6 h, quantiles of its lengths.

A window of rate r gets round(600 r) requests at gaps from its distribution, scaled so that they fill the window: what
the origin's own generator does. Lengths are drawn by inverse CDF, linear between quantiles, prompt and output
independently (their correlation is not published), and a length below 1 counts as 1. A client without lengths in a
window draws another client's for each request, by those clients' requests in that window: 37 % of m-large's do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from forebay.sim.trace import Trace
from forebay.sim.traces.lines import SECOND_US, TraceError, fields, first_line, parsed, real_numbers, whole_numbers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from forebay.core.units import I64, Bool

    F64 = NDArray[np.float64]

RATE_COLUMNS = ("client_id", "t_start_s", "rate_rps", "cv", "arrival_dist", "shape", "scale")
RATE_HEADER = ",".join(RATE_COLUMNS)
RATE_FILE, LENGTH_FILE = "-clients-rate.csv", "-clients-lengths.csv"
LENGTH_COLUMNS = ("client_id", "window_start_s", "field", "mean", "std")
PROMPT, OUTPUT = "input_tokens", "output_tokens"
WINDOW_S = 600
LENGTH_WINDOW_S = 21_600
DAY_S = 86_400
GAMMA, WEIBULL = "Gamma", "Weibull"


@dataclass(frozen=True, slots=True)
class Sampling:
    """Which requests to draw.

    Raises
    ------
    ValueError
        For a span or a share that holds nothing.
    """

    from_s: int = 0  # of the statistics' own time; 0 is a midnight
    span_s: int = DAY_S
    seed: int = 0
    thin: float = 1.0  # share of all requests: clients are taken whole, in an order by seed, while they stay within it

    def __post_init__(self) -> None:
        """Refuse what holds nothing."""
        if self.from_s < 0 or self.span_s < 1:
            raise ValueError(
                f"a span of {self.span_s} s from {self.from_s} s on: begin at 0 or later, and take 1 s or more"
            )
        if not 0 < self.thin <= 1:
            raise ValueError(f"thin is {self.thin:g}: a share of the requests is above 0 and at most 1")


@dataclass(frozen=True, slots=True)
class _Rates:
    """One row a client and window that has requests. Shape [R]."""

    client: I64
    start_s: I64
    requests: I64
    weibull: Bool
    shape: F64

    def where(self, keep: Bool) -> _Rates:
        return _Rates(self.client[keep], self.start_s[keep], self.requests[keep], self.weibull[keep], self.shape[keep])


@dataclass(frozen=True, slots=True)
class _Lengths:
    """Quantiles of prompt and output, one row a client and window."""

    path: Path
    levels: F64  # [Q] ascending from 0 to 1
    prompt: F64  # [L, Q]
    output: F64  # [L, Q]
    row_of: dict[tuple[int, int], int]  # (client, window) to row


def sample(path: Path, sampling: Sampling) -> Trace:
    """Draw a trace; equal arguments give equal bytes.

    Parameters
    ----------
    path
        The rates; the lengths are looked for beside them.
    sampling
        Which part, how much of it, and the seed.

    Raises
    ------
    TraceError
        As for every format, and when the span holds no request.
    """
    if RATE_FILE not in path.name:
        raise TraceError(path, 1, f"statistics of clients, whose file must be called MODEL{RATE_FILE}[.gz]")
    rates = _read_rates(path)
    lengths = _read_lengths(path.with_name(path.name.replace(RATE_FILE, LENGTH_FILE)))
    dice, gap_dice, length_dice = np.random.default_rng(sampling.seed).spawn(3)
    chosen = rates.where(np.isin(rates.client, _clients(rates, sampling.thin, dice)))
    end_s = sampling.from_s + sampling.span_s
    chosen = chosen.where((chosen.start_s + WINDOW_S > sampling.from_s) & (chosen.start_s < end_s))
    if not len(chosen.client):
        last_s = int(rates.start_s.max()) + WINDOW_S
        raise TraceError(
            path, 1, f"no request in [{sampling.from_s}, {end_s}) s: it covers 0 to {last_s} s; or thin less"
        )
    row, arrival_us = _arrivals(chosen, gap_dice)
    table_row = _table_rows(rates, chosen, lengths, row, length_dice)
    arrival_us -= sampling.from_s * SECOND_US
    order = np.argsort(arrival_us, kind="stable")
    order = order[slice(*np.searchsorted(arrival_us[order], (0, sampling.span_s * SECOND_US)))]
    if not len(order):
        raise TraceError(path, 1, f"no request in [{sampling.from_s}, {end_s}) s: take a longer span")
    return Trace(
        name=path.name.partition(RATE_FILE)[0],
        arrival_us=arrival_us[order],
        prompt_tokens=_draw(lengths.levels, lengths.prompt, table_row[order], length_dice),
        output_tokens=_draw(lengths.levels, lengths.output, table_row[order], length_dice),
    )


def _clients(rates: _Rates, thin: float, dice: np.random.Generator) -> I64:
    """Choose clients of at most `thin` of all requests, each whole, so that its own burstiness stays."""
    clients, place = np.unique(rates.client, return_inverse=True)
    requests = np.bincount(place, weights=rates.requests)
    left = thin * float(requests.sum())
    taken = []
    for candidate in dice.permutation(len(clients)):
        if requests[candidate] <= left:
            left -= requests[candidate]
            taken.append(candidate)
    return clients[taken]


def _arrivals(rates: _Rates, dice: np.random.Generator) -> tuple[I64, I64]:
    """Draw (row in rates, time in us) of each request, window by window."""
    gaps_of = rates.requests + 1  # the last one leads to the window's end
    first = np.cumsum(gaps_of) - gaps_of
    shape, weibull = np.repeat(rates.shape, gaps_of), np.repeat(rates.weibull, gaps_of)
    gaps = np.empty(len(shape))
    gaps[~weibull] = dice.standard_gamma(shape[~weibull])
    gaps[weibull] = dice.weibull(shape[weibull])
    # Shapes go down to 0.01, where most draws are too small for a float: where all are, the requests come at once.
    total = np.add.reduceat(gaps, first)
    gaps /= np.repeat(np.where(total > 0, total, 1), gaps_of)
    place = np.cumsum(gaps)
    place -= np.repeat(place[first] - gaps[first], gaps_of)
    arrives = np.ones(len(gaps), np.bool_)
    arrives[first + rates.requests] = False
    row = np.repeat(np.arange(len(rates.client)), rates.requests)
    inside_us = np.minimum(place[arrives] * (WINDOW_S * SECOND_US), WINDOW_S * SECOND_US - 1).astype(np.int64)
    return row, rates.start_s[row] * SECOND_US + inside_us


def _table_rows(rates: _Rates, chosen: _Rates, lengths: _Lengths, row: I64, dice: np.random.Generator) -> I64:
    """Find each request's row of quantiles: its client's, or where there is none a row drawn by others' requests."""
    own = _own_rows(chosen, lengths)[row]
    everyone = _own_rows(rates, lengths)
    windows, every_window = chosen.start_s[row] // LENGTH_WINDOW_S, rates.start_s // LENGTH_WINDOW_S
    for window in np.unique(windows[own < 0]):
        donors = (every_window == window) & (everyone >= 0)
        if not donors.any():
            raise TraceError(
                lengths.path, 1, f"no lengths from {window * LENGTH_WINDOW_S} s on, but requests come then"
            )
        weight = np.cumsum(rates.requests[donors])
        needy = np.flatnonzero((windows == window) & (own < 0))
        drawn = np.searchsorted(weight, dice.integers(weight[-1], size=len(needy)), side="right")
        own[needy] = everyone[donors][drawn]
    return own


def _own_rows(rates: _Rates, lengths: _Lengths) -> I64:
    keys = zip(rates.client.tolist(), (rates.start_s // LENGTH_WINDOW_S).tolist(), strict=True)
    return np.fromiter((lengths.row_of.get(key, -1) for key in keys), np.int64, len(rates.client))


def _draw(levels: F64, table: F64, row: I64, dice: np.random.Generator) -> I64:
    chance = dice.random(len(row))
    above = np.searchsorted(levels, chance, side="right")  # 1 .. Q - 1, as levels go from 0 to 1 and chance is below 1
    low, high = table[row, above - 1], table[row, above]
    share = (chance - levels[above - 1]) / (levels[above] - levels[above - 1])
    return np.maximum(np.rint(low + share * (high - low)).astype(np.int64), 1)


def _read_rates(path: Path) -> _Rates:
    first_line(path)
    parts = [rates for _, rates in parsed(path, _parse_rates, skip=1)]
    if not parts:
        raise TraceError(path, 1, "no client in it")
    return _Rates(
        client=np.concatenate([part.client for part in parts]),
        start_s=np.concatenate([part.start_s for part in parts]),
        requests=np.concatenate([part.requests for part in parts]),
        weibull=np.concatenate([part.weibull for part in parts]),
        shape=np.concatenate([part.shape for part in parts]),
    )


def _parse_rates(batch: Sequence[str]) -> _Rates:
    client, start, rate, _, family, shape, _ = fields(batch, RATE_COLUMNS)
    if not set(family) <= {GAMMA, WEIBULL}:
        raise ValueError(f"arrival_dist is {family[0]!r}, not {GAMMA} or {WEIBULL}")
    shapes, rates = real_numbers(shape, "shape"), real_numbers(rate, "rate_rps")
    if (shapes <= 0).any() or (rates < 0).any():
        raise ValueError(f"rate_rps is {rate[0]} and shape {shape[0]}: a rate is at least 0 and a shape above 0")
    return _Rates(
        client=whole_numbers(client, "client_id"),
        start_s=whole_numbers(start, "t_start_s"),
        requests=np.rint(rates * WINDOW_S).astype(np.int64),
        weibull=np.array(family) == WEIBULL,
        shape=shapes,
    )


def _read_lengths(path: Path) -> _Lengths:
    header = first_line(path).split(",")
    places = len(LENGTH_COLUMNS)
    try:
        levels = real_numbers([name.removeprefix("q") for name in header[places:]], "a quantile's name")
    except ValueError as error:
        raise TraceError(path, 1, str(error)) from error
    if (
        tuple(header[:places]) != LENGTH_COLUMNS
        or not _is_distribution(levels[None])
        or (levels[0], levels[-1]) != (0, 1)
    ):
        raise TraceError(path, 1, f"the header must be {','.join(LENGTH_COLUMNS)} and quantiles from q0 to q1")
    table: dict[str, dict[tuple[int, int], F64]] = {PROMPT: {}, OUTPUT: {}}
    for _, rows in parsed(path, partial(_parse_lengths, columns=header), skip=1):
        for field, key, quantiles in rows:
            if field in table:
                table[field][key] = quantiles
    keys = [key for key in table[PROMPT] if key in table[OUTPUT]]
    if not keys:
        raise TraceError(path, 1, f"no client has both {PROMPT} and {OUTPUT}")
    return _Lengths(
        path=path,
        levels=levels,
        prompt=np.stack([table[PROMPT][key] for key in keys]),
        output=np.stack([table[OUTPUT][key] for key in keys]),
        row_of={key: row for row, key in enumerate(keys)},
    )


def _parse_lengths(batch: Sequence[str], columns: Sequence[str]) -> list[tuple[str, tuple[int, int], F64]]:
    client, start, field, _, _, *quantiles = fields(batch, columns)
    table = np.stack([real_numbers(column, name) for name, column in zip(columns[5:], quantiles, strict=True)], axis=1)
    if not _is_distribution(table) or (table[:, 0] < 0).any():
        raise ValueError("quantiles must ascend from 0 or more")
    windows = whole_numbers(start, "window_start_s") // LENGTH_WINDOW_S
    keys = zip(whole_numbers(client, "client_id").tolist(), windows.tolist(), strict=True)
    return list(zip(field, keys, table, strict=True))


def _is_distribution(table: F64) -> bool:
    return bool((np.diff(table, axis=1) >= 0).all())
