"""`forebay bench`: ours, the rivals and the clairvoyant bound on every workload."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

_EXAMPLES = (
    "forebay bench --quick",
    "forebay bench",
    "forebay bench --full",
    "forebay bench --only W1,W7-step-x5 --judges forebay,keda",
)
EPILOG = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in _EXAMPLES)


def bench(  # noqa: PLR0917 - typer passes options by name
    full: Annotated[bool, typer.Option("--full", help="Everything, in at most two hours on two cores.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Small fleets and ten minutes of each: a look.")] = False,
    only: Annotated[str | None, typer.Option("--only", help="Workloads, W1,W2 or W7-step-x5.")] = None,
    judges: Annotated[str | None, typer.Option("--judges", help="forebay, or rivals of baselines.md.")] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="Runs of each judge.")] = None,
    trials: Annotated[int | None, typer.Option("--trials", min=0, help="Of the tuner; 0: defaults only.")] = None,
    processes: Annotated[int, typer.Option("--processes", min=1, help="Workers.")] = 2,
    traces: Annotated[Path, typer.Option("--traces", help="Folder of traces.")] = Path("tests/data/traces"),
    policies: Annotated[Path, typer.Option("--policies", help="Folder of policies.")] = Path("policies"),
    build: Annotated[Path, typer.Option("--build", help="Where results are kept.")] = Path("build/bench"),
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the report goes.")] = Path("docs/benchmark"),
) -> None:
    """Compare autoscaling rules with the clairvoyant bound, and write a report.

    Prints its estimate first. Each cell's result is kept, so a run that was stopped goes on where it was.
    """
    from forebay.cli.main import fail  # noqa: PLC0415 - main imports this module

    try:
        from rich.console import Console  # noqa: PLC0415 - as in main

        from forebay.sim.bench import cells, drive, report  # noqa: PLC0415 - as in main
        from forebay.sim.bench.case import Inputs  # noqa: PLC0415 - as in main
        from forebay.sim.bench.entries import SIZES  # noqa: PLC0415 - as in main
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("forebay"):
            raise
        fail(f"`forebay bench` needs the package {error.name}: pip install 'forebay[sim]'")
    if full and quick:
        fail("Choose one of --full and --quick.", 2)
    size = SIZES["full" if full else "quick" if quick else "middle"]
    if seeds is not None:
        size = replace(size, seeds=seeds, exact_seeds=min(seeds, size.exact_seeds))
    size = replace(size, trials=size.trials if trials is None else trials)
    if only is not None:
        asked = only.split(",")
        entries = tuple(e for e in size.entries if any(e == one or e.startswith(f"{one}-") for one in asked))
        if not entries:
            fail(f"--only {only} names none of {', '.join(size.entries)}", 2)
        size = replace(size, entries=entries)
    known = {*cells.POLICIES, cells.CLAIRVOYANT, cells.KEDA_CROWDED, *cells.RULES}
    chosen = set(judges.split(",")) if judges else None
    if chosen is not None and not chosen <= known:
        fail(f"--judges {judges}: known are {', '.join(sorted(known))}", 2)
    try:
        results = drive.run_all(
            cells.all_cells(size, chosen), build, Inputs(traces, policies), processes=processes, console=Console()
        )
    except (ValueError, OSError) as error:
        fail(f"The benchmark stopped: {error}")
    report.write(out, results, report.Origin(f"forebay {shlex.join(sys.argv[1:])}", _commit(), _machine()))
    typer.echo(f"{out / 'README.md'}: {len(results)} cells.")


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],  # noqa: S607 - whichever git the user has
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip() or "unknown"


def _machine() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), platform.processor())
    return f"{model}, Python {platform.python_version()}"
