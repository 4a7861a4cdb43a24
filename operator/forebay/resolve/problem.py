"""What keeps a service from running as it is specified, in the words of core's catalogue plus the names involved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.core.wordings import WORDINGS

if TYPE_CHECKING:
    from forebay.core.reasons import Reason

MAX_MESSAGE = 1024  # of a condition


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason of the catalogue and what it is about."""

    reason: Reason
    detail: str = ""  # the names and texts that a catalogue of constant text cannot hold
    inputs: tuple[tuple[str, int], ...] = ()  # the numbers in the reason's message
    blocking: bool = True  # nothing is started while it lasts

    @property
    def message(self) -> str:
        """Say what is wrong, of what, and what to do."""
        wording = WORDINGS[self.reason]
        said = wording.say(dict(self.inputs)) + (f": {self.detail}" if self.detail else "")
        return (said + (f"; {wording.next_step}" if wording.next_step else ""))[:MAX_MESSAGE]
