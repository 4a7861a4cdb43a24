"""`forebay record`: what happened, as a trace for `forebay simulate` and `forebay backtest`."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress

    from forebay.sim.trace import Trace

_FROM_JOURNAL = "forebay record journal build/demo/journal --service chat/chat-8b -o chat.csv.gz"
_FROM_PROMETHEUS = (
    "forebay record prometheus http://localhost:9090 --match 'model_name=\"llama\"' --hours 24 -o llama.csv.gz"
)

app = typer.Typer(
    help="Turn what happened into a trace: arrivals, prompt and output lengths, as CSV.gz.",
    epilog=f"\b\nExamples:\n  {_FROM_JOURNAL}\n  {_FROM_PROMETHEUS}",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_Out = Annotated[Path, typer.Option("--out", "-o", help="The file to write, NAME.csv.gz.", show_default=False)]


@app.command("journal", epilog=f"\b\nExamples:\n  {_FROM_JOURNAL}")
def record_journal(
    journal: Annotated[
        Path, typer.Argument(help="A journal file, or the folder that holds them.", exists=True, show_default=False)
    ],
    out: _Out,
    service: Annotated[
        str | None, typer.Option("--service", "-s", help="NAMESPACE/NAME. Default: the only one there is.")
    ] = None,
) -> None:
    """Record a service from the journal that the operator writes (FOREBAY_JOURNAL_DIR).

    Exact: how many requests came between two readings of a gateway (about 1 s), and the sum of their prompt tokens
    as the gateway estimated them.

    Estimated: when within that time each came (evenly spread), each prompt's length (the mean of that time), and
    each output's length (the mean over 60 s or more, and 20 ended requests or more). A journal keeps no request's
    own lengths and no prefixes, so the trace is smoother than life was.
    """
    with _told("journal"):
        from forebay.report.journal import segments  # noqa: PLC0415 - as in main
        from forebay.sim.traces.journal import from_journal  # noqa: PLC0415 - as in main

        files = segments(journal) if journal.is_dir() else [journal]
        with _progress() as progress:
            recording = from_journal(progress.track(files, description="Reading the journal"), service)
        _write(out, recording.trace)
        typer.echo(f"From {recording.ticks:,} ticks in {len(files)} files of {recording.service}.")
        if recording.seams:
            typer.echo(f"The operator's clock changed {recording.seams} times: what came in between is not known.")


@app.command("prometheus", epilog=f"\b\nExamples:\n  {_FROM_PROMETHEUS}")
def record_prometheus(
    url: Annotated[str, typer.Argument(help="Of the Prometheus server.", show_default=False)],
    out: _Out,
    match: Annotated[
        str, typer.Option("--match", "-m", help="Label matchers of PromQL that find one service's engines.")
    ] = "",
    hours: Annotated[float, typer.Option("--hours", min=0.01, help="How much to record.")] = 1.0,
    until: Annotated[
        datetime | None, typer.Option("--until", help="Its end, in UTC. Default: now.", show_default=False)
    ] = None,
) -> None:
    """Record vLLM engines from the history of a Prometheus server, read every 15 s; Forebay need not have run there.

    Exact: the engines' own counters of requests ended, prompt tokens and output tokens.

    Estimated: how many requests came between two readings (those that ended, and by how many more run or wait), when
    within that time each came (evenly spread), and each length (the mean over 60 s or more, and 20 ended requests or
    more). Bursts shorter than 15 s, requests that never reached an engine, the spread of lengths and prefixes are
    not in the trace.
    """
    end = until.replace(tzinfo=UTC) if until else datetime.now(UTC)
    with _told("prometheus"):
        import numpy as np  # noqa: PLC0415 - as in main

        from forebay.observe.prometheus import engine_histories  # noqa: PLC0415 - as in main
        from forebay.sim.traces.recorded import from_engines  # noqa: PLC0415 - as in main

        with _progress() as progress:
            task = progress.add_task("Asking Prometheus", total=1.0)
            histories = engine_histories(
                url, match, end - timedelta(hours=hours), end, lambda share: progress.update(task, completed=share)
            )
        engines = {
            one.labels: np.stack(
                [
                    one.at_ms * 1000,
                    one.finished_total,
                    one.running + one.queued,
                    one.prompt_tokens_total,
                    one.generation_tokens_total,
                ],
                axis=1,
            )
            for one in histories
        }
        _write(out, from_engines(match or "all engines", engines))
        typer.echo(f"From {len(engines)} engines, {hours:g} h until {end:%F %T} UTC.")


def _progress() -> Progress:
    from rich.console import Console  # noqa: PLC0415 - as in main
    from rich.progress import Progress  # noqa: PLC0415 - as in main

    console = Console(stderr=True)
    return Progress(console=console, transient=True, disable=not console.is_terminal)


def _write(path: Path, trace: Trace) -> None:
    from forebay.sim.traces import plain  # noqa: PLC0415 - as in main

    plain.write(path, trace)
    seconds = max(trace.duration_us / 1e6, 1.0)
    typer.echo(
        f"{path}: {len(trace):,} requests in {seconds:,.0f} s ({len(trace) / seconds:.2f}/s), on average "
        f"{trace.prompt_tokens.mean():,.0f} prompt and {trace.output_tokens.mean():,.0f} output tokens."
    )


@contextmanager
def _told(source: str) -> Iterator[None]:
    """Turn what can go wrong into a message for people."""
    from forebay.cli.main import fail  # noqa: PLC0415 - main imports this module

    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("forebay"):
            raise
        extra = {"journal": "operator", "prometheus": "sim"}[source]
        fail(f"`forebay record {source}` needs the package {error.name}: pip install 'forebay[{extra}]'")
    except (ValueError, OSError) as error:
        fail(f"Nothing recorded: {error}")
