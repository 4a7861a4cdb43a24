"""Tune a rival on the tuning split, and try our own policy's levers there: the fronts of cost and attainment."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import optuna

from forebay.sim.baselines import all_rules
from forebay.sim.bench.bounds import GOOD_ENOUGH
from forebay.sim.bench.case import build, world_of
from forebay.sim.bench.entries import TUNING
from forebay.sim.bench.play import forebay_judge, play, rule_judge

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from forebay.sim.bench.case import Case, Inputs
    from forebay.sim.bench.entries import Size
    from forebay.sim.run import Judge

Trial = dict[str, Any]
SEED = 1
# Each percent below 99 costs as much as half of the fluid GPU-hours: nobody buys savings with broken promises.
PENALTY = 50.0
# Ours: standing capacity above the forecast, and what warm replicas are kept for.
LEVERS: tuple[dict[str, Any], ...] = (
    *({"headroomPercent": percent} for percent in (0, 5, 15, 30, 60)),
    *(
        {"headroomPercent": percent, "burst": {"multiplier": 2, "withinSeconds": 30}, "maxIdleGPUs": 4}
        for percent in (0, 15)
    ),
    {"headroomPercent": 15, "maxIdleGPUs": 0},
)


def tune(name: str, size: Size, inputs: Inputs) -> list[Trial]:
    """Search one rival's settings with optuna's TPE; the first trial has the documented defaults.

    Returns
    -------
    list
        All trials in order: settings, cost (least is best), GPU-hours and goodput of each part of the split.
    """
    optuna.logging.set_verbosity(logging.WARNING)
    space = all_rules()[name].search_space
    parts = _parts(size, inputs, {})
    trials: list[Trial] = []

    def attempt(settings: Mapping[str, Any]) -> float:
        trials.append(_attempt(parts, size, settings, lambda case: rule_judge(case, name, [settings])))
        return float(trials[-1]["cost"])

    def objective(trial: optuna.Trial) -> float:
        return attempt(
            {
                setting: trial.suggest_int(setting, allowed.low, allowed.high, log=_log(allowed.low, allowed.kind))
                for setting, allowed in space.items()
            }
        )

    attempt({})
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=SEED, n_startup_trials=10))
    study.optimize(objective, n_trials=size.trials - 1)
    return trials


def _log(low: int, kind: str) -> bool:
    return kind == "log" and low > 0


def front(size: Size, inputs: Inputs) -> list[Trial]:
    """Play our own judgement with each setting of the policy's levers."""
    return [_attempt(_parts(size, inputs, levers), size, levers, forebay_judge) for levers in LEVERS]


def _parts(size: Size, inputs: Inputs, policy: dict[str, Any]) -> list[Case]:
    return [build(name, (SEED,), size, inputs, json.dumps(policy)) for name in TUNING]


def _attempt(parts: list[Case], size: Size, settings: Mapping[str, Any], judge: Callable[[Case], Judge]) -> Trial:
    rows = [play(case, world_of("tuning"), judge(case), size)[1][0] for case in parts]
    least = [case.fluid(0) * row["hours"] * case.entry.models[0].gpus for case, row in zip(parts, rows, strict=True)]
    relative = [row["gpu_hours"] / hours for row, hours in zip(rows, least, strict=True)]
    missed = sum(max(0.0, GOOD_ENOUGH - row["goodput"]) for row in rows)
    return {
        "settings": dict(settings),
        "cost": sum(relative) / len(relative) + PENALTY * missed,
        "gpu_hours_of_fluid": relative,
        "goodput": [row["goodput"] for row in rows],
    }
