"""Each format as it comes in the wild, each way in which a line can be wrong, and the real files by their READMEs."""

from __future__ import annotations

import contextlib
import gzip
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.sim.traces import Format, TraceError, lines, plain, read

if TYPE_CHECKING:
    from forebay.sim.trace import Trace

DATA = Path(__file__).resolve().parents[2] / "data" / "traces"

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
AZURE_2023 = AZURE + "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8"
AZURE_2024 = (
    AZURE
    + "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01+00:00,2399,6\n2024-05-10 00:00:01+00:00,76,15\n"
)
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
BURST_1 = BURST + (
    "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,0,1087,API log\n"
    "118,GPT-4,0,0,0,API log\n118,GPT-4,417,276,693,API log\n"
)
BURST_3 = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    '0.5,"a,b",3.2,ChatGPT,472,18,490,Conversation log\n'
)
MOON = (
    '{"timestamp": 0, "input_length": 1025, "output_length": 500, "hash_ids": [0, 1, 2]}\n'
    '{"timestamp": 0, "input_length": 1024, "output_length": 490, "hash_ids": [0, 3]}\n'
    '{"timestamp": 3001, "input_length": 30, "output_length": 7, "hash_ids": [4]}\n'
)
BAILIAN = (
    '{"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 33, "output_length": 132,'
    ' "type": "text", "turn": 1, "hash_ids": [1089, 1090, 6326]}\n'
)
PLAIN = "arrival_us,prompt_tokens,output_tokens\n0,10,20\n7,11,21\n"


class Wild(NamedTuple):
    text: str
    format: Format
    arrival_us: list[int]
    prompt_tokens: list[int]
    output_tokens: list[int]
    prefix_ids: list[int] | None = None
    prefix_offsets: list[int] | None = None
    dropped: int = 0


WILD = {
    "Azure 2023, no newline at its end": Wild(AZURE_2023, Format.AZURE, [0, 52_000], [4808, 3180], [10, 8]),
    "Azure 2024, a zone, and seconds without digits": Wild(
        AZURE_2024, Format.AZURE, [0, 990_070, 990_070], [2162, 2399, 76], [5, 6, 15],
    ),
    "BurstGPT 1, failures left out": Wild(
        BURST_1, Format.BURSTGPT, [5_000_000, 118_000_000], [472, 417], [18, 276], dropped=2,
    ),
    "BurstGPT 3, more columns": Wild(BURST_3, Format.BURSTGPT, [500_000], [472], [18]),
    "Mooncake, ids of full blocks": Wild(
        MOON, Format.MOONCAKE, [0, 0, 3_001_000], [1025, 1024, 30], [500, 490, 7], [0, 1, 0, 3], [0, 2, 4, 4],
    ),
    "Qwen-Bailian": Wild(BAILIAN, Format.BAILIAN, [61_114_000], [33], [132], [1089, 1090], [0, 2]),
    "our own": Wild(PLAIN, Format.PLAIN, [0, 7], [10, 11], [20, 21]),
    "lines that end as on Windows, after a byte order mark": Wild(
        "\ufeff" + PLAIN.replace("\n", "\r\n"), Format.PLAIN, [0, 7], [10, 11], [20, 21],
    ),
}  # fmt: skip

