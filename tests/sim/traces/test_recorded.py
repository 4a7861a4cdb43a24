"""From counters, as a live fleet's journal has them or an engine's history, to requests that could have moved them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from forebay.cli.main import app
from forebay.core.memory import initial_memory
from forebay.core.step import step
from forebay.core.units import UNKNOWN
from forebay.report.journal import Journal, JournalError, segments
from forebay.sim.traces import Format, read
from forebay.sim.traces.journal import ServiceUnknownError, from_journal
from forebay.sim.traces.recorded import Counters, Growth, estimate, from_engines
from tests.core import build

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SECOND_US = 1_000_000


def journal(folder: Path, looks: Sequence[tuple[int, Sequence[dict[str, Any]], Sequence[dict[str, Any]]]]) -> Path:
    """Write what an operator of two services would have written: (second, gateways, replicas) for each tick."""
    spec = build.fleet({}, {})
    memory = initial_memory(spec, 0)
    book = Journal(folder, 1 << 30)
    for second, gateways, replicas in looks:
        look = build.snapshot(second * 1000, list(replicas), list(gateways), gateways_expected=len(gateways))
        memory, decisions = step(spec, memory, look)
        book.record(spec, memory, look, decisions)
    return folder


def gateway(arrivals: int, prompt_tokens: int, **more: Any) -> dict[str, Any]:
    return {"age_ms": 0, "arrivals_total": arrivals, "arrival_prompt_tokens_total": prompt_tokens} | more


def replica(finished: int, tokens: int, **more: Any) -> dict[str, Any]:
    return {"age_ms": 0, "state": 2, "requests_finished_total": finished, "generation_tokens_total": tokens} | more


def recorded(folder: Path, service: str | None = "a/s0") -> Any:
    return from_journal(segments(folder), service)


def test_a_tick_s_requests_come_evenly_and_share_its_prompt_tokens(tmp_path: Path) -> None:
    looks = [
        (0, [gateway(100, 5000)], [replica(0, 0)]),
        (1, [gateway(104, 5010)], [replica(0, 0)]),
        (2, [gateway(104, 5010)], [replica(4, 41)]),
        (3, [gateway(106, 5210)], [replica(5, 50)]),
    ]
    recording = recorded(journal(tmp_path, looks))
    trace = recording.trace
    assert (recording.service, recording.ticks, recording.seams) == ("a/s0", 4, 0)
    assert trace.arrival_us.tolist() == [125_000, 375_000, 625_000, 875_000, 2_250_000, 2_750_000]
    assert trace.prompt_tokens.tolist() == [2, 3, 2, 3, 100, 100]
    assert trace.output_tokens.tolist() == [10] * 6


def test_gateways_and_replicas_add_up_and_other_services_do_not(tmp_path: Path) -> None:
    def look(second: int) -> tuple[int, list[dict[str, Any]], list[dict[str, Any]]]:
        gateways = [
            gateway(10 * second, 100 * second, uid="g0"),
            gateway(7 * second, 7 * second, uid="g0", service=1),
            gateway(5 * second, 50 * second, uid="g1", age_ms=400),
        ]
        return second, gateways, [replica(15 * second, 30 * second), replica(second, 900 * second, service=1)]

    folder = journal(tmp_path, [look(second) for second in range(5)])
    one, other = recorded(folder).trace, recorded(folder, "a/s1").trace
    assert (len(one), set(one.prompt_tokens.tolist()), set(one.output_tokens.tolist())) == (60, {10}, {2})
    assert (len(other), set(other.prompt_tokens.tolist()), set(other.output_tokens.tolist())) == (28, {1}, {900})


def test_what_nobody_could_read_is_spread_over_the_gap(tmp_path: Path) -> None:
    unread = {"requests_finished_total": UNKNOWN, "generation_tokens_total": UNKNOWN, "age_ms": UNKNOWN}
    looks: list[Any] = [(0, [gateway(0, 0)], [replica(0, 0)])]
    looks += [(second, [], [replica(0, 0) | unread]) for second in range(1, 10)]
    looks += [(10, [gateway(5, 5)], [replica(5, 50)])]
    trace = recorded(journal(tmp_path, looks)).trace
    assert trace.arrival_us.tolist() == [second * SECOND_US for second in (1, 3, 5, 7, 9)]
    assert trace.output_tokens.tolist() == [10] * 5


def test_an_old_reading_seen_again_counts_once(tmp_path: Path) -> None:
    looks = [
        (0, [gateway(0, 0)], [replica(0, 0)]),
        (1, [gateway(4, 4)], [replica(4, 4)]),
        (2, [gateway(4, 4, age_ms=1000)], [replica(4, 4, age_ms=1000)]),
    ]
    assert len(recorded(journal(tmp_path, looks)).trace) == 4


def test_a_restarted_engine_counts_from_zero_and_a_new_gateway_from_its_first_reading(tmp_path: Path) -> None:
    looks = [
        (0, [gateway(0, 0)], [replica(10, 100)]),
        (1, [gateway(2, 20)], [replica(12, 120)]),
        (2, [gateway(3, 30), gateway(1000, 10_000, uid="g1")], [replica(1, 10)]),
        (3, [gateway(3, 30), gateway(1001, 10_010, uid="g1")], [replica(2, 20)]),
    ]
    trace = recorded(journal(tmp_path, looks)).trace
    assert len(trace) == 4
    assert set(trace.output_tokens.tolist()) == {10}


def test_over_a_change_of_the_clock_time_is_closed_up(tmp_path: Path) -> None:
    before = [(900_000 + s, [gateway(s, s)], [replica(s, 10 * s)]) for s in range(3)]
    after = [(50 + s, [gateway(100 + s, 100 + s)], [replica(100 + s, 1000 + 10 * s)]) for s in range(3)]
    first, second = journal(tmp_path / "1", before), journal(tmp_path / "2", after)
    recording = from_journal([*segments(first), *segments(second)], "a/s0")
    assert recording.seams == 1
    assert recording.trace.arrival_us.tolist() == [500_000, 1_500_000, 2_500_000, 3_500_000]


def test_a_service_must_be_chosen_and_be_there(tmp_path: Path) -> None:
    folder = journal(tmp_path, [(0, [gateway(0, 0)], []), (1, [gateway(1, 1)], [])])
    with pytest.raises(ServiceUnknownError, match="choose one: a/s0, a/s1"):
        recorded(folder, None)
    with pytest.raises(ServiceUnknownError, match="a/s7 is not in the journal, which holds a/s0, a/s1"):
        recorded(folder, "a/s7")
    with pytest.raises(ServiceUnknownError, match="no service at all"):
        from_journal([], None)


def test_without_requests_or_without_ends_there_is_no_trace(tmp_path: Path) -> None:
    quiet = [(0, [gateway(3, 3)], [replica(1, 1)]), (1, [gateway(3, 3)], [replica(2, 2)])]
    with pytest.raises(ValueError, match="a/s0: no request came"):
        recorded(journal(tmp_path / "quiet", quiet))
    endless = [(0, [gateway(3, 3)], [replica(1, 1)]), (1, [gateway(5, 5)], [replica(1, 9)])]
    with pytest.raises(ValueError, match="2 requests came and none ended"):
        recorded(journal(tmp_path / "endless", endless))


def test_a_damaged_journal_is_named_with_its_file(tmp_path: Path) -> None:
    folder = journal(tmp_path, [(s, [gateway(s, s)], [replica(s, s)]) for s in range(3)])
    [path] = segments(folder)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalError, match=rf"{path}: after \d good records"):
        recorded(folder)


def test_the_command_writes_a_trace_that_can_be_read(tmp_path: Path) -> None:
    folder = journal(tmp_path / "j", [(s, [gateway(2 * s, 20 * s)], [replica(2 * s, 10 * s)]) for s in range(4)])
    out = tmp_path / "out.csv.gz"
    result = CliRunner().invoke(app, ["record", "journal", str(folder), "-s", "a/s0", "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "6 requests in 3 s (2.18/s), on average 10 prompt and 5 output tokens" in result.output
    reading = read(out)
    assert (reading.format, len(reading.trace)) == (Format.PLAIN, 6)


def test_the_command_says_what_is_wrong_in_one_line(tmp_path: Path) -> None:
    folder = journal(tmp_path / "j", [(0, [gateway(0, 0)], [])])
    result = CliRunner().invoke(app, ["record", "journal", str(folder), "-o", str(tmp_path / "out.csv.gz")])
    assert result.exit_code == 1
    assert result.stderr == "Nothing recorded: the journal holds several services, choose one: a/s0, a/s1\n"
    nowhere = str(tmp_path / "no" / "out.csv.gz")
    folder = journal(tmp_path / "k", [(s, [gateway(s, s)], [replica(s, s)]) for s in range(2)])
    result = CliRunner().invoke(app, ["record", "journal", str(folder), "-s", "a/s0", "-o", nowhere])
    assert (result.exit_code, "No such file" in result.stderr) == (1, True)


GROWTH = st.builds(
    lambda start, span, requests, prompts, outputs: Growth(start, start + span, requests, prompts, outputs),
    st.integers(0, 10**9), st.integers(1, 10**7), st.integers(0, 50), st.integers(0, 10**6), st.integers(0, 10**6),
)  # fmt: skip


@given(arrivals=st.lists(GROWTH, min_size=1, max_size=9), ends=st.lists(GROWTH, min_size=1, max_size=9))
def test_every_request_that_came_is_there_within_its_interval_and_tokens_add_up(
    arrivals: list[Growth], ends: list[Growth]
) -> None:
    came = sum(one.requests for one in arrivals)
    if not came or not sum(one.requests for one in ends):
        with pytest.raises(ValueError, match=r"no request came|none ended"):
            estimate("t", arrivals, ends, from_us=0, prompts_on_arrival=True)
        return
    trace = estimate("t", arrivals, ends, from_us=0, prompts_on_arrival=True)
    assert len(trace) == came
    for one in arrivals:
        inside = (trace.arrival_us >= one.from_us) & (trace.arrival_us < one.to_us)
        assert inside.sum() >= one.requests
    tokens = sum(one.prompt_tokens for one in arrivals if one.requests)
    assert tokens <= trace.prompt_tokens.sum() <= tokens + came


def test_lengths_follow_the_minutes_in_which_enough_requests_ended() -> None:
    def minute(start: int, requests: int, length: int) -> Growth:
        return Growth(start * 60 * SECOND_US, (start + 1) * 60 * SECOND_US, requests, 0, requests * length)

    ends = [minute(0, 30, 100), minute(1, 30, 500), minute(2, 10, 50), minute(3, 10, 70), minute(4, 1, 10**4)]
    arrivals = [Growth(one.from_us, one.to_us, one.requests, 0, 0) for one in ends]
    outputs = estimate("t", arrivals, ends, from_us=0, prompts_on_arrival=True).output_tokens
    assert set(outputs[:30].tolist()) == {100}
    assert set(outputs[30:60].tolist()) == {500}
    # Ten a minute are too few for a stretch of their own, and what is left over at the end joins the last.
    assert outputs[60:].mean() == pytest.approx((500 + 700 + 10_000) / 21, abs=1)


def test_of_an_engine_came_what_ended_and_what_is_there() -> None:
    rows = [
        (0, 100, 2, 0, 0),
        (15, 104, 3, 400, 40),  # four ended, one more is there: five came
        (30, 105, 1, 500, 50),  # one ended and two are there less: a page not of one instant, nobody came
        (45, 108, 2, 800, 80),
        (60, 1, 1, 100, 10),  # restarted
    ]
    readings = np.array([(second * SECOND_US, *rest) for second, *rest in rows], np.int64)
    trace = from_engines("m", {"e": readings})
    counted = np.bincount(trace.arrival_us // (15 * SECOND_US), minlength=4)
    assert counted.tolist() == [5, 0, 3, 2]
    assert set(trace.prompt_tokens.tolist()) == {100}
    assert set(trace.output_tokens.tolist()) == {10}


def test_a_counter_begins_with_its_first_reading() -> None:
    counters = Counters()
    counters.see("g", 5, 1000, 9)
    counters.see("g", 7, 1001, 12)
    counters.begin_anew()
    counters.see("g", 3, 2000, 90)
    assert counters.growth == [Growth(5, 7, 1, 3, 0)]
