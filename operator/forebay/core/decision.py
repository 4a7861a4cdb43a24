"""A decision is a chain of small verdicts; everything that is told about it is made from this object alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.core.reasons import Reason

if TYPE_CHECKING:
    from forebay.core.units import I64, Bool


@dataclass(frozen=True, slots=True)
class DecisionStep:
    """One stage's verdict on one service: how many replicas after it, why, and the numbers that it weighed."""

    stage: str  # a name of core.step.STAGES
    replicas: int
    reason: Reason
    inputs: tuple[tuple[str, int], ...]  # (name with its unit, value); UNKNOWN allowed, printed as "unknown"


@dataclass(frozen=True, slots=True)
class Decision:
    """The verdict on one service, all stages included. A view over the columns of Decisions."""

    service: str
    replicas_serving: int  # desired replicas that take traffic
    replicas_warm: int  # desired replicas beyond those, loaded and awake, without traffic
    hold: bool  # nothing may be removed: something needed is unknown
    steps: tuple[DecisionStep, ...]


@dataclass(frozen=True, slots=True)
class Decisions:
    """The verdict on the fleet as columns. Shape [S] unless said; stages in the order of core.step.STAGES."""

    services: tuple[str, ...]
    replicas_serving: I64
    replicas_warm: I64
    hold: Bool
    replicas_after: I64  # [stages, S]
    reason: I64  # [stages, S], a Reason's number; 0: the stage left the number as it was
    inputs: tuple[tuple[tuple[str, I64], ...], ...]  # per stage: (name, column [S])
    # Uids to replace even where nothing may be removed: they hold requests and make no token, or find no node.
    suspect: tuple[str, ...]
    # Every uid that may be removed, best victim first within each service; where nothing may be, what has failed only.
    victims: tuple[str, ...]
    stages: tuple[str, ...]  # core.step.STAGES

    def decision(self, row: int) -> Decision:
        """View one service's verdict.

        Parameters
        ----------
        row
            Its row in `services`.
        """
        return Decision(
            service=self.services[row],
            replicas_serving=int(self.replicas_serving[row]),
            replicas_warm=int(self.replicas_warm[row]),
            hold=bool(self.hold[row]),
            steps=tuple(
                DecisionStep(
                    stage=stage,
                    replicas=int(self.replicas_after[place, row]),
                    reason=Reason(int(self.reason[place, row])),
                    inputs=tuple((name, int(column[row])) for name, column in self.inputs[place]),
                )
                for place, stage in enumerate(self.stages)
            ),
        )
