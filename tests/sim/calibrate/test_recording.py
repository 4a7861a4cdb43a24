"""What a recording file must hold, and what is said of one that does not."""

from __future__ import annotations

import gzip
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pytest

from forebay.sim.calibrate.loads import Load, Request
from forebay.sim.calibrate.recording import RecordingError, read, read_folder, write
from tests.sim.calibrate.engines import FACTS, play

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOAD = Load("two", ((Request(0, 64, 4), Request(5_000, 200, 3)),))


def test_what_is_written_is_read_again_and_equal_recordings_are_equal_bytes(tmp_path: Path) -> None:
    recording, path, twin = play(LOAD, 1), tmp_path / "a.json.gz", tmp_path / "b.json.gz"
    write(recording, path)
    write(play(LOAD, 1), twin)
    again = read(path)
    assert path.read_bytes() == twin.read_bytes()
    assert again.token_us.tolist() == recording.token_us.tolist()
    assert again.trace.arrival_us.tolist() == recording.trace.arrival_us.tolist()
    assert (again.load, again.run, again.facts, again.preemptions) == ("two", 1, FACTS, 0)


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another format": (lambda d: d.update(format="x/9"), "format 'x/9'"),
    "a field is missing": (lambda d: d.pop("sent_us"), "no 'sent_us'"),
    "a request without tokens": (lambda d: d["gaps_us"].__setitem__(0, []), "output_tokens must be 1"),
    "a token before its request": (lambda d: d["gaps_us"].__setitem__(0, [-5, 1, 1, 1]), "tokens come before"),
    "more requests than answers": (lambda d: d["gaps_us"].pop(), "token times of 1 requests, 2 requests sent"),
    "facts of another kind": (lambda d: d["facts"].pop("machine"), "no 'machine'"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_that_is_no_recording_is_named_with_its_fault(case: str, tmp_path: Path) -> None:
    damage, said = BROKEN[case]
    path = tmp_path / "a.json.gz"
    write(play(LOAD, 1), path)
    document = orjson.loads(gzip.decompress(path.read_bytes()))
    damage(document)
    path.write_bytes(gzip.compress(orjson.dumps(document)))
    with pytest.raises(RecordingError, match=said) as error:
        read(path)
    assert "a.json.gz" in str(error.value)


@pytest.mark.parametrize("content", [b"", b"no gzip", gzip.compress(b"no json"), gzip.compress(b"[1]")])
def test_bytes_of_any_kind_give_one_kind_of_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match="is no recording"):
        read(path)


def test_a_folder_needs_recordings_of_one_engine(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="holds no recording"):
        read_folder(tmp_path)
    recording = play(LOAD, 1)
    write(recording, tmp_path / "a.json.gz")
    write(replace(recording, facts=replace(FACTS, max_num_seqs=8)), tmp_path / "b.json.gz")
    with pytest.raises(RecordingError, match="of 2 engines"):
        read_folder(tmp_path)


def test_token_times_must_be_as_many_as_tokens() -> None:
    recording = play(LOAD, 1)
    with pytest.raises(ValueError, match="6 token times for 7 output tokens"):
        replace(recording, token_us=np.delete(recording.token_us, 3))
