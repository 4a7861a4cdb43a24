"""Cells, the units that are run, kept and resumed: one judge on one workload in one world, with all its seeds."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forebay
from forebay.sim.baselines import all_rules
from forebay.sim.bench.entries import ENTRIES, HEADLINE, SIZES, TUNING, Size
from forebay.sim.workloads import MIXED_SPAN_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from forebay.sim.bench.case import Inputs

Result = dict[str, Any]
FOREBAY, CLAIRVOYANT, KEDA_CROWDED = "forebay", "clairvoyant", "keda-1000-services"
PERSISTENCE = "persistence"  # sees everything but the future
PERSISTENCE_ON = {"W1", "W2", "W3", "W4", "W5"}
# Ours with what ships, and with a policy that pays for a fivefold burst whatever it costs: interactive-chat's
# maxIdleGPUs keeps two replicas of a 70B model warm, and four of a 32B one.
INSURED = "forebay-insured"
POLICIES: dict[str, dict[str, Any]] = {
    FOREBAY: {},
    INSURED: {"burst": {"multiplier": 5, "withinSeconds": 30}, "maxIdleGPUs": 400},
}
NOT_TUNED = {"static-peak", "static-mean", CLAIRVOYANT, PERSISTENCE}
RULES = tuple(name for name in all_rules() if name not in NOT_TUNED)
# With 1,000 ScaledObjects in a cluster its HPA comes round every 55 s (docs/benchmark/baselines.md).
CROWDED = {"sync_ms": 55_000}
TIMELINES = {"W1", "W7-step-x5"}  # whose fleets are drawn
TIMELINE_S = 5
# What results depend on. The judgement is in no rival's, so a change of it runs none of them again.
_SIM = ("sim", "engine_model", "routing", "resolve")
_NOT = {"calibrate", "report.py", "plots.py", "drive.py", "tables.py"}


class Kind(StrEnum):
    """What a cell does."""

    TUNE = "tune"
    BOUND = "bound"
    FOREBAY = "forebay"
    RULE = "rule"
    TUNED = "tuned"
    FRONT = "front"


@dataclass(frozen=True, slots=True)
class Cell:
    """One unit of work; everything that its result depends on, beside the sources and the traces."""

    kind: Kind
    judge: str
    entry: str = ""
    world: str = "tuning"
    seeds: tuple[int, ...] = (1,)
    size: Size = SIZES["middle"]

    @property
    def name(self) -> str:
        """Name it for people and for its file."""
        return "-".join(part for part in (self.kind.value, self.judge, self.entry, self.world) if part)

    def path(self, folder: Path) -> Path:
        """Return where its result is kept."""
        parts = asdict(self)
        size = parts.pop("size")
        # Of the size only what reaches this cell: a middle run leaves what a full one can use.
        parts["size"] = {"span_s": size["span_s"]}
        if self.entry.startswith("W4"):
            parts["size"]["m_large_span_s"] = size["m_large_span_s"]
        if self.entry == "W5":
            parts["size"]["r1_span_s"] = size["r1_span_s"]
        if self.kind in {Kind.TUNE, Kind.TUNED}:
            parts["size"]["trials"] = size["trials"]
        digest = blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=8)
        digest.update(sources(self.kind in {Kind.FOREBAY, Kind.FRONT}).encode())
        return folder / f"{self.name}-{digest.hexdigest()}.json"

    @property
    def units(self) -> float:
        """Replica-seconds that it plays, the measure of what it takes."""
        if self.kind is Kind.TUNE:
            return self.size.trials * sum(_replica_seconds(name, self.size) for name in TUNING)
        if self.kind is Kind.FRONT:
            return 8 * sum(_replica_seconds(name, self.size) * 2 for name in TUNING)
        each = _replica_seconds(self.entry, self.size) * len(self.seeds)
        runs = (30.0 if self.entry in PERSISTENCE_ON else 16.0) if self.kind is Kind.BOUND else 1.0
        # A judgement for all rows takes 3 ms a second, what 30 replicas take.
        return runs * each + (30.0 * _seconds(self.entry, self.size) if self.kind is Kind.FOREBAY else 0.0)


def _seconds(name: str, size: Size) -> float:
    if size.span_s:
        return size.span_s
    match name.partition("-")[0]:
        case "W1" | "T1":
            return 1750
        case "W4":
            return size.m_large_span_s
        case "W5":
            return size.r1_span_s
        case "W7":
            return 1800 if "step" in name or "shift" in name else 2700
        case _:
            return MIXED_SPAN_S


def _replica_seconds(name: str, size: Size) -> float:
    entry = ENTRIES[name]
    return entry.fluid * len(entry.models) * _seconds(name, size)


def sources(with_judgement: bool) -> str:
    """Return a digest of the files that results depend on."""
    root = Path(forebay.__path__[0])
    rooms = (*_SIM, "core") if with_judgement else _SIM
    digest = blake2b(digest_size=8)
    for room in rooms:
        for path in sorted((root / room).rglob("*.py")):
            if not _NOT & {*path.relative_to(root).parts}:
                digest.update(path.read_bytes())
    return digest.hexdigest()


def all_cells(size: Size, judges: Iterable[str] | None = None) -> list[Cell]:
    """Return a run's cells, those that others need first."""
    asked = set(judges) if judges is not None else {*POLICIES, CLAIRVOYANT, KEDA_CROWDED, *RULES}
    tuned = tuple(name for name in RULES if name in asked and size.trials)
    cells = [Cell(Kind.TUNE, name, size=size) for name in tuned]
    if FOREBAY in asked and size.trials:
        cells.append(Cell(Kind.FRONT, FOREBAY, size=size))
    for entry in size.entries:
        for world, seeds in (("error", size.seeds), ("exact", size.exact_seeds)):
            cells += _cells_of(entry, world, tuple(range(1, seeds + 1)), size, asked)
    return cells


