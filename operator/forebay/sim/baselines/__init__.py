"""The rivals: every rule that the benchmark compares with, in our words after its own documentation and source."""

from forebay.sim.baselines.registry import Baseline, all_rules
from forebay.sim.baselines.settings import Range

__all__ = ["Baseline", "Range", "all_rules"]
