"""`forebay backtest`: what a policy would have done to what was recorded, beside what really happened."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations when it runs
from typing import Annotated

import typer

from forebay.cli.simulate import (
    Accelerator,
    Json,
    Model,
    ModelError,
    Plot,
    PoolFile,
    Seed,
    Service,
    TraceFormat,
    told,
)

_JOURNAL = "forebay backtest build/demo/journal --name chat/chat-8b --policy policies/voice.yaml --plot week.png"
_TRACE = "forebay backtest chat.csv.gz --policy policies/voice.yaml --model hf://meta-llama/Llama-3.1-8B-Instruct"
EXAMPLES = f"\b\nExamples:\n  {_JOURNAL}\n  {_TRACE} --accelerator L40S"


def backtest(
    *,
    recorded: Annotated[
        Path,
        typer.Argument(
            metavar="JOURNAL|TRACE",
            help="The operator's journal, file or folder; or a trace.",
            exists=True,
            show_default=False,
        ),
    ],
    policy: Annotated[Path, typer.Option("--policy", "-p", help="The SLOPolicy in YAML.", exists=True, dir_okay=False)],
    name: Annotated[
        str | None, typer.Option("--name", "-n", help="Of a journal: NAMESPACE/NAME. Default: the only one there is.")
    ] = None,
    trace_format: TraceFormat = None,
    service: Service = None,
    pool: PoolFile = None,
    model: Model = "",
    accelerator: Accelerator = "",
    gpus: Annotated[
        int | None, typer.Option("--gpus", min=1, help="Of its pool. Default: what the journal says; 64 for a trace.")
    ] = None,
    seed: Seed = 1,
    model_error: ModelError = 0.25,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """Ask what a policy would have done: SLO misses and GPU-hours beside what really happened.

    From a journal both sides are told. Of the past it knows histograms, not requests, so its misses are the fewest
    that there can have been; the simulated ones are counted request by request. From a trace there is no past to
    tell: only the simulated side is, and --model with --accelerator, or --service, says what is simulated.
    """
    with told("backtest"):
        from forebay.cli import backtesting, simulation  # noqa: PLC0415 - as in main

        options = backtesting.Options(policy, seed, model_error, json, plot)
        if recorded.is_dir() or recorded.suffix == ".fbj":
            backtesting.of_journal(recorded, name, gpus, options)
            return
        inputs = simulation.Inputs(
            traces=[recorded],
            trace_format=trace_format,
            services=service or [],
            others=[policy, *(pool or [])],
            model=model,
            accelerator=accelerator,
            gpus=gpus or 64,
            copies=1,
        )
        backtesting.of_trace(inputs, options)
