"""Learned memory to and from ServiceCheckpoints: at most once in ten minutes a service, never all at once."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Any

from forebay.core import codec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from forebay.core.memory import Memory

log = logging.getLogger(__name__)

INTERVAL_MS = 600_000


def restored(
    memory: Memory, statuses: Mapping[str, str], checkpoints: Mapping[str, str]
) -> tuple[Memory, frozenset[str]]:
    """Put what was stored into a fresh memory.

    Parameters
    ----------
    memory
        From `initial_memory`.
    statuses, checkpoints
        service to `status.memory`, and to the checkpoint's `spec.memory`.

    Returns
    -------
    tuple
        The memory, and the services whose stored memory could not be read: these start anew, with what runs kept.
    """
    unreadable: set[str] = set()
    safety: dict[str, dict[str, int]] = {}
    learned: dict[str, dict[str, Any]] = {}
    for service, text in statuses.items():
        try:
            safety[service] = codec.decode_safety(text)
        except codec.CodecError as error:
            unreadable.add(service)
            log.warning("safety memory is unreadable", extra={"service": service, "error": str(error)})
    for service, text in checkpoints.items():
        try:
            learned[service] = dict(codec.decode_learned(text))
        except codec.CodecError as error:
            unreadable.add(service)
            log.warning("a checkpoint is unreadable", extra={"service": service, "error": str(error)})
    return codec.restore(memory, safety, learned), frozenset(unreadable)


class Schedule:
    """Says whose checkpoint is due."""

    def __init__(self) -> None:
        self._due_ms: dict[str, int] = {}
        self._written: dict[str, str] = {}

    def due(self, memory: Memory, now_ms: int, *, all_of_them: bool = False) -> list[tuple[str, str]]:
        """Return (service, text) of those that are due and differ from what was last written."""
        due = []
        for row, service in enumerate(memory.services):
            if service not in self._due_ms:
                self._due_ms[service] = now_ms + _jittered()
            if now_ms < self._due_ms[service] and not all_of_them:
                continue
            self._due_ms[service] = now_ms + _jittered()
            text = codec.encode_learned(memory, row)
            if text != self._written.get(service):
                due.append((service, text))
        return due

    def wrote(self, service: str, text: str) -> None:
        """Remember a checkpoint that the API server has taken."""
        self._written[service] = text

    def keep(self, services: Iterable[str]) -> None:
        """Forget all services but these."""
        alive = set(services)
        self._due_ms = {service: when for service, when in self._due_ms.items() if service in alive}
        self._written = {service: text for service, text in self._written.items() if service in alive}


def _jittered() -> int:
    # Never sooner than the interval; spread over half of it, so that 1,000 services write about three a second.
    return INTERVAL_MS + random.randrange(INTERVAL_MS // 2)  # noqa: S311 - spreads load
