"""A Prometheus server's history of engines, over its real HTTP API served by a small server of the test's own."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.testing import CliRunner

from forebay.cli.main import app
from forebay.observe import prometheus as history
from forebay.observe.prometheus import STEP_S, PrometheusError, engine_histories
from forebay.sim.traces import read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
T0 = int(START.timestamp())
ENGINES = ("10.0.0.1:8000", "10.0.0.2:8000")

# What each engine's page says `s` seconds after START: two requests a second, of 100 and 10 tokens, five of them there.
PAGE: dict[str, Callable[[int], float]] = {
    "vllm:request_success_total": lambda s: 2 * s + 7,
    "vllm:num_requests_running": lambda _: 4,
    "vllm:num_requests_waiting": lambda _: 1,
    "vllm:prompt_tokens_total": lambda s: 200 * s,
    "vllm:generation_tokens_total": lambda s: 20 * s,
}
QUERY = re.compile(r"sum without \(finished_reason\) \((?P<name>[\w:]+)\{(?P<selector>.*)\}\)")


class FakePrometheus(ThreadingHTTPServer):
    """Answers /api/v1/query_range for two engines of the model `m`; `spoil` may replace an answer."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.points_allowed = 11_000
        self.asked: list[dict[str, str]] = []
        self.spoil: Callable[[str], tuple[int, bytes] | None] = lambda _: None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, path: str, query: dict[str, str]) -> tuple[int, bytes]:
        self.asked.append(query)
        match = QUERY.fullmatch(query["query"])
        if path != "/api/v1/query_range" or match is None:
            return 400, b'{"status":"error","errorType":"bad_data","error":"unexpected query"}'
        if (spoilt := self.spoil(match["name"])) is not None:
            return spoilt
        if (int(query["end"]) - int(query["start"])) / float(query["step"]) + 1 > self.points_allowed:
            return 400, b'{"status":"error","error":"exceeded maximum resolution of 11,000 points per timeseries"}'
        return 200, json.dumps({"status": "success", "data": {"result": self.series(match, query)}}).encode()

    @staticmethod
    def series(match: re.Match[str], query: dict[str, str]) -> list[dict[str, Any]]:
        if match["selector"] not in {"", 'model_name="m"'}:
            return []
        instants = range(int(query["start"]), int(query["end"]) + 1, int(query["step"]))
        value = PAGE[match["name"]]
        return [
            {"metric": {"instance": one, "model_name": "m"}, "values": [[at, f"{value(at - T0)}"] for at in instants]}
            for one in ENGINES
        ]


class Handler(BaseHTTPRequestHandler):
    server: FakePrometheus

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        status, body = self.server.answer(parts.path, {k: v[0] for k, v in parse_qs(parts.query).items()})
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def prometheus() -> Iterator[FakePrometheus]:
    with FakePrometheus() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        with contextlib.ExitStack() as stack:
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            yield server


def ask(url: str, selector: str = 'model_name="m"', hours: float = 1.0) -> Any:
    return engine_histories(url, selector, START, START + timedelta(hours=hours), lambda _: None)


def test_the_history_of_each_engine_is_read(prometheus: FakePrometheus) -> None:
    histories = ask(prometheus.url)
    assert [one.labels for one in histories] == [f"instance={one},model_name=m" for one in ENGINES]
    one = histories[0]
    assert len(one.at_ms) == 3600 // STEP_S + 1
    assert (one.at_ms[1] - one.at_ms[0], one.finished_total[1] - one.finished_total[0]) == (15_000, 30)
    assert (set(one.running.tolist()), set(one.queued.tolist())) == ({4}, {1})
    assert one.generation_tokens_total[-1] == 72_000


