"""Memory, fleet, snapshot and decisions as bytes, and back: the same value in, the same bytes out.

Two kinds of documents. Text, for Kubernetes objects: one service's safety memory or learned memory as JSON with sorted
keys. Bytes, for the journal: a header in JSON that names every column with its shape, then the columns as little-endian
numbers in the header's order, then a checksum. Equal values give equal bytes, and while rows stay where they were the
columns do too, so that a journal's differences are small. Whatever is not such a document is a CodecError.
"""

from __future__ import annotations

import zlib
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import orjson

from forebay.core.decision import Decisions
from forebay.core.fleet import FleetSpec
from forebay.core.memory import (
    LEAD_BINS,
    RISE_BINS,
    SCALE_BINS,
    GatewayBaseline,
    Learned,
    Memory,
    Recent,
    ReplicaBaseline,
    Ring,
    Safety,
    Timers,
    with_rows,
)
from forebay.core.snapshot import GatewayRows, ReplicaRows, Snapshot
from forebay.core.units import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VERSION: Final = 1
SAFETY_BYTES_MAX: Final = 4096
LEARNED_BYTES_MAX: Final = 8192

_MAGIC: Final = b"FBAY"
_BINS: Final = {
    "time_scale": SCALE_BINS,
    "lead_cold": LEAD_BINS,
    "lead_promote": LEAD_BINS,
    "rise": RISE_BINS,
}
# Larger sums than core ever writes would leave an int64 in its products.
_SUM_MAX: Final = 2**40
_COUNT_MAX: Final = 2**20
_REPLICAS_MAX: Final = 10**6

# The parts of a document that are documents themselves.
_PARTS: Final[dict[type[Any], dict[str, type[Any]]]] = {
    Memory: {"safety": Safety, "learned": Learned, "recent": Recent},
    Recent: {"ring": Ring, "timers": Timers, "replicas": ReplicaBaseline, "gateways": GatewayBaseline},
    Snapshot: {"replicas": ReplicaRows, "gateways": GatewayRows},
}

Document = TypeVar("Document", Memory, FleetSpec, Snapshot, Decisions)


class CodecError(ValueError):
    """The bytes or the text are not a document of the named kind and version."""


def encode_safety(memory: Memory, row: int) -> str:
    """Write one service's safety memory for `status.memory`; equal decisions give equal text.

    Parameters
    ----------
    memory
        After at least one tick.
    row
        The service's row in `memory.services`.
    """
    columns = {field.name: int(getattr(memory.safety, field.name)[row]) for field in fields(Safety)}
    return _text({name: value for name, value in columns.items() if value != UNKNOWN})


def decode_safety(text: str) -> dict[str, int]:
    """Read what `encode_safety` wrote, for `restore`.

    Raises
    ------
    CodecError
        When it is anything else.
    """
    document = _load(text, SAFETY_BYTES_MAX)
    names = {field.name for field in fields(Safety)}
    for name, value in document.items():
        if name not in names or not _is_count(value, _REPLICAS_MAX):
            raise CodecError(f"safety memory has a wrong entry {name!r}")
    return document


def encode_learned(memory: Memory, row: int) -> str:
    """Write one service's learned memory for its ServiceCheckpoint; parameters as `encode_safety`."""
    return _text({field.name: getattr(memory.learned, field.name)[row].tolist() for field in fields(Learned)})


def decode_learned(text: str) -> dict[str, Any]:
    """Read what `encode_learned` wrote, for `restore`.

    Raises
    ------
    CodecError
        When it is anything else.
    """
    document = _load(text, LEARNED_BYTES_MAX)
    if document.keys() != {field.name for field in fields(Learned)}:
        raise CodecError("learned memory lacks an entry, or has one too many")
    for name, value in document.items():
        if name in _BINS:
            right = isinstance(value, list) and len(value) == _BINS[name]
            right = right and all(_is_count(count, _COUNT_MAX) for count in value)
        else:
            right = _is_count(value, _SUM_MAX)
        if not right:
            raise CodecError(f"learned memory has a wrong entry {name!r}")
    return document


def restore(
    memory: Memory, safety: Mapping[str, Mapping[str, int]], learned: Mapping[str, Mapping[str, Any]]
) -> Memory:
    """Put decoded documents into memory, for an operator that starts.

    Parameters
    ----------
    memory
        Usually `initial_memory`.
    safety, learned
        Service key to what `decode_safety` and `decode_learned` returned; services that memory lacks are passed over.
    """
    row = {service: place for place, service in enumerate(memory.services)}
    safe, known = memory.safety, memory.learned
    rows = [row[service] for service in safety if service in row]
    for name in (field.name for field in fields(Safety)):
        values = [safety[memory.services[place]].get(name, UNKNOWN) for place in rows]
        safe = with_rows(safe, rows, {name: values})
    # Who was decided about before is not new: a restart must not build a pool for every service that nobody uses.
    decided = [place for place in rows if safe.replicas_serving[place] != UNKNOWN]
    timers = with_rows(memory.recent.timers, decided, {"new_until_ms": UNKNOWN})
    rows = [row[service] for service in learned if service in row]
    for name in (field.name for field in fields(Learned)) if rows else ():
        known = with_rows(known, rows, {name: [learned[memory.services[place]][name] for place in rows]})
    return replace(memory, safety=safe, learned=known, recent=replace(memory.recent, timers=timers))


