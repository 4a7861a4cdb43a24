"""TELL, for the terminal: why a service has the replicas that it has, from its status alone.

The words are those of the status, which the operator made from the decision itself; here they are only arranged.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from forebay.core.wordings import WORDINGS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

_NEXT_STEPS = {wording.name: wording.next_step for wording in WORDINGS.values() if wording.next_step}
_COLOURS = {"True": "green", "False": "red", "Unknown": "yellow"}
# Conditions that are good news when they are False.
_GOOD_IF_FALSE = frozenset({"ScalingLimited", "Progressing"})


@dataclass(frozen=True)
class Stage:
    """One stage's verdict."""

    stage: str
    replicas: int
    reason: str
    message: str


@dataclass(frozen=True)
class ConditionRow:
    """One condition, and what to do about it."""

    type: str
    status: str
    reason: str
    message: str
    next_step: str


@dataclass(frozen=True)
class Explanation:
    """All that a service's status says about its size. None where it says nothing yet."""

    service: str
    model: str
    mode: str
    desired: int | None
    replicas: int | None
    ready: int | None
    warm: int | None
    outdated: bool  # the spec has changed since the operator last looked
    stages: tuple[Stage, ...]
    conditions: tuple[ConditionRow, ...]

    @property
    def next_steps(self) -> tuple[str, ...]:
        """What can be done, each thing once."""
        return tuple(dict.fromkeys(row.next_step for row in self.conditions if row.next_step))

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {**asdict(self), "next_steps": self.next_steps}


def explain(service: Mapping[str, Any]) -> Explanation:
    """Read an InferenceService as the API server returns it."""
    meta, spec, status = service["metadata"], service["spec"], service.get("status") or {}
    decision = status.get("lastDecision") or {}
    return Explanation(
        service=f"{meta['namespace']}/{meta['name']}",
        model=spec.get("model", {}).get("uri", ""),
        mode=spec.get("scaling", {}).get("mode", "Auto"),
        desired=decision.get("desired", status.get("desiredReplicas")),
        replicas=status.get("replicas"),
        ready=status.get("readyReplicas"),
        warm=status.get("warmReplicas"),
        outdated=status.get("observedGeneration", 0) < meta.get("generation", 0),
        stages=tuple(
            Stage(step["stage"], step["replicas"], step["reason"], step.get("message", ""))
            for step in decision.get("steps", ())
        ),
        conditions=tuple(_condition(row) for row in status.get("conditions", ())),
    )


def _condition(row: Mapping[str, Any]) -> ConditionRow:
    step = _NEXT_STEPS.get(row["reason"], "")
    message = row.get("message", "")
    # The operator may have put the step into the message already; once is enough.
    return ConditionRow(row["type"], row["status"], row["reason"], message, "" if step in message else step)


def render(explanation: Explanation) -> RenderableType:
    """Arrange for a terminal: what is, how it was decided, what holds, what can be done."""
    parts: list[RenderableType] = [_head(explanation)]
    if explanation.outdated:
        parts.append(
            Text("The spec has changed since; the operator has not looked at it yet. Is it running?", style="yellow")
        )
    parts += [Text(), Text("How it was decided", style="bold"), _decision(explanation)]
    if explanation.conditions:
        parts += [Text(), Text("What holds", style="bold"), _conditions(explanation)]
    if explanation.next_steps:
        parts += [Text(), Text("What can be done", style="bold")]
        parts += [Text(f"  - {step}") for step in explanation.next_steps]
    return Group(*parts)


def _head(explanation: Explanation) -> Text:
    counts = [
        (explanation.ready, "serving"),
        (explanation.warm, "warm"),
        (explanation.replicas, "in all"),
    ]
    known = ", ".join(f"{count} {what}" for count, what in counts if count is not None) or "no replica reported yet"
    head = Text(explanation.service, style="bold")
    head.append(f"  {explanation.model}\n", style="dim")
    head.append(f"{known}; wanted: {'unknown' if explanation.desired is None else explanation.desired} serving")
    head.append(f"; scaling.mode {explanation.mode}")
    return head


def _decision(explanation: Explanation) -> RenderableType:
    if not explanation.stages:
        return Text("  No decision yet. One comes within a second of the first look: see the operator's log.")
    grid = Table(box=None, padding=(0, 2, 0, 2))
    for name in ("stage", "replicas", "why"):
        grid.add_column(name, justify="right" if name == "replicas" else "left", header_style="dim")
    before: int | None = None
    for stage in explanation.stages:
        changed = before is not None and stage.replicas != before
        words = Text(stage.reason, style="bold" if changed else "")
        if stage.message:
            words.append(f": {stage.message}", style="" if changed else "dim")
        grid.add_row(stage.stage, _replicas(before, stage.replicas), words)
        before = stage.replicas
    grid.add_row("decision", str(explanation.desired), Text("replicas that serve", style="bold"), style="bold")
    return grid


def _replicas(before: int | None, after: int) -> Text:
    if before is None or before == after:
        return Text(str(after))
    return Text(f"{before} → {after}", style="bold green" if after > before else "bold magenta")


def _conditions(explanation: Explanation) -> Table:
    grid = Table(box=None, padding=(0, 2, 0, 2), show_header=False)
    for row in explanation.conditions:
        good = (
            {"True": "False", "False": "True"}.get(row.status, row.status) if row.type in _GOOD_IF_FALSE else row.status
        )
        grid.add_row(row.type, Text(row.status, style=_COLOURS.get(good, "")), Text(f"{row.reason}: {row.message}"))
    return grid