def test_a_long_span_is_asked_for_in_parts_that_the_server_allows(
    prometheus: FakePrometheus, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prometheus.points_allowed > history.POINTS_MAX
    monkeypatch.setattr(history, "POINTS_MAX", 100)
    prometheus.points_allowed = 100
    told: list[float] = []
    histories = engine_histories(prometheus.url, "", START, START + timedelta(seconds=250 * STEP_S), told.append)
    gaps = histories[0].at_ms[1:] - histories[0].at_ms[:-1]
    assert (len(histories[0].at_ms), set(gaps.tolist())) == (251, {15_000})
    assert len(prometheus.asked) == 15
    assert told == sorted(told)
    assert told[-1] == 1


def test_an_instant_at_which_something_is_missing_is_left_out(prometheus: FakePrometheus) -> None:
    def spoil(name: str) -> tuple[int, bytes] | None:
        if name != "vllm:num_requests_waiting":
            return None
        values = [[T0, "NaN"], [T0 + 15, "1"], [T0 + 45, "1"]]
        result = [{"metric": {"instance": ENGINES[0], "model_name": "m"}, "values": values}]
        return 200, json.dumps({"status": "success", "data": {"result": result}}).encode()

    prometheus.spoil = spoil
    one, other = ask(prometheus.url)
    assert one.at_ms.tolist() == [(T0 + 15) * 1000, (T0 + 45) * 1000]
    assert len(other.at_ms) == 0


# What the server says to the last query, and what the user is told.
SPOILT: dict[str, tuple[int, bytes, str]] = {
    "a refusal": (400, b'{"status":"error","error":"parse error: unexpected <"}', r"refused .*parse error"),
    "another server": (200, b"<html>hello</html>", "not as Prometheus does"),
    "another document": (200, b'{"status":"success"}', "not as Prometheus does"),
    "no such metric": (
        200,
        b'{"status":"success","data":{"result":[]}}',
        r'has no vllm:generation_tokens_total\{model_name="m"\} from 2026-03-01 12:00:00 to .*: try the selector',
    ),
}


@pytest.mark.parametrize(("status", "body", "message"), SPOILT.values(), ids=SPOILT)
def test_a_server_that_cannot_help_is_told_of(
    prometheus: FakePrometheus, status: int, body: bytes, message: str
) -> None:
    prometheus.spoil = lambda name: (status, body) if name == "vllm:generation_tokens_total" else None
    with pytest.raises(PrometheusError, match=message):
        ask(prometheus.url)


@pytest.mark.parametrize(
    "body", [b"[]", b'{"data":{"result":[1]}}', b'{"data":{"result":[{"metric":[],"values":[]}]}}'], ids=str
)
def test_a_document_of_another_shape_is_one_named_error(prometheus: FakePrometheus, body: bytes) -> None:
    prometheus.spoil = lambda _: (200, body)
    with pytest.raises(PrometheusError, match="not as Prometheus does"):
        ask(prometheus.url)


def test_an_address_without_http_is_told_of() -> None:
    with pytest.raises(PrometheusError, match="localhost:9090 cannot be asked"):
        ask("localhost:9090")


def test_nobody_at_the_address_is_told_of() -> None:
    with FakePrometheus() as server:
        url = server.url
    with pytest.raises(PrometheusError, match=r"cannot be asked: .*Is it Prometheus's own address"):
        ask(url)


def test_the_command_records_what_the_engines_counted(prometheus: FakePrometheus, tmp_path: Path) -> None:
    out = tmp_path / "m.csv.gz"
    line = ["record", "prometheus", prometheus.url, "-m", 'model_name="m"', "--until", "2026-03-01T13:00:00"]
    result = CliRunner().invoke(app, [*line, "--hours", "1", "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "From 2 engines, 1 h until 2026-03-01 13:00:00 UTC" in result.output
    trace = read(out).trace
    # Two engines, two requests a second each, from the first reading to the last.
    assert len(trace) == 2 * 2 * 3600
    assert (set(trace.prompt_tokens.tolist()), set(trace.output_tokens.tolist())) == ({100}, {10})


def test_the_command_says_why_there_is_nothing(prometheus: FakePrometheus, tmp_path: Path) -> None:
    line = ["record", "prometheus", prometheus.url, "-m", 'model_name="x"', "-o", str(tmp_path / "m.csv.gz")]
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Nothing recorded: {prometheus.url} has no vllm:request_success_total")
