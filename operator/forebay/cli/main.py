"""The command line: `forebay`, and as a plugin `kubectl forebay`. Every command does something now.

Rooms are imported when their command runs, so that `forebay explain` needs neither kopf nor gRPC.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import contextmanager
from enum import StrEnum
from importlib import metadata
from pathlib import Path  # noqa: TC003 - typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from forebay.cli import backtest, bench, calibrate, record, simulate

if TYPE_CHECKING:
    from collections.abc import Iterator

app = typer.Typer(
    help="Forebay keeps a fleet of GPU inference replicas inside its latency budget.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
WRONG_SETTINGS = 2
_EXTRA_OF = {"run": "operator", "gateway": "gateway", "explain": "operator", "replay": "operator"}


def _examples(*lines: str) -> str:
    """Write the end of a command's help, each example on its own line."""
    # A backspace alone on a line keeps click from filling the paragraph.
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


class Output(StrEnum):
    """How a command writes."""

    TEXT = "text"
    JSON = "json"


def fail(message: str, code: int = 1) -> NoReturn:
    """End with a message for people."""
    typer.echo(message, err=True)
    raise typer.Exit(code)


@contextmanager
def _extra(command: str) -> Iterator[None]:
    """Turn a missing package into the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("forebay"):
            raise
        extra = _EXTRA_OF[command]
        fail(f"`forebay {command}` needs the package {error.name}: pip install 'forebay[{extra}]'")


app.add_typer(record.app, name="record")
app.add_typer(calibrate.app, name="calibrate")
app.command("simulate", epilog=simulate.EXAMPLES)(simulate.simulate)
app.command("backtest", epilog=backtest.EXAMPLES)(backtest.backtest)
app.command("bench", epilog=bench.EPILOG)(bench.bench)


@app.command("run", epilog=_examples("FOREBAY_OPERATOR_NAMESPACE=forebay FOREBAY_IDENTITY=me forebay run"))
def run_operator() -> None:
    """Run the operator: watch services, decide each second, make replicas. The chart runs this.

    All settings are environment variables named FOREBAY_...; `charts/forebay/values.yaml` explains them.
    """
    with _extra("run"):
        from forebay.control.main import run  # noqa: PLC0415 - see the module's docstring
        from forebay.control.settings import SettingsError  # noqa: PLC0415 - see the module's docstring
    try:
        run()
    except SettingsError as error:
        fail(f"forebay run: {error}", WRONG_SETTINGS)


@app.command(epilog=_examples("forebay gateway --render-envoy", "forebay gateway"))
def gateway(
    render_envoy: Annotated[
        bool, typer.Option("--render-envoy", help="Write Envoy's configuration and exit; the init container's part.")
    ] = False,
) -> None:
    """Run the endpoint picker beside Envoy: hold, pick, count. The chart runs this."""
    with _extra("gateway"):
        from forebay.gateway.main import run  # noqa: PLC0415 - see the module's docstring
        from forebay.gateway.settings import SettingsError  # noqa: PLC0415 - see the module's docstring
    try:
        run(render_only=render_envoy)
    except SettingsError as error:
        fail(f"forebay gateway: {error}", WRONG_SETTINGS)


@app.command(epilog=_examples("forebay explain chat-8b -n chat", "kubectl forebay explain chat/chat-8b -o json"))
def explain(
    service: Annotated[str, typer.Argument(help="NAME, or NAMESPACE/NAME.", show_default=False)],
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Default: the kubeconfig's current namespace.")
    ] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="text for people, json for programs.")] = Output.TEXT,
) -> None:
    """Say why a service has the replicas that it has: each stage's verdict, in words and numbers."""
    with _extra("explain"):
        from forebay.observe.lookup import LookupFailedError, current_namespace, read_service  # noqa: PLC0415 - see above
    from forebay.cli import explanation  # noqa: PLC0415 - rich takes 100 ms, which `forebay run` need not pay

    # The client's own complaint about a missing kubeconfig says less than ours.
    logging.disable(logging.WARNING)
    given, _, name = service.rpartition("/")
    where = namespace or given or asyncio.run(current_namespace())
    try:
        found = asyncio.run(read_service(where, name))
    except LookupFailedError as error:
        fail(str(error))
    told = explanation.explain(found)
    if output is Output.JSON:
        import orjson  # noqa: PLC0415 - as above

        typer.echo(orjson.dumps(told.as_json(), option=orjson.OPT_INDENT_2).decode())
        return
    from rich.console import Console  # noqa: PLC0415 - as above

    Console(soft_wrap=not sys.stdout.isatty()).print(explanation.render(told))


@app.command(epilog=_examples("forebay replay build/demo/journal"))
def replay(
    journal: Annotated[Path, typer.Argument(help="A journal file, or the folder that holds one.", exists=True)],
) -> None:
    """Judge a recorded journal again and compare every decision, byte for byte.

    Ends with 0 when all are equal, else with 1 and the ticks that are not. The demo leaves its journal in
    build/demo/journal.
    """
    with _extra("replay"):
        from forebay.report import journal as book  # noqa: PLC0415 - see the module's docstring
    try:
        result = book.replay(journal)
    except book.JournalError as error:
        fail(f"The journal cannot be read: {error}")
    if not result.ticks:
        fail(f"{journal} holds no tick: is it the folder that the operator wrote (FOREBAY_JOURNAL_DIR)?")
    for difference in result.differences:
        typer.echo(difference, err=True)
    if result.differences:
        fail(f"{len(result.differences)} of {result.ticks} ticks decided otherwise than recorded.")
    typer.echo(f"{result.ticks} ticks replayed: the same decisions, byte for byte.")


@app.command(epilog=_examples("forebay crds | kubectl apply --server-side -f -"))
def crds() -> None:
    """Print the CustomResourceDefinitions, for kubectl apply."""
    import yaml  # noqa: PLC0415 - see the module's docstring

    from forebay.api.schema import all_definitions  # noqa: PLC0415 - see the module's docstring

    typer.echo(yaml.safe_dump_all(all_definitions().values(), sort_keys=False, width=120), nl=False)


@app.command(epilog=_examples("forebay version"))
def version() -> None:
    """Print the version."""
    typer.echo(metadata.version("forebay"))


def run() -> None:
    """Enter here."""
    app()
