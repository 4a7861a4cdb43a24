"""Behind `forebay simulate` and `forebay backtest`: read, play with a progress bar, print, write, draw."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import orjson
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from forebay.sim.inputs import read_documents, scenario_of, service_of, traces_of
from forebay.sim.run import ForebayJudge, run
from forebay.sim.scenario import ScenarioError
from forebay.sim.score import score_of
from forebay.sim.timeline import Timeline
from forebay.sim.traces import Format
from forebay.sim.world import World

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from forebay.sim.scenario import Scenario
    from forebay.sim.score import Score
    from forebay.sim.service import SimulatedService

HOUR_US = 3_600_000_000


@dataclass(frozen=True, slots=True)
class Inputs:
    """What was named on the command line."""

    traces: list[Path]
    trace_format: str | None
    services: list[Path]
    others: list[Path]  # policies and pools
    model: str
    accelerator: str
    gpus: int
    copies: int


@dataclass(frozen=True, slots=True)
class Played:
    """A run and its figures."""

    scenario: Scenario
    services: list[SimulatedService]
    scores: list[Score]
    timeline: Timeline
    seconds: int  # simulated
    took_s: float


def simulate(inputs: Inputs, *, seed: int, model_error: float, json: Path | None, plot: Path | None) -> None:
    """Do what `forebay simulate` says."""
    scenario = read_scenario(inputs, seed)
    played = play(scenario, world_of(seed, model_error))
    console = Console()
    console.print(scorecard(played))
    console.print(
        f"{played.seconds:,} s in {played.took_s:.1f} s, {played.seconds / max(played.took_s, 1e-9):,.0f} x real time; "
        f"seed {seed}, model error {model_error:g}, {inputs.copies} copies, "
        f"GPUs {', '.join(f'{pool} {gpus}' for pool, gpus in _gpus(scenario).items())}"
    )
    if json is not None:
        told = {"seed": seed, "model_error": model_error, "copies": inputs.copies, "gpus": _gpus(scenario)}
        write_json(json, told | {"services": scores_by_key(played)})
        console.print(f"Scorecard: {json}")
    if plot is not None:
        from forebay.cli.simulation_plot import draw  # noqa: PLC0415 - matplotlib takes a second

        draw(plot, played)
        console.print(f"Plot: {plot}")


def read_scenario(inputs: Inputs, seed: int) -> Scenario:
    """Read all files.

    Raises
    ------
    ScenarioError
        When they describe nothing that could be simulated.
    """
    documents = read_documents([*inputs.services, *inputs.others])
    if inputs.model:
        if documents.services:
            raise ScenarioError("--model and an InferenceService were given: leave one of them out")
        if not inputs.accelerator:
            raise ScenarioError("--model needs --accelerator, such as L40S")
        documents.services.append(service_of(inputs.model, inputs.accelerator, inputs.gpus))
        if len(documents.policies) == 1:
            documents.services[0]["spec"]["sloPolicyRef"] = {"name": documents.policies[0]["metadata"]["name"]}
    traces = traces_of(documents.services, inputs.traces, inputs.services, format_of(inputs.trace_format))
    return scenario_of(documents, traces, gpus=inputs.gpus, copies=inputs.copies, seed=seed)


def format_of(name: str | None) -> Format | None:
    """Find a format by its name.

    Raises
    ------
    ScenarioError
        When there is none of that name.
    """
    if name is None:
        return None
    try:
        return Format(name)
    except ValueError as error:
        raise ScenarioError(f"--format {name}: choose one of {', '.join(Format)}") from error


def world_of(seed: int, model_error: float) -> World:
    """Make the world; without an error of the model it is the profile, stragglers and all left out."""
    return World(seed, model_error) if model_error > 0 else World(seed).exact


def play(scenario: Scenario, world: World, judge: ForebayJudge | None = None, initial: Sequence[int] = ()) -> Played:
    """Play to the end under the product's judgement, with a progress bar where somebody looks."""
    services = scenario.services(world)
    timeline = Timeline(services)
    begun = time.perf_counter()
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeRemainingColumn(),
    )
    seconds = 0
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("Simulating", total=None)

        def note(second: int, total: int) -> None:
            nonlocal seconds
            seconds = total
            timeline.note()
            progress.update(task, completed=second, total=total)

        run(
            services,
            judge or ForebayJudge(scenario.fleet, scenario.pools()),
            initial or [scenario.initial(row) for row in range(len(services))],
            note,
        )
    took_s = time.perf_counter() - begun
    return Played(scenario, services, [score_of(one) for one in services], timeline, seconds, took_s)


def scorecard(played: Played) -> Table:
    """Tell a run in a table, one column a service."""
    table = Table(title="What users would have had, and what it would have cost")
    table.add_column("")
    for key in played.scenario.fleet.services:
        table.add_column(key, justify="right")
    rows = [
        figures(score, service.trace.duration_us) for score, service in zip(played.scores, played.services, strict=True)
    ]
    for name in rows[0]:
        table.add_row(name, *(row[name] for row in rows))
    return table


def figures(score: Score, duration_us: int) -> dict[str, str]:
    """Write a score as people read it."""
    hours = max(duration_us / HOUR_US, 1e-9)
    ttft, itl = score.ttft_ms, score.itl_ms
    return {
        "requests": f"{score.requests:,}",
        "answered": f"{score.answered:,}",
        "refused": f"{score.refused:,}",
        "failed or unfinished": f"{score.failed + score.unfinished:,}",
        "good": f"{score.goodput:.2%}",
        "TTFT kept": f"{score.ttft_attained:.2%}",
        "ITL kept": f"{score.itl_attained:.2%}",
        "TTFT p50 / p95 / p99 ms": f"{ttft[0]:,} / {ttft[1]:,} / {ttft[2]:,}",
        "ITL p50 / p95 / p99 ms": f"{itl[0]:.1f} / {itl[1]:.1f} / {itl[2]:.1f}",
        "GPU-hours": f"{score.gpu_hours:,.2f}",
        **{f"  {state}": f"{held:,.2f}" for state, held in score.gpu_hours_by_state.items()},
        "GPUs on average": f"{score.gpu_hours / hours:,.2f}",
        "scale actions an hour": f"{score.scale_actions / hours:,.1f}",
    }


def scores_by_key(played: Played) -> dict[str, Any]:
    """Return every figure by service."""
    return {key: asdict(score) for key, score in zip(played.scenario.fleet.services, played.scores, strict=True)}


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a file that programs read."""
    path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n")


def _gpus(scenario: Scenario) -> dict[str, int]:
    return dict(zip(scenario.fleet.pools, scenario.fleet.gpus_max.tolist(), strict=True))
