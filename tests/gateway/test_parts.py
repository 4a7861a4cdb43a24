"""The small parts of the gateway, each alone."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import yaml
from envoy.data.accesslog.v3 import accesslog_pb2 as entries

from forebay.gateway import envoy, ext_proc
from forebay.gateway.access_log import outcome_of
from forebay.gateway.counters import OVERDUE_MS, CountersFile, overdue
from forebay.gateway.main import render_envoy
from forebay.gateway.settings import Settings, SettingsError
from forebay.routing.book import Book
from forebay.routing.service import Counters, Limits, Outcome, ServiceSpec

LIMITS = Limits(queue_requests_max=10, queue_bytes_max=1 << 20, start_wait_ms=1_000, busy_wait_ms=1_000)


def test_the_environment_is_read_and_what_is_wrong_is_named() -> None:
    full = {
        "FOREBAY_POD_UID": "u",
        "FOREBAY_NAMESPACES": "a, b,",
        "FOREBAY_GATEWAY_DIR": "/x",
        "FOREBAY_GATEWAY_START_WAIT_SECONDS": "90",
        "FOREBAY_GATEWAY_QUEUE_MEBIBYTES": "64",
    }
    settings = Settings.from_environment(full)
    assert (settings.gateway_uid, settings.namespaces, settings.directory) == ("u", ("a", "b"), Path("/x"))
    assert (settings.limits.start_wait_ms, settings.limits.queue_bytes_max) == (90_000, 64 << 20)
    wrong = {
        "no uid": ({}, "FOREBAY_POD_UID"),
        "a word for a number": ({"FOREBAY_GATEWAY_DRAIN_SECONDS": "long"}, "DRAIN_SECONDS='long'"),
        "a number below its least": ({"FOREBAY_GATEWAY_QUEUE_MEBIBYTES": "31"}, "at least 32"),
    }
    for case, (variables, text) in wrong.items():
        with pytest.raises(SettingsError, match=text):
            Settings.from_environment(variables if case == "no uid" else {"FOREBAY_POD_UID": "u", **variables})


def test_the_configuration_is_written_once_and_the_endpoints_are_kept(tmp_path: Path) -> None:
    settings = Settings("u", directory=tmp_path)
    render_envoy(settings)
    assert "&id" not in settings.bootstrap_file.read_text()
    document = yaml.safe_load(settings.bootstrap_file.read_text())
    assert document["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"
    settings.endpoints_file.write_text("kept")
    render_envoy(settings)
    assert settings.endpoints_file.read_text() == "kept"


def test_a_hold_fits_into_envoys_idle_limit() -> None:
    settings = Settings("u", start_wait_s=2_000, busy_wait_s=100)
    manager = envoy.bootstrap(settings)["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
    assert manager["typed_config"]["stream_idle_timeout"] == "2160s"


def an_entry(code: int, *flags: str) -> Any:
    entry = entries.HTTPAccessLogEntry()
    entry.response.response_code.value = code
    for flag in flags:
        setattr(entry.common_properties.response_flags, flag, True)
    return entry


def test_ends_are_judged() -> None:
    cases = {
        "a complete answer": (an_entry(200), Outcome.ANSWERED),
        "the engine's own 4xx": (an_entry(422), Outcome.ANSWERED),
        "the engine's own 5xx": (an_entry(500), Outcome.FAILED),
        "a 200 that broke off": (an_entry(200, "upstream_remote_reset"), Outcome.FAILED),
        "a 200 whose connection ended": (an_entry(200, "upstream_connection_termination"), Outcome.FAILED),
        "a client that left in a stream": (an_entry(200, "downstream_connection_termination"), Outcome.ABORTED),
        "a client that left before any byte": (an_entry(0, "downstream_remote_reset"), Outcome.ABORTED),
        "no host": (an_entry(503, "no_healthy_upstream"), Outcome.FAILED),
        "nothing at all": (an_entry(0), Outcome.FAILED),
    }
    for case, (entry, outcome) in cases.items():
        assert outcome_of(entry) is outcome, case


def test_a_tenant_is_a_key_or_a_header_and_no_key_is_kept() -> None:
    key = ext_proc._tenant({"authorization": "Bearer secret", "x-forebay-tenant": "t"})
    assert "secret" not in key
    assert key != ext_proc._tenant({"authorization": "Bearer other"})
    assert ext_proc._tenant({"x-forebay-tenant": "t" * 500}) == "t" * 63
    assert ext_proc._tenant({}) == ""


def test_a_priority_that_is_no_number_is_none() -> None:
    cases = {"5": 5, "-5": -5, "0": 0, "": None, "high": None, "1e3": None, "9" * 40: None, "--1": None, "²": None}
    for text, wanted in cases.items():
        assert ext_proc._priority({"x-forebay-priority": text}) == wanted, text


def test_counters_come_back_for_the_same_pod_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "counters.json"
    book = Book(LIMITS)
    book.set_service(ServiceSpec("n/a", 1, 1, 100), 0)
    book.services["n/a"].counters = Counters(arrivals=5, admitted=4, answered=3)
    assert CountersFile(path, "u").load() == {}
    CountersFile(path, "u").save(book)
    assert CountersFile(path, "u").load() == {"n/a": Counters(arrivals=5, admitted=4, answered=3)}
    assert CountersFile(path, "other").load() == {}
    path.write_text("[garbage")
    assert CountersFile(path, "u").load() == {}
    assert "counters of the former process are lost" in caplog.text


def a_sent_book() -> Book:
    book = Book(LIMITS)
    book.set_service(ServiceSpec("n/a", 1, 10, 100), 0)
    for uid, endpoint in (("r0", "e0"), ("r1", "e1")):
        book.set_replica("n/a", uid, endpoint, routable=True, now_ms=0)
    for i in range(4):
        book.admit("n/a", f"q{i}", tenant="", priority=None, body_bytes=10, now_ms=i)
        book.release("n/a", i)
    return book


def test_requests_whose_end_was_never_reported_are_found(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    book, late = a_sent_book(), OVERDUE_MS + 100
    assert overdue(book, {"e0": 2, "e1": 2}, late) == []
    assert overdue(book, {}, 5) == []  # sent a moment ago: Envoy may not have begun
    assert sorted(overdue(book, {}, late)) == ["q0", "q1", "q2", "q3"]
    assert overdue(book, {"e0": 1, "e1": 2}, late) == ["q0"]
    # One of e0's was refused there and went to e1: nothing is missing.
    assert overdue(book, {"e0": 1, "e1": 3}, late) == []
