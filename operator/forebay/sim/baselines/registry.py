"""All rivals by name, in the order of the benchmark's table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forebay.sim.baselines import (
    aibrix,
    dynamo_both,
    dynamo_load,
    dynamo_throughput,
    fixed,
    hpa_cpu,
    keda,
    knative,
    ray_serve,
    wva,
)
from forebay.sim.baselines.settings import Bounds, Range, Settings, configure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from forebay.sim.sample import Rule


@dataclass(frozen=True, slots=True)
class Baseline:
    """How to make one rival.

    Attributes
    ----------
    name
        As in the tables.
    settings
        Its settings, with documented defaults.
    search_space
        The settings that a tuner may change.
    """

    name: str
    settings: type[Settings]
    search_space: Mapping[str, Range]
    _make: Callable[[Any, Bounds, int], Rule]

    def __call__(self, overrides: Mapping[str, Any], batch_best: int, replicas_min: int, replicas_max: int) -> Rule:
        """Make the rule.

        Parameters
        ----------
        overrides
            Settings that differ from the defaults. `dynamo-throughput` and `dynamo-both` need `times` (StepTimes) and
            `kv_tokens` of one replica, the statics `replicas`, clairvoyant `plan` and `plan_interval_ms`.
        batch_best
            B*, the largest batch that one replica can hold.
        replicas_min, replicas_max
            Bounds of the service.

        Raises
        ------
        ValueError
            When a setting is unknown, missing or impossible, or B* or the bounds are.
        """
        if batch_best < 1:
            raise ValueError(f"batch_best must be at least 1, not {batch_best}")
        settings = configure(self.name, self.settings, overrides)
        return self._make(settings, Bounds(replicas_min, replicas_max), batch_best)


def all_rules() -> dict[str, Baseline]:
    """Return every rival by name, in the order of the table."""
    rules = (
        Baseline("hpa-cpu", hpa_cpu.HpaCpuSettings, hpa_cpu.SEARCH_SPACE, lambda s, b, _: hpa_cpu.HpaCpu(s, b)),
        Baseline("keda", keda.KedaSettings, keda.SEARCH_SPACE, lambda s, b, _: keda.Keda(s, b)),
        Baseline("knative-kpa", knative.KnativeSettings, knative.SEARCH_SPACE, knative.Knative),
        Baseline("aibrix-apa", aibrix.AibrixSettings, aibrix.SEARCH_SPACE, lambda s, b, _: aibrix.Aibrix(s, b)),
        Baseline(
            "llm-d-wva-v1",
            wva.WvaSettings,
            wva.SEARCH_SPACE_V1,
            lambda s, b, _: wva.Wva(s, b, wva.Percentages(s)),
        ),
        Baseline(
            "llm-d-wva-v2",
            wva.WvaSettings,
            wva.SEARCH_SPACE_V2,
            lambda s, b, batch_best: wva.Wva(s, b, wva.Tokens(s, batch_best)),
        ),
        Baseline("dynamo-load", dynamo_load.DynamoLoadSettings, dynamo_load.SEARCH_SPACE, dynamo_load.DynamoLoad),
        Baseline(
            "dynamo-throughput",
            dynamo_throughput.SlaSettings,
            dynamo_throughput.SEARCH_SPACE,
            dynamo_throughput.DynamoThroughput,
        ),
        Baseline("dynamo-both", dynamo_both.BothSettings, dynamo_both.SEARCH_SPACE, dynamo_both.DynamoBoth),
        Baseline(
            "ray-serve", ray_serve.RayServeSettings, ray_serve.SEARCH_SPACE, lambda s, b, _: ray_serve.RayServe(s, b)
        ),
        Baseline("static-peak", fixed.StaticSettings, fixed.SEARCH_SPACE, lambda s, b, _: fixed.Static(s, b)),
        Baseline("static-mean", fixed.StaticSettings, fixed.SEARCH_SPACE, lambda s, b, _: fixed.Static(s, b)),
        Baseline("clairvoyant", fixed.ClairvoyantSettings, {}, lambda s, b, _: fixed.Clairvoyant(s, b)),
    )
    return {rule.name: rule for rule in rules}
