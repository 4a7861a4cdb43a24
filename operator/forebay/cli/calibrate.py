"""`forebay calibrate`: fit the engine model to a running engine, and show how well it then predicts that engine."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENGINE = "forebay calibrate engine --url http://localhost:8000 --max-num-seqs 256 --max-num-batched-tokens 8192"
_RECORDINGS = "forebay calibrate recordings tests/data/calibration"
_PUBLISHED = "forebay calibrate published tests/data/published"
WRONG_INPUT = 1

app = typer.Typer(
    help="Fit step times to a running engine, and show how well the engine model then predicts it.",
    epilog=f"\b\nExamples:\n  {_ENGINE}\n  {_RECORDINGS}\n  {_PUBLISHED}",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_Profile = Annotated[
    Path | None, typer.Option("--profile", "-p", help="Write constants and comparison to this JSON file.")
]


@app.command("engine", epilog=f"\b\nExamples:\n  {_ENGINE}")
def calibrate_engine(
    *,
    url: Annotated[str, typer.Option(help="vLLM's OpenAI server. It should serve nobody else meanwhile.")],
    max_num_seqs: Annotated[int, typer.Option(min=1, help="As the engine was started: no page of it tells.")],
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="As the engine was started: no page of it tells.")],
    recordings: Annotated[Path, typer.Option(help="Where to keep what was seen.")] = Path("build/calibration"),
    profile: _Profile = None,
    seconds: Annotated[int, typer.Option(min=10, help="How long requests of each of the four loads arrive.")] = 60,
    runs: Annotated[int, typer.Option(min=1, help="How often each load is recorded; 2 show its own spread.")] = 2,
    seed: Annotated[int, typer.Option(help="Of lengths, arrivals and prompts.")] = 1,
    model: Annotated[str | None, typer.Option(help="The served name; default: the first.")] = None,
    machine: Annotated[str, typer.Option(help="What the engine runs on, for the profile; default: this machine.")] = "",
) -> None:
    """Load a running vLLM, fit half of what was seen and predict the other half.

    First a sweep over batches, contexts and prompts, then four loads (prefill-heavy, decode-heavy, mixed, overload
    with preemption) of --seconds, --runs times: about ten minutes. Prompts are random tokens. The recordings are kept,
    so that `forebay calibrate recordings` can fit them again.
    """
    with _told():
        from forebay.cli import calibration  # noqa: PLC0415 - as in main

        options = calibration.Options(model, machine, max_num_seqs, max_num_batched_tokens, seconds, runs, seed)
        calibration.record(url, recordings, options)
        calibration.fit_folder(recordings, profile)


@app.command("recordings", epilog=f"\b\nExamples:\n  {_RECORDINGS}\n  {_RECORDINGS} -p profile.json")
def calibrate_recordings(
    folder: Annotated[Path, typer.Argument(help="What `forebay calibrate engine` kept.", exists=True, file_okay=False)],
    profile: _Profile = None,
) -> None:
    """Fit recordings again, without an engine. Ends with 0 whether the prediction is good or not."""
    with _told():
        from forebay.cli import calibration  # noqa: PLC0415 - as in main

        calibration.fit_folder(folder, profile)


@app.command("published", epilog=f"\b\nExamples:\n  {_PUBLISHED}")
def compare_published(
    folder: Annotated[Path, typer.Argument(help="The tables; see tests/data/published.", exists=True, file_okay=False)],
) -> None:
    """Compare step times with the tables that others have published: ten seconds."""
    with _told():
        from forebay.cli import calibration  # noqa: PLC0415 - as in main

        calibration.print_published(folder)


@contextmanager
def _told() -> Iterator[None]:
    """Turn what went wrong into a message for people."""
    try:
        from forebay.sim.calibrate.endpoint import EndpointError  # noqa: PLC0415 - as in main
    except ModuleNotFoundError as error:
        _fail(f"`forebay calibrate` needs the package {error.name}: pip install 'forebay[sim]'", error)
    try:
        yield
    except (EndpointError, ValueError) as error:
        _fail(f"forebay calibrate: {error}", error)


def _fail(message: str, cause: Exception) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(WRONG_INPUT) from cause
