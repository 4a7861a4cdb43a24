"""The journal's files: what was written is read, damage is one named error or a clean stop."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from forebay.report import journal
from forebay.report.journal import TICK, FleetChange, Journal, JournalError, Keyframe, Tick, read, segments

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

BLOBS = st.lists(st.tuples(st.binary(max_size=64), st.binary(max_size=64)), min_size=1, max_size=8)


def written(folder: Path, ticks: list[tuple[bytes, bytes]]) -> Path:
    """Write raw records as `Journal` does, without asking core for bytes."""
    book = Journal(folder, 1 << 30)
    path = folder / "journal-00000001.fbj"
    path.write_bytes(journal.MAGIC)
    book._path = path
    book._write(journal.KEYFRAME, b"fleet", b"memory")
    for snapshot, decisions in ticks:
        book._write(TICK, snapshot, decisions)
    return path


@given(ticks=BLOBS)
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, ticks: list[tuple[bytes, bytes]]) -> None:
    path = written(tmp_path_factory.mktemp("j"), ticks)
    assert list(read(path)) == [Keyframe(b"fleet", b"memory"), *(Tick(*tick) for tick in ticks)]


def test_a_counter_that_moves_a_little_takes_little_room(tmp_path: Path) -> None:
    ticks = []
    for second in range(50):
        words = [1_000_000 + 37 * i + second * (i % 3) for i in range(10_000)]
        ticks.append((b"".join(word.to_bytes(8, "little") for word in words), b"same"))
    path = written(tmp_path, ticks)
    assert [r.snapshot for r in read(path) if isinstance(r, Tick)] == [snapshot for snapshot, _ in ticks]
    assert path.stat().st_size < 50 * 80_000 / 20


@given(ticks=BLOBS, cut=st.integers(0, 10_000))
def test_a_file_cut_off_anywhere_is_read_up_to_there(
    tmp_path_factory: pytest.TempPathFactory, ticks: list[tuple[bytes, bytes]], cut: int
) -> None:
    path = written(tmp_path_factory.mktemp("j"), ticks)
    whole = list(read(path))
    path.write_bytes(path.read_bytes()[: cut % path.stat().st_size])
    part = list(read(path))
    assert part == whole[: len(part)]


@given(ticks=BLOBS, at=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_a_damaged_byte_is_a_named_error_or_a_clean_stop(
    tmp_path_factory: pytest.TempPathFactory, ticks: list[tuple[bytes, bytes]], at: int, flip: int
) -> None:
    path = written(tmp_path_factory.mktemp("j"), ticks)
    whole = list(read(path))
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= flip
    path.write_bytes(data)
    got: list[Keyframe | FleetChange | Tick] = []
    with contextlib.suppress(JournalError):
        got.extend(read(path))
    assert got == whole[: len(got)]


def test_the_oldest_files_go_when_the_ring_is_full(tmp_path: Path) -> None:
    for number in range(1, 6):
        (tmp_path / f"journal-{number:08d}.fbj").write_bytes(bytes(1000))
    Journal(tmp_path, journal.SEGMENT_BYTES + 2500)._make_room(segments(tmp_path))
    assert [path.name for path in segments(tmp_path)] == ["journal-00000004.fbj", "journal-00000005.fbj"]
