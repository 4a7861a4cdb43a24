"""What a client saw of one engine under one load: when each request was sent and when each of its tokens came.

A recording is a gzipped JSON document of whole numbers, so that one can be kept beside the tests and read in ten years.
"""

from __future__ import annotations

import gzip
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from forebay.engine_model.engine import EngineSettings
from forebay.sim.trace import Trace

if TYPE_CHECKING:
    from pathlib import Path

    from forebay.core.units import I64
    from forebay.engine_model.step_time import StepTimes

FORMAT = "forebay-recording/1"
SUFFIX = ".json.gz"


class RecordingError(ValueError):
    """A recording cannot be used; the message names the file, what is wrong, and what to do."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine was started with, as far as its scheduling depends on it."""

    engine: str  # program and version, "vllm 0.32.0"
    model: str
    machine: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_blocks: int  # as the engine reports them, the null block included
    kv_block_tokens: int
    prefix_caching: bool

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds; the null block holds none."""
        return (self.kv_blocks - 1) * self.kv_block_tokens

    def settings(self, times: StepTimes) -> EngineSettings:
        """Start the engine model as this engine was started."""
        return EngineSettings(
            step_times=times,
            kv_blocks_total=self.kv_blocks,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            prefix_caching=self.prefix_caching,
            kv_block_tokens=self.kv_block_tokens,
        )


@dataclass(frozen=True, slots=True)
class Recording:
    """One run of one load. Times are microseconds from the first request of the run.

    Raises
    ------
    ValueError
        When some request did not get all of its tokens, or its tokens go back in time.
    """

    load: str
    run: int  # the first is 1: the same load is recorded several times
    facts: EngineFacts
    trace: Trace  # arrival_us: when the client sent the request
    token_us: I64  # flat, when each output token came
    preemptions: int  # that the engine counted meanwhile

    def __post_init__(self) -> None:
        expected = int(self.trace.output_tokens.sum())
        if len(self.token_us) != expected:
            raise ValueError(f"{len(self.token_us)} token times for {expected} output tokens: record it again")
        first = self.token_us[self.offsets[:-1]]
        gaps = np.diff(self.token_us)
        within = np.ones(len(gaps), bool)
        within[self.offsets[1:-1] - 1] = False  # from one request's last token to the next one's first
        if (first < self.trace.arrival_us).any() or (gaps[within] < 0).any():
            raise ValueError("tokens come before their request or before each other: was a clock set meanwhile?")

    @property
    def offsets(self) -> I64:
        """[N + 1]: request i has token_us[offsets[i] : offsets[i + 1]]."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.trace.output_tokens)])


def write(recording: Recording, path: Path) -> None:
    """Write a recording; equal recordings give equal bytes."""
    trace, offsets = recording.trace, recording.offsets
    document = {
        "format": FORMAT,
        "load": recording.load,
        "run": recording.run,
        "facts": asdict(recording.facts),
        "preemptions": recording.preemptions,
        "sent_us": trace.arrival_us.tolist(),
        "prompt_tokens": trace.prompt_tokens.tolist(),
        # For each request the time from sending to its first token, then the gap before each further one.
        "gaps_us": [
            np.diff(recording.token_us[offsets[i] : offsets[i + 1]], prepend=trace.arrival_us[i]).tolist()
            for i in range(len(trace))
        ],
    }
    path.write_bytes(gzip.compress(orjson.dumps(document), mtime=0))


def read(path: Path) -> Recording:
    """Read a recording.

    Raises
    ------
    RecordingError
        With the file's name, when it holds something else.
    """
    try:
        document = orjson.loads(gzip.decompress(path.read_bytes()))
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']!r} instead of {FORMAT!r}")  # noqa: TRY301 - one way out
        return _decode(document)
    except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise RecordingError(
            f"{path} is no recording of an engine: {reason}; `forebay calibrate --url` makes one"
        ) from error


def read_folder(folder: Path) -> list[Recording]:
    """Read all recordings of a folder, by load and run.

    Raises
    ------
    RecordingError
        When there is none, when one cannot be read, or when they are of different engines.
    """
    recordings = [read(path) for path in sorted(folder.glob(f"*{SUFFIX}"))]
    if not recordings:
        raise RecordingError(f"{folder} holds no recording (*{SUFFIX}): make some with `forebay calibrate --url`")
    different = {recording.facts for recording in recordings}
    if len(different) > 1:
        raise RecordingError(f"{folder} holds recordings of {len(different)} engines: keep one folder for each")
    return sorted(recordings, key=lambda recording: (recording.load, recording.run))


def _decode(document: dict[str, Any]) -> Recording:
    gaps = [np.array(row, np.int64) for row in document["gaps_us"]]
    sent = np.array(document["sent_us"], np.int64)
    if len(gaps) != len(sent):
        raise ValueError(f"token times of {len(gaps)} requests, {len(sent)} requests sent")
    return Recording(
        load=str(document["load"]),
        run=int(document["run"]),
        facts=EngineFacts(**{field.name: document["facts"][field.name] for field in fields(EngineFacts)}),
        trace=Trace(
            name=str(document["load"]),
            arrival_us=sent,
            prompt_tokens=np.array(document["prompt_tokens"], np.int64),
            output_tokens=np.array([len(row) for row in gaps], np.int64),
        ),
        token_us=np.concatenate([at + np.cumsum(row) for at, row in zip(sent, gaps, strict=True)]),
        preemptions=int(document["preemptions"]),
    )