HUGE = "9" * 30
MALFORMED: dict[str, tuple[str, int, str]] = {
    "an empty file": ("", 1, "empty"),
    "a header and nothing else": (AZURE, 1, "no request"),
    "only requests that are left out": (BURST + "5,m,0,0,0,API log\n", 1, "no request"),
    "a format that nobody knows": ("time;tokens\n1;2\n", 1, "no format begins with .* --format"),
    "a pointer of Git LFS": ("version https://git-lfs.github.com/spec/v1\noid sha256:4b\n", 1, "git lfs pull"),
    "Azure: no time": (AZURE_2023 + "\nsoon,1,1\n", 4, "TIMESTAMP is 'soon'"),
    "Azure: a word that numpy takes for a time": (AZURE + "now,1,1\n", 2, "TIMESTAMP is 'now'"),
    "Azure: another zone": (AZURE + "2024-05-10 00:00:01+02:00,1,1\n", 2, "with .00:00 or no zone"),
    "Azure: a thirteenth month": (AZURE + "2024-13-10 00:00:01,1,1\n", 2, "TIMESTAMP is '2024-13"),
    "Azure: out of order": (AZURE_2024 + "2024-05-09 00:00:00+00:00,1,1\n", 5, "arrives before the line above"),
    "Azure: a field too few": (AZURE_2023 + "\n2023-11-16 18:17:05.0,7\n", 4, "2 fields where 3 belong"),
    "Azure: a blank line": (AZURE_2024 + "\n", 5, "0 fields"),
    "Azure: half a number": (AZURE + "2024-05-10 00:00:01,1.5,1\n", 2, "ContextTokens is '1.5'"),
    "Azure: a negative number": (AZURE + "2024-05-10 00:00:01,1,-1\n", 2, "GeneratedTokens is '-1'"),
    "Azure: an empty prompt": (AZURE + "2024-05-10 00:00:01,0,1\n", 2, "prompt_tokens is 0"),
    "Azure: an empty output": (AZURE_2023 + "\n2023-11-16 18:17:05.0,7,0\n", 4, "output_tokens is 0"),
    "Azure: a prompt of more than 2^31": (AZURE + f"2024-05-10 00:00:01,{2**31 + 1},1\n", 2, "is not 1 to 2147483648"),
    "Azure: a prompt that no integer holds": (AZURE + f"2024-05-10 00:00:01,{HUGE},1\n", 2, "out of all proportion"),
    "Azure: an open quote": (AZURE_2023 + '\n2023-11-16 18:17:05.0,"7,1\n', 4, "not CSV"),
    "BurstGPT: no time": (BURST + "x,m,1,1,2,API log\n", 2, "Timestamp is 'x', not a number"),
    "BurstGPT: not a number, though numbers have it": (BURST + "nan,m,1,1,2,API log\n", 2, "not a finite number"),
    "BurstGPT: an age of the world": (BURST + "1e300,m,1,1,2,API log\n", 2, "out of all proportion"),
    "BurstGPT: a negative time": (BURST + "-5,m,1,1,2,API log\n", 2, "a time before 0"),
    "BurstGPT: out of order behind one that is left out": (
        BURST + "5,m,0,1,1,API log\n4,m,1,1,2,API log\n", 3, "arrives before",
    ),
    "Mooncake: cut off": (MOON + '{"timestamp": 4000, "input_le', 4, "not JSON"),
    "Mooncake: a field missing": (MOON + '{"timestamp": 4000}\n', 4, "not an object with .*'input_length'"),
    "Mooncake: a list": (MOON + "[1]\n", 4, "not an object"),
    "Mooncake: a blank line": (MOON + "\n", 4, "not JSON"),
    "Mooncake: half a token": (MOON.replace("1025", "1025.5"), 1, "input_length: 1025.5"),
    "Mooncake: true for a length": (MOON.replace("490", "true"), 2, "output_length: True"),
    "Mooncake: a time in words": (MOON.replace("3001", '"3001"'), 3, "timestamp is '3001'"),
    "Mooncake: a time before 0": (MOON.replace('p": 0', 'p": -1', 1), 1, "a time before 0"),
    "Mooncake: out of order": (MOON.replace('p": 0', 'p": 9', 1), 2, "arrives before"),
    "Mooncake: a length of more than 2^53": (MOON.replace("490", str(2**54)), 2, "out of all proportion"),
    "Mooncake: an empty prompt": (MOON.replace("30, ", "0, ").replace("[4]", "[]"), 3, "prompt_tokens is 0"),
    "Mooncake: more blocks than tokens": (MOON.replace("[4]", "[4, 5]"), 3, "2 hash_ids for a prompt of 1 blocks"),
    "Mooncake: ids that are none": (MOON.replace("[0, 3]", '["a", 3]'), 2, "hash_ids: 'a'"),
    "Mooncake: no list of ids": (MOON.replace("[4]", "4"), 3, "hash_ids is 4, not a list"),
    "our own: an empty output": (PLAIN + "8,1,0\n", 4, "output_tokens is 0"),
    "our own: out of order": (PLAIN + "6,1,1\n", 4, "arrives before"),
}  # fmt: skip


def written(folder: Path, text: str, name: str = "a.csv") -> Path:
    path = folder / name
    path.write_text(text, newline="")
    return path


@pytest.mark.parametrize("wild", WILD.values(), ids=WILD)
def test_a_format_is_seen_and_read(tmp_path: Path, wild: Wild) -> None:
    reading = read(written(tmp_path, wild.text))
    trace = reading.trace
    assert (reading.format, sum(reading.dropped.values()), trace.name) == (wild.format, wild.dropped, "a")
    for column in ("arrival_us", "prompt_tokens", "output_tokens", "prefix_ids", "prefix_offsets"):
        values = getattr(trace, column)
        assert (None if values is None else values.tolist()) == getattr(wild, column), column
    packed = tmp_path / "a.csv.gz"
    packed.write_bytes(gzip.compress(wild.text.encode()))
    assert same(read(packed, wild.format).trace, trace)


@pytest.mark.parametrize(("text", "line", "reason"), MALFORMED.values(), ids=MALFORMED)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, line: int, reason: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(TraceError, match=reason) as caught:
        read(path)
    assert (caught.value.path, caught.value.line) == (path, line)
    assert str(caught.value).startswith(f"{path}:{line}: ")


