"""TELL: all looks and all decisions, kept small on a ring of files, and replayed to the same bytes.

A file begins with MAGIC and a keyframe (memory and fleet), then holds one record a tick. A record is
`<length:u32> <crc32:u32> <zstd frame>`; inside are a kind and blobs, each its length and its bytes. A blob that is as
long as the one before it is stored as the difference of their 64-bit words, with the bytes of equal rank side by side:
counters that move a little become zeros. Files are named by number; the oldest go when the ring is full.
"""

from __future__ import annotations

import logging
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import zstandard

from forebay.core import codec
from forebay.core.memory import carry
from forebay.core.step import step

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forebay.core.decision import Decisions
    from forebay.core.fleet import FleetSpec
    from forebay.core.memory import Memory
    from forebay.core.snapshot import Snapshot

log = logging.getLogger(__name__)

MAGIC = b"forebay-journal-1\n"
KEYFRAME, TICK, FLEET = b"K", b"T", b"F"
SEGMENT_MS = 600_000  # a crash costs nothing, but a replay can only start at a file's beginning
SEGMENT_BYTES = 64 << 20
LEVEL = 3  # 270 kB of a tick of 600 replicas in about 1 ms; level 9 takes 6 ms for a tenth less
MAX_RECORD_BYTES = 1 << 30
_HEAD = struct.Struct("<II")
_LENGTH = struct.Struct("<QB")


class JournalError(ValueError):
    """A journal that cannot be read on: not one, of another version, or damaged before its end."""


