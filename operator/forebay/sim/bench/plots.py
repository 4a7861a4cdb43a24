"""The benchmark's plots; equal numbers give equal bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from forebay.sim.bench.bounds import GOOD_ENOUGH
from forebay.sim.bench.cells import FOREBAY, POLICIES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from forebay.sim.bench.tables import Line

COLUMNS = 3
_METADATA = {"Software": None}  # it would name matplotlib's version


def headline(path: Path, lines: Sequence[Line]) -> None:
    """Draw attainment against GPU-hours by the clairvoyant plan's, a panel a workload."""
    workloads = list(dict.fromkeys(line.workload for line in lines))
    rows = -(-len(workloads) // COLUMNS)
    figure, axes = plt.subplots(rows, COLUMNS, figsize=(4.5 * COLUMNS, 3.6 * rows), squeeze=False)
    for axis in axes.flat[len(workloads) :]:
        axis.set_visible(False)
    for axis, workload in zip(axes.flat, workloads, strict=False):
        for line in lines:
            if line.workload == workload:
                _point(axis, line)
        axis.axhline(100 * GOOD_ENOUGH, color="grey", linewidth=0.6)
        axis.set(title=workload, xlabel="GPU-hours / clairvoyant's", ylabel="good requests, %")
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata=_METADATA)
    plt.close(figure)


def _point(axis: Any, line: Line) -> None:
    ours, tuned = line.judge in POLICIES, line.variant == "tuned"
    x, y = line.mean("regret").value, 100 * line.mean("goodput").value
    colour = "tab:red" if ours else "tab:blue"
    style = {"marker": "*" if ours else "o", "markersize": 12 if ours else 5, "color": colour}
    axis.plot(x, y, linestyle="", markerfacecolor=colour if ours or tuned else "none", **style)
    axis.annotate(line.judge, (x, y), fontsize=6, xytext=(4, 3), textcoords="offset points")


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