@pytest.mark.parametrize(("text", "line", "reason"), MALFORMED.values(), ids=MALFORMED)
def test_a_wrong_line_is_named_wherever_the_batches_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, line: int, reason: str
) -> None:
    monkeypatch.setattr(lines, "BATCH_LINES", 1)
    test_a_wrong_line_is_named(tmp_path, text, line, reason)


def test_why_requests_were_left_out_is_counted(tmp_path: Path) -> None:
    dropped = read(written(tmp_path, BURST_1)).dropped
    assert dropped == {"0 request tokens": 1, "0 response tokens: the request failed": 1}


def test_a_damaged_gzip_stream_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(PLAIN.encode() * 1000)[:-20])
    with pytest.raises(TraceError, match=r"gzip stream is damaged.*fetch the file again"):
        read(path)


def test_what_is_not_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(AZURE.encode() + b"2024-05-10 00:00:01,1,1\n\xff\xfe\n")
    with pytest.raises(TraceError, match="not text") as caught:
        read(path)
    assert caught.value.line == 3


def test_a_format_can_be_told_and_is_then_the_one(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=":1: not JSON"):
        read(written(tmp_path, PLAIN), Format.MOONCAKE)


def test_what_we_write_we_read_and_equal_traces_are_equal_files(tmp_path: Path) -> None:
    trace = read(DATA / "azure-llm-2023" / "AzureLLMInferenceTrace_code.csv.gz").trace
    for name in ("a.csv.gz", "b.csv.gz"):
        plain.write(tmp_path / name, trace)
    again = read(tmp_path / "a.csv.gz")
    assert again.format is Format.PLAIN
    assert same(again.trace, trace)
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()


# File, requests, seconds, p50/p90/p99/max of prompts, of outputs: what the READMEs beside the files say.
REAL: dict[str, tuple[str, int, float, tuple[int, ...], tuple[int, ...]]] = {
    "W1": (
        "azure-llm-2023/AzureLLMInferenceTrace_conv.csv.gz",
        19_366, 3_502, (1_020, 2_734, 4_142, 14_050), (129, 424, 601, 1_000),
    ),
    "W2": (
        "azure-llm-2023/AzureLLMInferenceTrace_code.csv.gz",
        8_819, 3_436, (1_469, 5_188, 7_436, 7_437), (13, 55, 251, 1_899),
    ),
    "W3": (
        "mooncake-fast25/conversation_trace.jsonl.gz",
        12_031, 3_537, (6_909, 27_367, 85_400, 126_195), (350, 597, 1_118, 2_000),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("file", "requests", "seconds", "prompts", "outputs"), REAL.values(), ids=REAL)
def test_the_real_files_are_what_their_readmes_say(
    file: str, requests: int, seconds: float, prompts: tuple[int, ...], outputs: tuple[int, ...]
) -> None:
    reading = read(DATA / file)
    trace = reading.trace
    assert (len(trace), reading.dropped) == (requests, {})
    assert trace.duration_us / 1e6 == pytest.approx(seconds, abs=1)
    assert np.quantile(trace.prompt_tokens, [0.5, 0.9, 0.99, 1]) == pytest.approx(prompts, abs=1)
    assert np.quantile(trace.output_tokens, [0.5, 0.9, 0.99, 1]) == pytest.approx(outputs, abs=1)


def test_of_mooncakes_full_blocks_38_percent_were_seen_before() -> None:
    trace = read(DATA / "mooncake-fast25" / "conversation_trace.jsonl.gz").trace
    assert trace.prefix_ids is not None
    assert 1 - len(np.unique(trace.prefix_ids)) / len(trace.prefix_ids) == pytest.approx(0.38, abs=0.005)
    assert trace.prompt_tokens.mean() == pytest.approx(12_035, abs=1)
    assert trace.output_tokens.mean() == pytest.approx(343, abs=1)


def same(one: Trace, other: Trace) -> bool:
    columns = ("arrival_us", "prompt_tokens", "output_tokens", "prefix_ids", "prefix_offsets")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in columns)


@given(data=st.data(), text=st.sampled_from([wild.text for wild in WILD.values()]))
def test_whatever_happens_to_a_file_is_a_trace_or_one_named_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, text: str
) -> None:
    raw = text.encode()
    place = data.draw(st.integers(0, len(raw)))
    length = data.draw(st.integers(0, 5))
    junk = data.draw(
        st.binary(max_size=4) | st.sampled_from([b"-", b"0", b"9" * 20, b"\n", b'"', b",", b".5", b"null"])
    )
    path = tmp_path_factory.mktemp("t") / "a"
    path.write_bytes(raw[:place] + junk + raw[place + length :])
    with contextlib.suppress(TraceError):
        assert len(read(path).trace) >= 1
