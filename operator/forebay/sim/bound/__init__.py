"""The clairvoyant bound: what any policy must pay at least, and the plan of one that knows the future."""

from forebay.sim.bound.clairvoyant import Bound, BoundBeatenError, check_not_beaten, lower_bound, plan
from forebay.sim.bound.demand import work_us

__all__ = ["Bound", "BoundBeatenError", "check_not_beaten", "lower_bound", "plan", "work_us"]
