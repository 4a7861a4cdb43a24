"""The HorizontalPodAutoscaler of Kubernetes: what HPA, KEDA and llm-d's WVA all end in.

Sources: the page "Horizontal Pod Autoscaling" (algorithm details, configurable scaling behavior), and of
kubernetes/kubernetes:pkg/controller/podautoscaler/ replica_calculator.go (ratio, tolerance, unready pods) and
horizontal.go (stabilization, limits); docs/benchmark/baselines.md has the commits. What they give for KEDA was measured
on Kubernetes 1.36.3. Ratios are compared as whole numbers, so no last bit decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from forebay.sim.baselines.settings import Bounds

if TYPE_CHECKING:
    from forebay.core.units import I64

SYNC_MS: Final = 15_000  # --horizontal-pod-autoscaler-sync-period
TOLERANCE_MILLI: Final = 100  # --horizontal-pod-autoscaler-tolerance
DOWNSCALE_STABILIZATION_MS: Final = 300_000  # --horizontal-pod-autoscaler-downscale-stabilization

_MILLI: Final = 1000
_PERCENT: Final = 100
# Without a `behavior` in its spec an HPA may double, or reach four, at each sync, and looks at no past scaling:
# horizontal.go, scaleUpLimitFactor and scaleUpLimitMinimum. KEDA and `kubectl autoscale` leave `behavior` out.
_PLAIN_FACTOR: Final = 2
_PLAIN_LEAST: Final = 4


@dataclass(frozen=True, slots=True)
class Policy:
    """At most `value` replicas, or percent of them, more or fewer than `period_ms` ago."""

    kind: Literal["pods", "percent"]
    value: int
    period_ms: int


@dataclass(frozen=True, slots=True)
class ScalingRules:
    """One direction: the least change asked for within the window is made, as far as the selected policy lets it."""

    stabilization_ms: int
    policies: tuple[Policy, ...]
    select: Literal["max", "min", "disabled"] = "max"


@dataclass(frozen=True, slots=True)
class Behavior:
    """`spec.behavior`; the defaults are the API's, for a section that names only the other direction."""

    up: ScalingRules = ScalingRules(0, (Policy("percent", 100, 15_000), Policy("pods", 4, 15_000)))
    down: ScalingRules = ScalingRules(DOWNSCALE_STABILIZATION_MS, (Policy("percent", 100, 15_000),))


