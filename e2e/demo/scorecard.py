"""The scorecard as a table, from the same document that is written to report.json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from e2e.demo.view import told

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

_ENDS = ("answered", "refused", "aborted", "failed", "lost")


def scorecard(report: dict[str, Any]) -> RenderableType:
    """Draw a report.

    Parameters
    ----------
    report
        What report.json holds.
    """
    parts: list[RenderableType] = [_services(report), _facts(report), _verdict(report)]
    return Panel(Group(*parts), title=f"Scorecard: {report['run']['title']}", title_align="left")


def _services(report: dict[str, Any]) -> Table:
    grid = Table(expand=True)
    columns = ("", "sent", *_ENDS, "goodput", "TTFT ok", "ITL ok", "TTFT p50/p95/p99", "TPOT p50/p95")
    for name in columns:
        grid.add_column(name, justify="right" if name else "left", no_wrap=True)
    rows = [*report["services"].items(), *((f"all {name}", score) for name, score in report["classes"].items())]
    for place, (name, score) in enumerate(rows):
        if place == len(report["services"]):
            grid.add_section()
        grid.add_row(name, *_row(score), style="bold" if place >= len(report["services"]) else "")
    return grid


def _row(score: dict[str, Any]) -> Iterable[str]:
    ends = score["requests"]
    yield str(ends["admitted"])
    yield from (str(ends[end]) for end in _ENDS)
    for share in ("goodput", "ttft", "itl"):
        yield f"{score[f'{share}_permille'] / 10:.1f} %"
    yield "/".join(str(score[f"ttft_{p}_ms"]) for p in ("p50", "p95", "p99")) + " ms"
    yield "/".join(str(score[f"tpot_{p}_ms"]) for p in ("p50", "p95")) + " ms"


def _facts(report: dict[str, Any]) -> Table:
    grid = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    run, promote, journal = report["run"], report["promote_ms"], report["journal"]
    recovery = report["recovery_s"]
    grid.add_row("recovery from the burst", "not within the run" if recovery is None else f"{recovery} s")
    grid.add_row(
        "promote latency p50 / p99",
        f"{told(promote['p50'], ' ms')} / {told(promote['p99'], ' ms')} ({promote['count']} measured)",
    )
    for service, states in report["gpu_seconds_by_state"].items():
        used = ", ".join(f"{seconds:.0f} {state}" for state, seconds in states.items()) or "none"
        grid.add_row(f"GPU-seconds {service}", used)
    grid.add_row("decisions, of those changes", f"{told(report['decisions'])}, {told(report['changes'])}")
    grid.add_row("journal", journal["words"])
    grid.add_row(
        "machine", f"{run['machine']['cpu']}, {run['machine']['cores']} cores, {run['machine']['memory_gib']} GiB"
    )
    grid.add_row("bottleneck", report["machine"]["words"])
    grid.add_row("run", f"plan {run['plan']}, seed {run['seed']}, commit {run['commit']}, cluster {run['cluster']}")
    return grid


def _verdict(report: dict[str, Any]) -> Text:
    if not report["failures"]:
        return Text("PASSED: nothing lost, goodput at least 95 % in each class", style="bold green")
    return Text("\n".join(f"FAILED: {rule}" for rule in report["failures"]), style="bold red")
