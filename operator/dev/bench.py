"""`make bench`: run every tests/bench/bench_*.py as a program and print their rows in one table.

Each says in the first lines of its text what it measures, what it needs and, where that is minutes, how long it takes;
they are shown before it runs. It prints lines of `name<TAB>value<TAB>unit<TAB>aim` on standard output, and whatever it
likes on standard error. Times on shared machines are noisy; an aim that is missed is shown, not hidden, and nothing
here fails because of a time.
"""

from __future__ import annotations

import ast
import platform
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]


def machine() -> str:
    """Name the processor, the number of cores and the Python, as a figure's context."""
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    cores = len(Path("/proc/self/status").read_text().split("Cpus_allowed_list:")[1].split()[0].split(","))
    return f"{cpu}, {cores} range(s) of cores allowed, Python {platform.python_version()}"


def commit() -> str:
    """Return the short hash of HEAD."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def purpose(script: Path) -> str:
    """Return the first paragraph of a program's text about itself."""
    return (ast.get_docstring(ast.parse(script.read_text())) or "").partition("\n\n")[0]


def main() -> int:
    """Run all benchmarks; return 1 only if one of them could not run."""
    table = Table(title=f"{machine()}; commit {commit()}")
    for column in ("benchmark", "what", "value", "unit", "aim"):
        table.add_column(column)
    broken = 0
    told = Console(stderr=True, highlight=False)
    for script in sorted((ROOT / "tests" / "bench").glob("bench_*.py")):
        told.print(f"[bold]{script.stem}[/bold] {purpose(script)}")
        done = subprocess.run([sys.executable, str(script)], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            broken += 1
            table.add_row(script.stem, "[red]could not run[/red]", "", "", "")
        for line in done.stdout.splitlines():
            cells = line.split("\t")
            if len(cells) == 4:  # noqa: PLR2004 - name, value, unit, aim
                table.add_row(script.stem, *cells)
    Console(width=140).print(table)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
