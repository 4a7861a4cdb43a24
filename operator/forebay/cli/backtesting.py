"""Behind `forebay backtest`: two columns, what really happened and what would have, and a picture of both."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from forebay.cli.simulation import Inputs, Played, figures, play, read_scenario, scorecard, world_of, write_json
from forebay.core.snapshot import State
from forebay.report.journal import segments
from forebay.resolve.references import read_policy
from forebay.sim.backtest import Past, from_past
from forebay.sim.inputs import read_documents
from forebay.sim.scenario import ScenarioError

if TYPE_CHECKING:
    from pathlib import Path

    from forebay.api.slo_policy import SLOPolicySpec

HOUR_US = 3_600_000_000
_NOT_KNOWN = "-"


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for."""

    policy: Path
    seed: int
    model_error: float
    json: Path | None
    plot: Path | None


def of_journal(journal: Path, name: str | None, gpus: int | None, options: Options) -> None:
    """Put the past and the simulated beside each other."""
    files = segments(journal) if journal.is_dir() else [journal]
    if not files:
        raise ScenarioError(f"{journal} holds no journal: is it the operator's FOREBAY_JOURNAL_DIR?")
    past, scenario, judge = from_past(files, name, policy_of(options.policy), gpus)
    first = max(past.replicas_first, 1)
    played = play(scenario, world_of(options.seed, options.model_error), judge, [first])
    console = Console()
    console.print(_beside(past, played, options.policy.name))
    console.print(
        f"{past.seconds:,.0f} s of {past.service}, from {len(files)} files; {scenario.fleet.gpus_max[0]} GPUs, seed "
        f"{options.seed}, model error {options.model_error:g}. What really happened is held to the same policy. It is "
        "known from histograms: at most so much was kept, at least so many were missed."
    )
    _write(options, played, {"past": _past_json(past)}, past)


def of_trace(inputs: Inputs, options: Options) -> None:
    """Tell the simulated side: a trace has no past."""
    policy_of(options.policy)
    played = play(read_scenario(inputs, options.seed), world_of(options.seed, options.model_error))
    console = Console()
    console.print(scorecard(played))
    console.print("This is the simulated side alone: a trace does not say what really happened. A journal does.")
    _write(options, played, {}, None)


def policy_of(path: Path) -> SLOPolicySpec:
    """Read the one policy of a file.

    Raises
    ------
    ScenarioError
        When there is none, several, or one that cannot be read.
    """
    policies = read_documents([path]).policies
    if len(policies) != 1:
        raise ScenarioError(f"{path} holds {len(policies)} SLOPolicies: give one")
    spec = read_policy(policies[0])
    if isinstance(spec, Exception):
        raise ScenarioError(f"{path}: {spec}")
    return spec


def _misses(past: Past) -> int | None:
    """Return the fewest requests that can have missed the SLO."""
    if past.attained_permille is None:
        return None
    answered = past.arrivals - past.refused - past.failed
    return past.refused + past.failed + answered * (1000 - past.attained_permille) // 1000


def _beside(past: Past, played: Played, policy: str) -> Table:
    (score,), (service,) = played.scores, played.services
    hours = {state: us / HOUR_US for state, us in past.gpu_us.items()}
    simulated = figures(score, service.trace.duration_us)
    missed = _misses(past)
    kept = _NOT_KNOWN if past.attained_permille is None else f"<= {past.attained_permille / 10:.1f}%"
    real = {
        "requests": f"{past.arrivals:,}",
        "SLO misses": _NOT_KNOWN if missed is None else f">= {missed:,}",
        "good": kept,
        "refused": f"{past.refused:,}",
        "GPU-hours": f"{sum(hours.values()):,.2f}",
        **{f"  {state.name.lower()}": f"{hours[state]:,.2f}" for state in State},
    }
    simulated["SLO misses"] = f"{score.requests - round(score.goodput * score.requests):,}"
    table = Table(title=f"{past.service} under {policy}")
    for column in ("", "really happened", "simulated"):
        table.add_column(column, justify="right" if column else "left")
    for row in dict.fromkeys([*real, *simulated]):
        table.add_row(row, real.get(row, _NOT_KNOWN), simulated[row])
    return table


def _past_json(past: Past) -> dict[str, Any]:
    told = {key: value for key, value in asdict(past).items() if key not in {"at_s", "replicas", "gpu_us"}}
    hours = {state.name.lower(): us / HOUR_US for state, us in past.gpu_us.items()}
    return told | {"gpu_hours_by_state": hours, "slo_misses_at_least": _misses(past)}


def _write(options: Options, played: Played, more: dict[str, Any], past: Past | None) -> None:
    if options.json is not None:
        keys = played.scenario.fleet.services
        simulated = {key: asdict(score) for key, score in zip(keys, played.scores, strict=True)}
        told = {"seed": options.seed, "model_error": options.model_error, "policy": options.policy.name}
        write_json(options.json, told | more | {"simulated": simulated})
    if options.plot is not None:
        from forebay.cli.simulation_plot import draw  # noqa: PLC0415 - matplotlib takes a second

        draw(options.plot, played, (past.at_s, past.replicas) if past else None)
