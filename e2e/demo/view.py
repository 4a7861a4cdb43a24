"""The live view: what a person should see at a glance, as a table on a terminal and as lines in a log."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from rich.console import RenderableType

# A log wants the story, not the film.
LINES_EVERY_S = 10
# One block a replica; the letter stands beside the colour, for those who see none.
_STATES = {"serving": ("S", "green"), "warm": ("w", "yellow"), "starting": ("+", "cyan"), "draining": ("-", "magenta")}
_FAILED = ("x", "red")


@dataclass(frozen=True)
class ServiceView:
    """One service now. None where something is not known (yet)."""

    name: str
    replicas: Mapping[str, int] = field(default_factory=dict)
    arrivals_per_s: float | None = None
    requests_held: int | None = None
    pending_tokens: int | None = None
    in_flight: int | None = None
    ttft_p95_ms: int | None = None
    itl_p95_ms: int | None = None
    decision: str = ""


@dataclass(frozen=True)
class Picture:
    """Everything that is shown at one moment."""

    phase: str  # "waiting for the fleet", "traffic", "burst", ...
    elapsed_s: float
    total_s: float
    services: Sequence[ServiceView]


def replica_bar(replicas: Mapping[str, int]) -> Text:
    """Draw one letter a replica: S serving, w warm, + starting, - draining, x failed."""
    bar = Text()
    for state in [*_STATES, *sorted(set(replicas) - set(_STATES))]:
        letter, colour = _STATES.get(state, _FAILED)
        bar.append(letter * replicas.get(state, 0), style=colour)
    return bar or Text("none", style="dim")


def told(value: float | None, unit: str = "") -> str:
    """Write a number; what is not known is a dash, never a zero."""
    return "-" if value is None else f"{value:,}{unit}".replace(",", " ")


def table(picture: Picture) -> RenderableType:
    """Draw a picture for a terminal."""
    grid = Table(expand=True)
    for name in ("service", "req/s", "held", "pending tok", "in flight", "replicas", "TTFT p95", "ITL p95"):
        grid.add_column(name, justify="left" if name in ("service", "replicas") else "right", no_wrap=True)
    grid.add_column("last decision", ratio=1)
    for one in picture.services:
        grid.add_row(
            one.name,
            told(one.arrivals_per_s),
            told(one.requests_held),
            told(one.pending_tokens),
            told(one.in_flight),
            replica_bar(one.replicas),
            told(one.ttft_p95_ms, " ms"),
            told(one.itl_p95_ms, " ms"),
            one.decision,
        )
    head = Text(f"{picture.phase}  {picture.elapsed_s:.0f} of {picture.total_s:.0f} s", style="bold")
    key = Text("replicas: S serving, w warm, + starting, - draining, x failed. Latencies: last 15 s.", style="dim")
    return Group(head, grid, key)


def lines(picture: Picture) -> str:
    """Write a picture as lines for a log."""
    rows = [f"[{picture.elapsed_s:4.0f} s of {picture.total_s:.0f}] {picture.phase}"]
    rows += [
        f"  {one.name:<16} {told(one.arrivals_per_s)} req/s, held {told(one.requests_held)}, "
        f"pending {told(one.pending_tokens)} tok, {replica_bar(one.replicas).plain}, "
        f"TTFT p95 {told(one.ttft_p95_ms, ' ms')}, ITL p95 {told(one.itl_p95_ms, ' ms')}; {one.decision}"
        for one in picture.services
    ]
    return "\n".join(rows)


class View(Protocol):
    """Somewhere to show pictures, for as long as it is entered."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, picture: Picture) -> None:
        """Show this one."""


class TerminalView:
    """Redraws in place."""

    def __init__(self) -> None:
        self._live = Live(console=Console(stderr=True), auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, picture: Picture) -> None:
        """Redraw."""
        self._live.update(table(picture), refresh=True)


class LineView:
    """Writes now and then, and at once when the phase changes."""

    def __init__(self) -> None:
        self._phase = ""
        self._next_s = float("-inf")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to leave as it was."""

    def show(self, picture: Picture) -> None:
        """Write, if it is time."""
        if picture.phase != self._phase or picture.elapsed_s >= self._next_s:
            self._phase, self._next_s = picture.phase, picture.elapsed_s + LINES_EVERY_S
            print(lines(picture), file=sys.stderr, flush=True)


def open_view() -> View:
    """Choose by who looks: a person at a terminal, or a log."""
    return TerminalView() if sys.stderr.isatty() else LineView()