def _cells_of(entry: str, world: str, seeds: Sequence[int], size: Size, asked: set[str]) -> list[Cell]:
    """Return one workload's cells in one world; the world without error and other scales show only the tuned."""
    if world == "exact" and entry not in HEADLINE and size.trials:
        return []

    def cell(kind: Kind, judge: str) -> Cell:
        return Cell(kind, judge, entry, world, tuple(seeds), size)

    cells = [cell(Kind.BOUND, CLAIRVOYANT)]
    cells += [cell(Kind.FOREBAY, judge) for judge in POLICIES if judge in asked]
    rules = [name for name in RULES if name in asked]
    if world == "error" and "-30" not in entry:
        cells += [cell(Kind.RULE, name) for name in rules]
        if KEDA_CROWDED in asked:
            cells.append(cell(Kind.RULE, KEDA_CROWDED))
    if size.trials:
        cells += [cell(Kind.TUNED, name) for name in rules]
    return cells


def load(cell: Cell, folder: Path) -> Result | None:
    """Return a cell's kept result; None when there is none."""
    path = cell.path(folder)
    return json.loads(path.read_bytes()) if path.exists() else None


def run_cell(cell: Cell, folder: Path, inputs: Inputs) -> Result:
    """Run a cell, unless its result is kept, and keep it."""
    kept = load(cell, folder)
    if kept is not None:
        return kept
    began = time.perf_counter()
    result = _run(cell, folder, inputs)
    result["seconds"] = round(time.perf_counter() - began, 1)
    path = cell.path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(result))
    partial.replace(path)
    return result


def _run(cell: Cell, folder: Path, inputs: Inputs) -> Result:
    # Optuna and SciPy take seconds to import, which a rule's cell need not pay.
    if cell.kind is Kind.TUNE:
        from forebay.sim.bench.tune import tune  # noqa: PLC0415 - see above

        return {"trials": tune(cell.judge, cell.size, inputs)}
    if cell.kind is Kind.FRONT:
        from forebay.sim.bench.tune import front  # noqa: PLC0415 - see above

        return {"trials": front(cell.size, inputs)}
    from forebay.sim.bench import play  # noqa: PLC0415 - see above
    from forebay.sim.bench.case import build, world_of  # noqa: PLC0415 - see above

    policy = POLICIES.get(cell.judge, {})
    case, world = build(cell.entry, cell.seeds, cell.size, inputs, json.dumps(policy)), world_of(cell.world)
    if cell.kind is Kind.BOUND:
        return _bound(cell, case, world)
    timeline = play.new_timeline(TIMELINE_S) if cell.entry in TIMELINES else None
    settings = policy or _settings(cell, folder)
    if cell.kind is Kind.FOREBAY:
        judge = play.forebay_judge(case)
    else:
        rule = "keda" if cell.judge == KEDA_CROWDED else cell.judge
        judge = play.rule_judge(case, rule, [settings] * len(case.scenario.traces))
    _, rows = play.play(case, world, judge, cell.size, timeline=timeline)
    return {"rows": _labelled(cell, cell.judge, rows, settings), "timeline": asdict(timeline) if timeline else None}


def _settings(cell: Cell, folder: Path) -> dict[str, Any]:
    if cell.judge == KEDA_CROWDED:
        return CROWDED
    if cell.kind is not Kind.TUNED:
        return {}
    tuned = load(Cell(Kind.TUNE, cell.judge, size=cell.size), folder)
    if tuned is None:
        raise RuntimeError(f"{cell.name} needs the tuning of {cell.judge}, which was not run: run the whole benchmark")
    best: dict[str, Any] = min(tuned["trials"], key=lambda trial: trial["cost"])["settings"]
    return best


def _bound(cell: Cell, case: Any, world: Any) -> Result:
    from forebay.sim.bench import bounds, play  # noqa: PLC0415 - see `_run`

    least = bounds.bounds_of(case, world)
    paths = least if world == world.exact else bounds.bounds_of(case, world.exact)
    found = bounds.upper(case, world, paths, cell.size)
    rows = _labelled(cell, CLAIRVOYANT, found.rows, {})
    for name, each in bounds.statics(case, world, found.plans, cell.size).items():
        rows += _labelled(cell, name, each, {})
    if cell.entry in PERSISTENCE_ON:
        rows += _labelled(cell, PERSISTENCE, bounds.persistent(case, world, cell.size), {})
    timeline = None
    if cell.entry in TIMELINES:
        timeline = play.new_timeline(TIMELINE_S)
        bounds.follow(case, world, found.plans, cell.size, timeline)
    return {
        "bounds": [[bounds.as_json(least[row]) for row in case.rows(seed)] for seed in case.seeds],
        "rows": rows,
        "fluid": [case.fluid(row) for row in case.rows(case.seeds[0])],
        "copies": case.copies,
        "gpus": [model.gpus for model in case.entry.models],
        "demand": play.demand_replicas(case, TIMELINE_S) if timeline else None,
        "timeline": asdict(timeline) if timeline else None,
    }


def _labelled(cell: Cell, judge: str, rows: list[Result], settings: dict[str, Any]) -> list[Result]:
    variant = "tuned" if cell.kind is Kind.TUNED else "default"
    label = {"workload": cell.entry, "world": cell.world, "judge": judge, "variant": variant}
    return [{**label, **row, "settings": json.dumps(settings, sort_keys=True)} for row in rows]
