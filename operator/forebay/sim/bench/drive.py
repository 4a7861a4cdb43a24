"""Run all cells on worker processes: an estimate first, progress with the time left, and nothing twice."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from forebay.sim.bench.cells import Cell, Kind, load, run_cell
from forebay.sim.bench.entries import QUICK

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from rich.console import Console

    from forebay.sim.bench.case import Inputs
    from forebay.sim.bench.cells import Result

PROBE = Cell(Kind.RULE, "keda", "W1", "error", (1,), QUICK)


def probe(inputs: Inputs) -> float:
    """Compile the simulator, then return the seconds that a replica-second takes on this machine."""
    from forebay.sim.bench.case import build, world_of  # noqa: PLC0415 - compiles when it is imported
    from forebay.sim.bench.play import play, rule_judge  # noqa: PLC0415 - as above

    case = build(PROBE.entry, PROBE.seeds, PROBE.size, inputs)
    for _ in range(2):
        began = time.perf_counter()
        play(case, world_of(PROBE.world), rule_judge(case, PROBE.judge, [{}]), PROBE.size)
        took = time.perf_counter() - began
    return took / PROBE.units


def run_all(
    cells: Sequence[Cell], folder: Path, inputs: Inputs, *, processes: int, console: Console
) -> dict[Cell, Result]:
    """Run what is not kept yet.

    Parameters
    ----------
    cells
        All of a run.
    folder
        Where results are kept.
    inputs
        Where traces and policies are.
    processes
        Workers; with 1 it runs in this process.
    console
        For the estimate and the progress.

    Returns
    -------
    dict
        Every cell's result, in the order of `cells`.
    """
    missing = [cell for cell in cells if load(cell, folder) is None]
    console.print(f"{len(cells)} cells, {len(cells) - len(missing)} of them kept in {folder}")
    if missing:
        rate = probe(inputs)
        total = sum(cell.units for cell in missing)
        console.print(f"Estimate: {total * rate / processes / 60:.0f} min on {processes} processes.")
        with _progress(console) as progress:
            # What is tuned needs its tuning, so that comes first.
            for batch in ([c for c in missing if c.kind is Kind.TUNE], [c for c in missing if c.kind is not Kind.TUNE]):
                _run_batch(batch, folder, inputs, processes=processes, progress=progress, rate=rate)
    return {cell: run_cell(cell, folder, inputs) for cell in cells}


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TextColumn("{task.fields[left]}"), console=console)


def _run_batch(
    cells: Sequence[Cell], folder: Path, inputs: Inputs, *, processes: int, progress: Progress, rate: float
) -> None:
    if not cells:
        return
    task = progress.add_task("tuning" if cells[0].kind is Kind.TUNE else "playing", total=len(cells), left="")
    began, total, done = time.perf_counter(), sum(cell.units for cell in cells), 0.0

    def note(cell: Cell) -> None:
        nonlocal done
        done += cell.units
        passed = time.perf_counter() - began
        # The first cells say little; until a tenth is done the probe knows more.
        each = passed / done if done * 10 > total else rate / processes
        progress.update(task, advance=1, left=f"{(total - done) * each / 60:.0f} min left, {cell.name} done")

    ordered = sorted(cells, key=lambda cell: -cell.units)
    if processes == 1:
        for cell in ordered:
            run_cell(cell, folder, inputs)
            note(cell)
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        waiting: dict[Future[Result], Cell] = {pool.submit(run_cell, cell, folder, inputs): cell for cell in ordered}
        try:
            while waiting:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    cell = waiting.pop(future)
                    future.result()
                    note(cell)
        except BaseException:
            pool.shutdown(cancel_futures=True, wait=False)
            raise
