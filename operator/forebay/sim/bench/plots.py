"""The benchmark's plots; equal numbers give equal bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from forebay.sim.bench.bounds import GOOD_ENOUGH
from forebay.sim.bench.cells import CLAIRVOYANT, FOREBAY, INSURED, PERSISTENCE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from forebay.sim.bench.tables import Line

COLUMNS = 3
_METADATA = {"Software": None}  # it would name matplotlib's version
# The headline's height is the share that was missed: 99 and 99.9 % are as far apart as 90 and 99.
_MISSED = {1: "0", 0.3: "70", 0.1: "90", 0.03: "97", 0.01: "99", 0.003: "99.7", 0.001: "99.9", 0.0001: "99.99+"}


@dataclass(frozen=True, slots=True)
class _Style:
    """How a judge's points look."""

    marker: str
    size: int
    colour: Any

    def drawn(self, *, filled: bool) -> dict[str, Any]:
        """Return it for matplotlib."""
        face = self.colour if filled else "none"
        return {"marker": self.marker, "markersize": self.size, "color": self.colour, "markerfacecolor": face}


_STYLES = {
    FOREBAY: _Style("*", 14, "tab:red"),
    INSURED: _Style("*", 9, "darkred"),
    CLAIRVOYANT: _Style("D", 6, "black"),
    PERSISTENCE: _Style("D", 6, "dimgrey"),
    "static-peak": _Style("x", 6, "black"),
    "static-mean": _Style("+", 7, "black"),
}


def headline(path: Path, lines: Sequence[Line]) -> None:
    """Draw attainment against GPU-hours by the clairvoyant plan's, a panel a workload; filled: tuned."""
    workloads = list(dict.fromkeys(line.workload for line in lines))
    rivals = [judge for judge in dict.fromkeys(line.judge for line in lines) if judge not in _STYLES]
    styles = {
        **_STYLES,
        **{judge: _Style("o", 5, mpl.colormaps["tab20"](place)) for place, judge in enumerate(rivals)},
    }
    rows = -(-len(workloads) // COLUMNS)
    size = (4.5 * COLUMNS, 3.4 * rows + 0.6)
    figure, axes = plt.subplots(rows, COLUMNS, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat[len(workloads) :]:
        axis.set_visible(False)
    for axis, workload in zip(axes.flat, workloads, strict=False):
        for line in lines:
            if line.workload == workload:
                _point(axis, line, styles[line.judge])
        axis.axhline(1 - GOOD_ENOUGH, color="grey", linewidth=0.6)
        axis.set(title=workload, xlabel="GPU-hours / clairvoyant's", ylabel="good requests, %", yscale="log")
        axis.set_yticks(list(_MISSED), list(_MISSED.values()))
        axis.minorticks_off()
        axis.set_ylim(1.4, 0.7 * min(_MISSED))
    shown = [judge for judge in styles if any(line.judge == judge for line in lines)]
    keys = [axes.flat[0].plot([], [], linestyle="", **styles[judge].drawn(filled=True))[0] for judge in shown]
    figure.legend(keys, shown, loc="outside lower center", ncols=6, fontsize=8, title="filled: tuned, or not to tune")
    figure.savefig(path, dpi=110, metadata=_METADATA)
    plt.close(figure)


def _point(axis: Any, line: Line, style: _Style) -> None:
    filled = line.variant == "tuned" or line.judge in _STYLES
    point = line.mean("regret").value, max(1 - line.mean("goodput").value, min(_MISSED))
    axis.plot(*point, linestyle="", **style.drawn(filled=filled))


def timeline(path: Path, title: str, demand: Sequence[float], fleets: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw replicas that serve, of each judge, over the work that arrives."""
    figure, axis = plt.subplots(figsize=(10, 4))
    every_s = next(iter(fleets.values()))["every_s"]
    axis.fill_between([place * every_s for place in range(len(demand))], demand, color="lightgrey", label="work")
    for name, fleet in fleets.items():
        seconds = [(place + 1) * every_s for place in range(len(fleet["serving"]))]
        axis.step(seconds, fleet["serving"], where="post", label=name, linewidth=1)
    axis.set(title=title, xlabel="seconds", ylabel="replicas")
    axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata=_METADATA)
    plt.close(figure)


def front(path: Path, trials: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Draw every trial on the tuning split: worse part's attainment against mean GPU-hours by the fluid bound's."""
    figure, axis = plt.subplots(figsize=(9, 5))
    for name, each in trials.items():
        x = [sum(trial["gpu_hours_of_fluid"]) / len(trial["gpu_hours_of_fluid"]) for trial in each]
        y = [100 * min(trial["goodput"]) for trial in each]
        ours = name == FOREBAY
        axis.scatter(x, y, s=60 if ours else 10, marker="*" if ours else "o", label=name, zorder=3 if ours else 2)
    axis.set(xlabel="GPU-hours / fluid", ylabel="good requests, % (worse part)", ylim=(80, 100.2), xscale="log")
    axis.axhline(100 * GOOD_ENOUGH, color="grey", linewidth=0.6)
    axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata=_METADATA)
    plt.close(figure)