def encode_memory(memory: Memory) -> bytes:
    """Write all of memory: what a journal's keyframe starts from."""
    return _encode(memory)


def decode_memory(data: bytes) -> Memory:
    """Read what `encode_memory` wrote; raises CodecError when it is anything else."""
    return _decode(Memory, data)


def encode_fleet(fleet: FleetSpec) -> bytes:
    """Write the specification."""
    return _encode(fleet)


def decode_fleet(data: bytes) -> FleetSpec:
    """Read what `encode_fleet` wrote; raises CodecError when it is anything else."""
    return _decode(FleetSpec, data)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Write one look at the cluster."""
    return _encode(snapshot)


def decode_snapshot(data: bytes) -> Snapshot:
    """Read what `encode_snapshot` wrote; raises CodecError when it is anything else."""
    return _decode(Snapshot, data)


def encode_decisions(decisions: Decisions) -> bytes:
    """Write one tick's verdicts: what a replay compares, byte by byte."""
    return _encode(decisions)


def decode_decisions(data: bytes) -> Decisions:
    """Read what `encode_decisions` wrote; raises CodecError when it is anything else."""
    return _decode(Decisions, data)


def _text(document: dict[str, Any]) -> str:
    return orjson.dumps(document | {"version": VERSION}, option=orjson.OPT_SORT_KEYS).decode()


def _load(text: str, bytes_max: int) -> dict[str, Any]:
    if len(text) > bytes_max:
        raise CodecError(f"longer than {bytes_max} characters")
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise CodecError(f"not JSON: {error}") from error
    if not isinstance(document, dict) or document.pop("version", None) != VERSION:
        raise CodecError(f"not a document of version {VERSION}")
    return document


def _is_count(value: object, largest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= largest


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Walk a document in the order of its fields; a stage's inputs are leaves of their own."""
    for field in fields(value):
        leaf, name = getattr(value, field.name), f"{path}{field.name}"
        if is_dataclass(leaf):
            yield from _leaves(leaf, f"{name}.")
        elif name == "inputs":
            yield from ((f"inputs.{stage}.{key}", column) for stage, row in enumerate(leaf) for key, column in row)
        else:
            yield name, leaf


def _encode(document: Memory | FleetSpec | Snapshot | Decisions) -> bytes:
    plain: dict[str, Any] = {}
    columns: list[tuple[str, str, tuple[int, ...]]] = []
    body: list[bytes] = []
    for name, leaf in _leaves(document):
        if isinstance(leaf, np.ndarray):
            kind = "|b1" if leaf.dtype == np.bool_ else "<i8"
            columns.append((name, kind, leaf.shape))
            body.append(np.ascontiguousarray(leaf, kind).tobytes())
        else:
            plain[name] = leaf
    header = orjson.dumps(
        {"version": VERSION, "kind": type(document).__name__, "columns": columns, "plain": plain},
        option=orjson.OPT_SORT_KEYS,
    )
    data = b"".join((_MAGIC, len(header).to_bytes(4, "little"), header, *body))
    return data + zlib.crc32(data).to_bytes(4, "little")


def _decode(kind: type[Document], data: bytes) -> Document:
    start = len(_MAGIC) + 4
    if data[: len(_MAGIC)] != _MAGIC or zlib.crc32(data[:-4]).to_bytes(4, "little") != data[-4:]:
        raise CodecError("not a document, or damaged")
    try:
        end = start + int.from_bytes(data[len(_MAGIC) : start], "little")
        header = orjson.loads(data[start:end])
        if (header["version"], header["kind"]) != (VERSION, kind.__name__):
            raise CodecError(f"not a {kind.__name__} of version {VERSION}")
        leaves = dict(header["plain"])
        for name, dtype, shape in header["columns"]:
            count = int(np.prod(shape, dtype=np.int64))
            leaves[name] = np.frombuffer(data, dtype, count, end).reshape(shape)
            end += leaves[name].nbytes
        return _build(kind, leaves)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, CodecError):
            raise
        raise CodecError(f"not a {kind.__name__}: {error}") from error


def _build(kind: type[Document], leaves: dict[str, Any], path: str = "") -> Document:
    parts: dict[str, Any] = {}
    for field in fields(kind):
        name = f"{path}{field.name}"
        if field.name in _PARTS.get(kind, {}):
            parts[field.name] = _build(_PARTS[kind][field.name], leaves, f"{name}.")
        elif name == "inputs":
            parts[field.name] = _inputs(leaves)
        else:
            leaf = leaves[name]
            parts[field.name] = tuple(leaf) if isinstance(leaf, list) else leaf
    return kind(**parts)


def _inputs(leaves: dict[str, Any]) -> tuple[tuple[tuple[str, Any], ...], ...]:
    stages: list[list[tuple[str, Any]]] = [[] for _ in leaves["stages"]]
    for name, leaf in leaves.items():
        if name.startswith("inputs."):
            _, stage, key = name.split(".")
            stages[int(stage)].append((key, leaf))
    return tuple(tuple(stage) for stage in stages)
