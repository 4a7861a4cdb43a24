"""What `forebay calibrate` shows: a bar while loads run, then constants with their errors and the comparison."""

from __future__ import annotations

import asyncio
import platform
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from forebay.sim.calibrate import profile as profiles
from forebay.sim.calibrate.client import session
from forebay.sim.calibrate.compare import calibrate
from forebay.sim.calibrate.endpoint import read_facts
from forebay.sim.calibrate.engine_run import record_all
from forebay.sim.calibrate.fit import NAMES
from forebay.sim.calibrate.published import table_errors
from forebay.sim.calibrate.recording import read_folder

if TYPE_CHECKING:
    from pathlib import Path

    from forebay.sim.calibrate.compare import Comparison
    from forebay.sim.calibrate.recording import Recording

_UNITS = {
    "front": "µs a request, outside the engine's loop",
    "c0": "µs a step",
    "c1": "µs a decoding sequence",
    "c2": "µs a token of its context",
    "p1": "µs a prompt token",
    "p2": "µs a pair of prompt tokens",
}


@dataclass(frozen=True, slots=True)
class Options:
    """How an engine is calibrated."""

    model: str | None
    machine: str
    max_num_seqs: int
    max_num_batched_tokens: int
    seconds: int
    runs: int
    seed: int


class _Bar:
    """One bar over all loads."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=console)
        self._task = self.progress.add_task("first look", total=None)
        self._console = console

    def plan(self, seconds: float) -> None:
        """Say how long it takes."""
        self._console.print(f"The engine is loaded for about {seconds / 60:.1f} minutes.")
        self.progress.update(self._task, total=seconds)

    def begin(self, load: str, run: int) -> None:
        """Name what is recorded."""
        self.progress.update(self._task, description=f"{load}, run {run}")

    def advance(self, seconds: float) -> None:
        """Move on."""
        self.progress.advance(self._task, seconds)


def record(url: str, folder: Path, options: Options) -> None:
    """Load an engine and keep what was seen in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(_record(url, folder, options, Console()))


async def _record(url: str, folder: Path, options: Options, console: Console) -> None:
    bar = _Bar(console)
    async with session(url) as http:
        facts = await read_facts(
            http,
            model=options.model,
            machine=options.machine or f"{platform.node()} ({platform.machine()})",
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
        )
        with bar.progress:
            await record_all(
                http,
                facts,
                seconds=options.seconds,
                runs=options.runs,
                seed=options.seed,
                folder=folder,
                tell=bar,
            )


def fit_folder(folder: Path, profile: Path | None) -> None:
    """Fit what lies in `folder`, print constants and comparison, and write them to `profile`."""
    recordings = read_folder(folder)
    comparison = calibrate(recordings)
    console = Console()
    _print_constants(console, recordings, comparison)
    console.print(_comparison(comparison))
    console.print(_preemptions(comparison))
    if profile is not None:
        profiles.write(profiles.Profile.of(recordings[0].facts, comparison), profile)
        console.print(f"Profile: {profile}")


def _print_constants(console: Console, recordings: list[Recording], comparison: Comparison) -> None:
    facts, fit = recordings[0].facts, comparison.fit
    console.print(
        f"{facts.model} on {facts.engine}, {facts.machine}: {len(recordings)} recordings, "
        f"{fit.rows} steps fitted, {fit.rows_left_out} left out"
    )
    c0, c1, c2, p1, p2 = (value / 1e6 for value in astuple(fit.times))
    values = (fit.front_us, c0, c1, c2, p1, p2 / 1000)
    grid = Table(box=None, padding=(0, 2, 0, 2))
    grid.add_column("constant")
    grid.add_column("value", justify="right")
    grid.add_column("")
    grid.add_column("standard error", justify="right")
    for name, value in zip(NAMES, values, strict=True):
        grid.add_row(name, f"{value:.5g}", _UNITS[name], f"{fit.errors_permille[name] / 10:.1f} %")
    grid.add_row("noise", f"{fit.noise_permille / 10:.1f}", "% of a step, spread about its price", "")
    console.print(grid)


def _comparison(comparison: Comparison) -> Table:
    grid = Table(title="Second half of each load, fitted on the sweep and the first halves")
    for name in ("load", "signal", "", "predicted ms", "measured ms", "error", "between runs", "allowed", ""):
        grid.add_column(name, justify="left" if name in {"load", "signal", ""} else "right")
    for row in comparison.rows:
        grid.add_row(
            row.load,
            row.signal,
            f"p{row.percentile}",
            f"{row.predicted_us / 1000:.1f}",
            f"{row.measured_us / 1000:.1f}",
            f"{row.error_permille / 10:+.1f} %",
            f"{row.between_runs_permille / 10:.1f} %",
            f"{row.allowed_permille / 10:.1f} %",
            "" if row.within else "outside",
        )
    return grid


def _preemptions(comparison: Comparison) -> str:
    told = (f"{load} {predicted} ({measured})" for load, (predicted, measured) in comparison.preemptions.items())
    return f"Preemptions predicted (and counted by the engine): {', '.join(told)}"


def print_published(folder: Path) -> None:
    """Print how far step times are off the published tables."""
    grid = Table(title="Step times beside published tables: errors in %, median and worst")
    for name in ("table", "what", "sizes", "form", "worst", "prior", "worst"):
        grid.add_column(name, justify="left" if name in {"table", "what"} else "right")
    for line in table_errors(folder):
        errors = (line.form_median, line.form_worst, line.prior_median, line.prior_worst)
        told = ["" if error is None else f"{error / 10:+.1f}" for error in errors]
        grid.add_row(line.table, line.what, str(line.sizes), told[0].lstrip("+"), *told[1:])
    console = Console()
    console.print(grid)
    console.print(
        "form: the five constants fitted to every other size, at the sizes between. prior: what Forebay assumes "
        "before it has seen the engine; negative where that is faster than the table."
    )
