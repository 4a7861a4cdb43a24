"""A simulated run as a picture: what was asked, who was there, how fast it was, how much was good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
from matplotlib import pyplot as plt

from forebay.core.snapshot import State

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from forebay.cli.simulation import Played
    from forebay.core.units import I64

SPANS = 240  # points along the time axis at most; every one is a mean


def draw(path: Path, played: Played, real: tuple[Sequence[float], Sequence[int]] | None = None) -> None:
    """Draw each service's run, a column each.

    Parameters
    ----------
    path
        The file, a PNG.
    played
        The run.
    real
        Of the first service: seconds, and how many replicas there really were at each.
    """
    count = len(played.services)
    figure, axes = plt.subplots(4, count, figsize=(7 * count, 11), sharex="col", squeeze=False, layout="constrained")
    for place in range(count):
        _service(axes[:, place], played, place)
    if real is not None:
        axes[1, 0].step([second / 60 for second in real[0]], real[1], "k--", where="post", label="really happened")
        axes[1, 0].legend(loc="upper left")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _service(axes: Any, played: Played, place: int) -> None:
    service = played.services[place]
    arrived, good = np.asarray(service.path.second_arrived), np.asarray(service.path.second_good)
    span = max(1, -(-len(arrived) // SPANS))
    minutes = np.arange(-(-len(arrived) // span)) * span / 60
    came, had = _binned(arrived, span), _binned(good, span)
    axes[0].plot(minutes, came / span)
    axes[0].set(ylabel="arrivals/s", title=played.scenario.fleet.services[place])
    replicas = played.timeline.replicas(place)[: len(arrived)]
    order = (State.SERVING, State.WARM, State.STARTING, State.DRAINING)
    second = np.arange(len(replicas)) / 60
    axes[1].stackplot(second, *(replicas[:, state] for state in order), labels=[state.name.lower() for state in order])
    axes[1].legend(loc="upper left")
    axes[1].set(ylabel="replicas")
    counters = np.diff(played.timeline.counters(place)[: len(arrived)], axis=0, prepend=0)
    for label, column in (("TTFT", 0), ("ITL", 2)):
        total, number = _binned(counters[:, column], span), _binned(counters[:, column + 1], span)
        axes[2].plot(
            minutes[: len(total)], np.where(number > 0, total / np.maximum(number, 1) / 1000, np.nan), label=label
        )
    axes[2].set(ylabel="mean, ms", yscale="log")
    axes[2].legend(loc="upper left")
    axes[3].plot(minutes, np.where(came > 0, 100 * had / np.maximum(came, 1), np.nan))
    axes[3].set(ylabel="good, %", xlabel="minutes", ylim=(0, 105))


def _binned(column: I64, span: int) -> I64:
    """Sum every `span` seconds; the last ones may be fewer."""
    sums: I64 = np.add.reduceat(column, np.arange(0, len(column), span))
    return sums
