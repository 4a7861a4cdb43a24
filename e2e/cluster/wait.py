"""Wait for states, never for seconds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from e2e.cluster.errors import NeverReady

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Short enough that a wait adds nothing noticeable, long enough that asking costs less than 5 % of a core.
_ASK_EVERY_S = 0.1


def until(predicate: Callable[[], object], what: str, seconds: float, logs: Path | None = None) -> None:
    """Return once the predicate holds; raise NeverReady when it does not in time."""
    deadline = time.monotonic() + seconds
    while not predicate():
        if time.monotonic() > deadline:
            raise NeverReady(what, seconds, logs)
        time.sleep(_ASK_EVERY_S)
