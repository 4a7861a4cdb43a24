"""`forebay simulate`: a trace, a service and a policy in; what users would have had and what it would have cost out."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

_TRACE = "tests/data/traces/azure-llm-2023/AzureLLMInferenceTrace_conv.csv.gz"
_SHORT = f"forebay simulate --trace {_TRACE} --model hf://meta-llama/Llama-3.1-8B-Instruct --accelerator L40S"
_LONG = "forebay simulate --service chat-8b.yaml --trace chat.csv.gz --policy policies/interactive-chat.yaml --gpus 16"
_FLEET = "forebay simulate --service fleet/ --policy policies/ --plot fleet.png --json fleet.json"
EXAMPLES = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in (_SHORT, _LONG, _FLEET))
WRONG_INPUT = 1

# What `simulate` and `backtest` ask alike.
Service = Annotated[
    list[Path] | None,
    typer.Option("--service", "-s", help="InferenceService in YAML, or a folder of them.", exists=True),
]
Policy = Annotated[
    list[Path] | None, typer.Option("--policy", "-p", help="SLOPolicy in YAML, or a folder of them.", exists=True)
]
PoolFile = Annotated[list[Path] | None, typer.Option("--pool", help="GPUPool in YAML, or a folder.", exists=True)]
Model = Annotated[str, typer.Option("--model", help="Instead of --service: the model's URI.")]
Accelerator = Annotated[str, typer.Option("--accelerator", help="Instead of --service: the GPU, such as L40S.")]
Gpus = Annotated[int, typer.Option("--gpus", min=1, help="Of each pool that does not say how many it has.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of all dice; the same seed gives the same bytes.")]
ModelError = Annotated[
    float,
    typer.Option(
        "--model-error", min=0.0, max=1.0, help="How far true step times are from the profile's; 0: not at all."
    ),
]
TraceFormat = Annotated[str | None, typer.Option("--format", help="Of the trace. Default: its first line tells.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write the scorecard to this file.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Draw the run into this PNG file.")]


def simulate(
    *,
    trace: Annotated[
        list[Path] | None, typer.Option("--trace", "-t", help="What was asked, of the only service.", exists=True)
    ] = None,
    trace_format: TraceFormat = None,
    service: Service = None,
    policy: Policy = None,
    pool: PoolFile = None,
    model: Model = "",
    accelerator: Accelerator = "",
    gpus: Gpus = 64,
    scale: Annotated[
        int, typer.Option("--scale", min=1, help="Copies of each trace, each 0 to 60 s later than the first.")
    ] = 1,
    seed: Seed = 1,
    model_error: ModelError = 0.25,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """Simulate a fleet under the product's own judgement, and score what its users would have had.

    Of several services, the trace of NAME lies beside its document in the folder, as NAME.csv.gz or NAME.jsonl.gz.
    """
    with told("simulate"):
        from forebay.cli import simulation  # noqa: PLC0415 - as in main

        inputs = simulation.Inputs(
            traces=trace or [],
            trace_format=trace_format,
            services=service or [],
            others=[*(policy or []), *(pool or [])],
            model=model,
            accelerator=accelerator,
            gpus=gpus,
            copies=scale,
        )
        simulation.simulate(inputs, seed=seed, model_error=model_error, json=json, plot=plot)


@contextmanager
def told(command: str) -> Iterator[None]:
    """Turn what went wrong into a message for people."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("forebay"):
            raise
        fail(f"`forebay {command}` needs the package {error.name}: pip install 'forebay[sim]'", error)
    except (ValueError, OSError) as error:
        fail(f"forebay {command}: {error}", error)


def fail(message: str, cause: Exception) -> NoReturn:
    """End with a message for people."""
    typer.echo(message, err=True)
    raise typer.Exit(WRONG_INPUT) from cause