class Hpa:
    """One HPA object; a method call is one sync.

    Parameters
    ----------
    bounds
        minReplicas (at least 1, as scaling to zero is behind a feature gate) and maxReplicas.
    tolerance_milli
        How far the ratio of usage to target may be from 1 without a change.
    behavior
        None as where the spec has none.
    downscale_stabilization_ms
        The controller's flag; with `behavior` its own window counts.
    """

    def __init__(
        self,
        bounds: Bounds,
        *,
        tolerance_milli: int = TOLERANCE_MILLI,
        behavior: Behavior | None = None,
        downscale_stabilization_ms: int = DOWNSCALE_STABILIZATION_MS,
    ) -> None:
        self.bounds = Bounds(max(bounds.low, 1), bounds.high)
        self._tolerance_milli = tolerance_milli
        self._behavior = behavior
        self._plain_window_ms = downscale_stabilization_ms
        both = (behavior.up, behavior.down) if behavior else ()
        windows_ms = [downscale_stabilization_ms, *(rules.stabilization_ms for rules in both)]
        self._longest_ms = max(windows_ms + [policy.period_ms for rules in both for policy in rules.policies])
        self._asked: list[tuple[int, int]] = []  # (when, replicas) of every sync within the longest window
        self._changed: list[tuple[int, int]] = []  # (when, replicas added or, negative, removed) by this HPA

    def sync_on_utilization(self, now_ms: int, current: int, each_milli: I64, starting: int, target_milli: int) -> int:
        """Sync on a resource metric.

        Parameters
        ----------
        now_ms
            Time of this sync.
        current
            spec.replicas.
        each_milli
            [ready] usage over request of each ready replica.
        starting
            Replicas that are not ready: ignored, but on the way up they count as using nothing.
        target_milli
            averageUtilization.

        Returns
        -------
        int
            The new spec.replicas.
        """
        ready, used = len(each_milli), int(each_milli.sum())
        if ready == 0:  # "did not receive metrics for any ready pods"
            return self._settle(now_ms, current, None)
        counted = ready + starting if used > target_milli * ready else ready
        desired = -(-used // target_milli)
        if self._tolerates(used, target_milli * counted) or (counted > ready and used < target_milli * counted):
            desired = current
        elif counted > ready:
            desired = max(desired, current)
        return self._settle(now_ms, current, desired)

    def sync_on_average(self, now_ms: int, current: int, total_milli: int, target_milli: int) -> int:
        """Sync on an external metric with an AverageValue target: `total` shall be `target` for each replica.

        Parameters and result are as for `sync_on_utilization`; `total_milli` and `target_milli` are in thousandths of
        whatever the metric counts.
        """
        tolerated = self._tolerates(total_milli, target_milli * current)
        return self._settle(now_ms, current, current if tolerated else -(-total_milli // target_milli))

    def _tolerates(self, usage: int, target: int) -> bool:
        return abs(usage - target) * _MILLI <= self._tolerance_milli * target

    def _settle(self, now_ms: int, current: int, desired: int | None) -> int:
        """Bound what the metric asks for. Unknown (None) changes nothing; at zero replicas an HPA is switched off."""
        if current == 0:
            return 0
        if not self.bounds.low <= current <= self.bounds.high:
            return self.bounds.clamp(current)
        if desired is None:
            return current
        if self._behavior is None:
            settled = self._plain(now_ms, current, desired)
        else:
            settled = self._behaved(now_ms, current, desired, self._behavior)
        self._remember(now_ms, desired, settled - current)
        return settled

    def _remember(self, now_ms: int, desired: int, change: int) -> None:
        self._asked = [entry for entry in self._asked if now_ms - entry[0] < self._longest_ms] + [(now_ms, desired)]
        self._changed = [entry for entry in self._changed if now_ms - entry[0] < self._longest_ms]
        if change:
            self._changed.append((now_ms, change))

    def _plain(self, now_ms: int, current: int, desired: int) -> int:
        settled = max([desired, *self._within(now_ms, self._plain_window_ms)])
        return self.bounds.clamp(min(settled, max(_PLAIN_FACTOR * current, _PLAIN_LEAST)))

    def _behaved(self, now_ms: int, current: int, desired: int, behavior: Behavior) -> int:
        least = min([desired, *self._within(now_ms, behavior.up.stabilization_ms)])
        most = max([desired, *self._within(now_ms, behavior.down.stabilization_ms)])
        wanted = min(max(current, least), most)
        if wanted > current:
            wanted = max(min(wanted, self._limit(now_ms, current, behavior.up, 1)), current)
        elif wanted < current:
            wanted = min(max(wanted, self._limit(now_ms, current, behavior.down, -1)), current)
        return self.bounds.clamp(wanted)

    def _limit(self, now_ms: int, current: int, rules: ScalingRules, sign: int) -> int:
        """Return how far the policies of one direction let it go in this sync."""
        if rules.select == "disabled":
            return current
        limits = []
        for policy in rules.policies:
            base = current - sum(change for at_ms, change in self._changed if now_ms - at_ms < policy.period_ms)
            if policy.kind == "pods":
                limits.append(base + sign * policy.value)
            elif sign > 0:
                limits.append(-(-base * (_PERCENT + policy.value) // _PERCENT))
            else:
                limits.append(base * (_PERCENT - policy.value) // _PERCENT)
        # "max" selects the policy that allows the greatest change, which on the way down is the least number.
        return max(limits) if (rules.select == "max") == (sign > 0) else min(limits)

    def _within(self, now_ms: int, window_ms: int) -> list[int]:
        """Return what was asked within the window.

        A sync exactly one window old is outside: the controller's next sync starts a period after the last has
        *ended*, so that the twentieth of 15 s comes later than 300 s, and a measured fleet shrinks after 291-301 s.
        """
        return [asked for at_ms, asked in self._asked if now_ms - at_ms < window_ms]
