"""Memory, fleet, snapshot and decisions as bytes, and back: the same value in, the same bytes out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.core.decision import Decisions
    from forebay.core.fleet import FleetSpec
    from forebay.core.memory import Memory
    from forebay.core.snapshot import Snapshot

SAFETY_BYTES_MAX = 4096
LEARNED_BYTES_MAX = 8192


class CodecError(ValueError):
    """The bytes or the text are not a document of the named kind and version."""


def encode_safety(memory: Memory, row: int) -> str:
    """Write one service's safety memory for `status.memory`; equal decisions give equal text."""
    raise NotImplementedError


def decode_safety(text: str) -> dict[str, int]:
    """Read what `encode_safety` wrote; raises CodecError."""
    raise NotImplementedError


def encode_learned(memory: Memory, row: int) -> str:
    """Write one service's learned memory for its ServiceCheckpoint."""
    raise NotImplementedError


def decode_learned(text: str) -> dict[str, object]:
    """Read what `encode_learned` wrote; raises CodecError."""
    raise NotImplementedError


def restore(memory: Memory, safety: Mapping[str, dict[str, int]], learned: Mapping[str, dict[str, object]]) -> Memory:
    """Put decoded documents (service key to document) into memory; services that memory lacks are ignored."""
    raise NotImplementedError


def encode_memory(memory: Memory) -> bytes:
    """Write all of memory: a journal's keyframe."""
    raise NotImplementedError


def decode_memory(data: bytes) -> Memory:
    """Read what `encode_memory` wrote; raises CodecError."""
    raise NotImplementedError


def encode_fleet(fleet: FleetSpec) -> bytes:
    """Write the specification."""
    raise NotImplementedError


def decode_fleet(data: bytes) -> FleetSpec:
    """Read what `encode_fleet` wrote; raises CodecError."""
    raise NotImplementedError


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Write one look at the cluster."""
    raise NotImplementedError


def decode_snapshot(data: bytes) -> Snapshot:
    """Read what `encode_snapshot` wrote; raises CodecError."""
    raise NotImplementedError


def encode_decisions(decisions: Decisions) -> bytes:
    """Write one tick's verdicts: what a replay compares, byte by byte."""
    raise NotImplementedError


def decode_decisions(data: bytes) -> Decisions:
    """Read what `encode_decisions` wrote; raises CodecError."""
    raise NotImplementedError
