"""What people see: the picture on a terminal and in a log, and the scorecard, with nothing unknown shown as zero."""

import io
from typing import Any

import pytest
from rich.console import Console

from e2e.demo.records import Outcome
from e2e.demo.scorecard import scorecard
from e2e.demo.stage import decision_in_words
from e2e.demo.view import LineView, Picture, ServiceView, lines, replica_bar, table
from tests.demo.test_score import answered, card, ended

BUSY = ServiceView(
    "chat/chat-8b",
    replicas={"serving": 3, "warm": 2, "starting": 1},
    arrivals_per_s=7.2,
    requests_held=4,
    pending_tokens=12345,
    in_flight=31,
    ttft_p95_ms=412,
    itl_p95_ms=31,
    decision="6 serving: 21 requests wait",
)
IDLE = ServiceView("batch/batch-8b", decision="no decision yet")
PICTURE = Picture("burst", 121.6, 300, [BUSY, IDLE])


def drawn(thing: Any, width: int = 160) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(thing)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_replica_is_a_letter() -> None:
    assert replica_bar({"warm": 2, "serving": 3, "failed": 1}).plain == "SSSwwx"
    assert replica_bar({}).plain == "none"


def test_the_table_shows_every_number_and_a_dash_for_what_is_not_known() -> None:
    text = drawn(table(PICTURE))
    assert "burst  122 of 300 s" in text
    for part in ("7.2", "12 345", "SSSww+", "412 ms", "31 ms", "6 serving: 21 requests wait"):
        assert part in text
    idle = next(line for line in text.splitlines() if "batch/batch-8b" in line)
    assert [cell.strip() for cell in idle.split("│")[2:6]] == ["-", "-", "-", "-"]


def test_a_log_gets_the_same_as_lines() -> None:
    first, busy, idle = lines(PICTURE).splitlines()
    assert first == "[ 122 s of 300] burst"
    assert "7.2 req/s, held 4, pending 12 345 tok, SSSww+, TTFT p95 412 ms, ITL p95 31 ms; 6 serving" in busy
    assert "- req/s, held -, pending - tok, none, TTFT p95 -" in idle


def test_a_log_is_written_every_ten_seconds_and_when_the_phase_changes(capsys: pytest.CaptureFixture[str]) -> None:
    with LineView() as view:
        for at_s, phase in ((0, "traffic"), (5, "traffic"), (9.9, "traffic"), (10, "traffic"), (12, "burst")):
            view.show(Picture(phase, at_s, 300, []))
    assert capsys.readouterr().err.splitlines() == [
        "[   0 s of 300] traffic",
        "[  10 s of 300] traffic",
        "[  12 s of 300] burst",
    ]


def step(replicas: int, message: str, reason: str = "Some") -> dict[str, Any]:
    return {"replicas": replicas, "reason": reason, "message": message}


def test_a_decision_is_told_by_the_stage_that_made_it_so_large() -> None:
    steps = [step(2, "demand"), step(4, "backlog"), step(4, "warm pool"), step(4, "left as it was", "Unchanged")]
    assert decision_in_words({"lastDecision": {"desired": 4, "steps": steps}}) == "4 serving: backlog"


def test_a_decision_that_no_stage_changed_is_told_by_the_last_that_had_words() -> None:
    steps = [step(2, "fresh"), step(2, "demand"), step(2, "left as it was", "Unchanged")]
    assert decision_in_words({"lastDecision": {"desired": 2, "steps": steps}}) == "2 serving: demand"
    assert decision_in_words({"lastDecision": {"desired": 4}}) == "4 serving"
    assert decision_in_words({}) == "no decision yet"


def report(records: list[Any]) -> dict[str, Any]:
    machine = {"cpu": "a processor", "cores": 2, "memory_gib": 23.4}
    return {
        **card(records).as_json(),
        "journal": {"words": "300 ticks, replayed to the same bytes"},
        "machine": {"words": "the machine was not the bottleneck"},
        "run": {
            "title": "full run, with the warm pool",
            "plan": "full",
            "seed": 1,
            "commit": "abc",
            "cluster": "local",
            "machine": machine,
        },
    }


def test_the_scorecard_shows_the_numbers_of_the_report_and_that_it_passed() -> None:
    text = drawn(scorecard(report([answered(i, i * 100) for i in range(300)])))
    assert "PASSED" in text
    for part in ("100.0 %", "200/200/200 ms", "25/25 ms", "the machine was not the bottleneck", "seed 1, commit abc"):
        assert part in text
    assert "- / - (0 measured)" in text


def test_the_scorecard_names_every_broken_rule() -> None:
    text = drawn(scorecard(report([answered(0, 0), ended(1, 0, Outcome.REFUSED), ended(2, 0, None)])))
    assert "FAILED: 1 requests were lost" in text
    assert "FAILED: goodput of the Interactive services is 33.3 %" in text