class _Delta:
    """Turns blobs into differences to the one before of the same slot, and back."""

    def __init__(self) -> None:
        self._before: dict[int, bytes] = {}

    def pack(self, slot: int, blob: bytes) -> bytes:
        before, self._before[slot] = self._before.get(slot), blob
        if before is None or len(before) != len(blob):
            return _LENGTH.pack(len(blob), 0) + blob
        words = _words(blob) - _words(before)
        return _LENGTH.pack(len(blob), 1) + words.view(np.uint8).reshape(-1, 8).T.tobytes()

    def unpack(self, slot: int, data: memoryview, at: int) -> tuple[bytes, int]:
        length, is_difference = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        size = -(-length // 8) * 8 if is_difference else length
        if at + size > len(data):
            raise JournalError("a record ends within a blob")
        stored = bytes(data[at : at + size])
        if is_difference:
            before = self._before.get(slot)
            if before is None or len(before) != length:
                raise JournalError("a difference to nothing")
            words = np.frombuffer(stored, np.uint8).reshape(8, -1).T.copy().view(np.uint64).ravel()
            stored = (words + _words(before)).tobytes()[:length]
        self._before[slot] = stored
        return stored, at + size


def _words(blob: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.frombuffer(blob + bytes(-len(blob) % 8), np.uint64)


class Journal:
    """Writes. What fails is counted and logged once, and costs the journal its gap, never the loop its tick.

    Parameters
    ----------
    folder
        Where the files are; made if absent.
    max_bytes
        Of all files together.

    Attributes
    ----------
    bytes_total, dropped_total : int
        Bytes written, and records that could not be written.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.bytes_total = 0
        self.dropped_total = 0
        self._folder, self._max_bytes = folder, max_bytes
        self._packer = zstandard.ZstdCompressor(level=LEVEL)
        self._delta = _Delta()
        self._path: Path | None = None
        self._started_ms = 0
        self._size = 0
        self._fleet: FleetSpec | None = None

    def record(self, fleet: FleetSpec, memory: Memory, snapshot: Snapshot, decisions: Decisions) -> None:
        """Write one tick.

        Parameters
        ----------
        fleet, memory, snapshot
            What `step` was given, memory as carried into the fleet.
        decisions
            What it said.
        """
        try:
            if self._path is None or snapshot.now_ms - self._started_ms >= SEGMENT_MS or self._size >= SEGMENT_BYTES:
                self._begin(fleet, memory, snapshot.now_ms)
            elif fleet is not self._fleet:
                self._write(FLEET, codec.encode_fleet(fleet))
                self._fleet = fleet
            self._write(TICK, codec.encode_snapshot(snapshot), codec.encode_decisions(decisions))
        except OSError as error:
            if self.dropped_total == 0:
                log.warning("the journal cannot be written", extra={"folder": str(self._folder), "error": repr(error)})
            self.dropped_total += 1
            self._path = None  # a gap may not be replayed over: the next record begins a new file

    def interrupt(self) -> None:
        """Say that memory will change by other means than a tick: the next record begins a new file."""
        self._path = None

    def _begin(self, fleet: FleetSpec, memory: Memory, now_ms: int) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        files = segments(self._folder)
        number = int(files[-1].stem.partition("-")[2]) + 1 if files else 1
        self._make_room(files)
        path = self._folder / f"journal-{number:08d}.fbj"
        path.write_bytes(MAGIC)
        self._path, self._started_ms, self._size, self._fleet = path, now_ms, len(MAGIC), fleet
        self._delta = _Delta()
        self._write(KEYFRAME, codec.encode_fleet(fleet), codec.encode_memory(memory))

    def _make_room(self, files: list[Path]) -> None:
        sizes = [path.stat().st_size for path in files]
        while files and sum(sizes) > self._max_bytes - SEGMENT_BYTES:
            files.pop(0).unlink()
            sizes.pop(0)

    def _write(self, kind: bytes, *blobs: bytes) -> None:
        if self._path is None:
            return
        slot = ord(kind) * 8
        body = kind + b"".join(self._delta.pack(slot + place, blob) for place, blob in enumerate(blobs))
        frame = self._packer.compress(body)
        data = _HEAD.pack(len(frame), zlib.crc32(frame)) + frame
        with self._path.open("ab") as file:
            file.write(data)
        self._size += len(data)
        self.bytes_total += len(data)


def segments(folder: Path) -> list[Path]:
    """List the files of a journal, oldest first."""
    return sorted(folder.glob("journal-*.fbj"))


@dataclass(frozen=True, slots=True)
class Keyframe:
    """What a file begins with."""

    fleet: bytes
    memory: bytes


@dataclass(frozen=True, slots=True)
class FleetChange:
    """The specification changed."""

    fleet: bytes


@dataclass(frozen=True, slots=True)
class Tick:
    """One look and what was decided."""

    snapshot: bytes
    decisions: bytes


def read(path: Path) -> Iterator[Keyframe | FleetChange | Tick]:
    """Read one file. A record that the end of the file cuts off was being written when the process died: a clean stop.

    Raises
    ------
    JournalError
        When the file is no journal, or a record before the last is damaged.
    """
    data = memoryview(path.read_bytes())
    if bytes(data[: len(MAGIC)]) != MAGIC:
        if len(data) < len(MAGIC) and MAGIC.startswith(bytes(data)):
            return
        raise JournalError(f"{path.name} is not a journal of this version")
    delta, at = _Delta(), len(MAGIC)
    while at + _HEAD.size <= len(data):
        length, checksum = _HEAD.unpack_from(data, at)
        start, at = at + _HEAD.size, at + _HEAD.size + length
        if at > len(data):
            return
        frame = data[start:at]
        if zlib.crc32(frame) != checksum:
            if at == len(data):
                return
            raise JournalError(f"{path.name}: the record at byte {start} is damaged")
        yield _record(bytes(frame), delta)


def _record(frame: bytes, delta: _Delta) -> Keyframe | FleetChange | Tick:
    try:
        body = memoryview(zstandard.ZstdDecompressor().decompress(frame, max_output_size=MAX_RECORD_BYTES))
    except zstandard.ZstdError as error:
        raise JournalError(f"a record cannot be unpacked: {error}") from error
    kind, at = bytes(body[:1]), 1
    blobs: list[bytes] = []
    while at < len(body):
        try:
            blob, at = delta.unpack(ord(kind) * 8 + len(blobs), body, at)
        except struct.error as error:
            raise JournalError(f"a record is too short: {error}") from error
        blobs.append(blob)
    match kind, blobs:
        case b"K", [fleet, memory]:
            return Keyframe(fleet, memory)
        case b"F", [fleet]:
            return FleetChange(fleet)
        case b"T", [snapshot, decisions]:
            return Tick(snapshot, decisions)
        case _:
            raise JournalError(f"a record of unknown kind {kind!r} with {len(blobs)} blobs")


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of a replay."""

    ticks: int
    differences: tuple[str, ...]  # "FILE tick N: ..." for each tick that decided otherwise; empty: the same bytes


def replay(path: Path) -> Replay:
    """Decide all over again, and compare.

    Parameters
    ----------
    path
        A file, or a folder of them.

    Raises
    ------
    JournalError
        As `read`, or when a document inside is not one.
    """
    ticks, differences = 0, []
    for file in segments(path) if path.is_dir() else [path]:
        for place, same in enumerate(_replay_file(file)):
            ticks += 1
            if not same:
                differences.append(f"{file.name} tick {place}: other decisions")
    return Replay(ticks, tuple(differences))


def _replay_file(path: Path) -> Iterator[bool]:
    fleet: FleetSpec | None = None
    memory: Memory | None = None
    try:
        for record in read(path):
            match record:
                case Keyframe():
                    fleet, memory = codec.decode_fleet(record.fleet), codec.decode_memory(record.memory)
                case FleetChange():
                    fleet = codec.decode_fleet(record.fleet)
                case Tick():
                    if fleet is None or memory is None:
                        raise JournalError(f"{path.name} does not begin with a keyframe")
                    snapshot = codec.decode_snapshot(record.snapshot)
                    memory, decisions = step(fleet, carry(memory, fleet, snapshot.now_ms), snapshot)
                    yield codec.encode_decisions(decisions) == record.decisions
    except codec.CodecError as error:
        raise JournalError(f"{path.name}: {error}") from error
