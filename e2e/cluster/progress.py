"""Say what is going on: a bar on a terminal, a line now and then elsewhere (a log of CI, a pipe)."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Iterator

# A log wants to know that work goes on, not every package.
_LINE_EVERY_S = 10.0


class Bar(Protocol):
    """Progress of one long piece of work."""

    def show(self, done: int, detail: str) -> None:
        """So much is done, and this is what is being worked at."""


def say(line: str) -> None:
    """One line for people; standard output stays free for what a command is asked to print."""
    print(line, file=sys.stderr, flush=True)


class _Lines:
    def __init__(self, title: str, total: int) -> None:
        self._title, self._total = title, total
        self._next = time.monotonic() + _LINE_EVERY_S

    def show(self, done: int, detail: str) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE_EVERY_S
            share = 100 * done // max(self._total, 1)
            say(f"{self._title}: {share} % ({done} of {self._total}), now {detail}")


@contextmanager
def bar(title: str, total: int) -> Iterator[Bar]:
    """Show a progress bar where somebody watches, lines where nobody does."""
    if not sys.stderr.isatty():
        say(title)
        yield _Lines(title, total)
        return
    columns = ("{task.description}", BarColumn(20), "{task.percentage:>3.0f} %", TimeElapsedColumn())
    with Progress(*columns, TextColumn("[dim]{task.fields[detail]}"), console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=total, detail="")

        class _Rich:
            def show(self, done: int, detail: str) -> None:
                progress.update(task, completed=done, detail=detail[-28:])

        yield _Rich()
