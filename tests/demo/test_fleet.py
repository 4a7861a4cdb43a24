"""From pod changes to spans of states, and from those to promote latencies."""

from typing import Any

from e2e.demo.fleet import FleetLog, Promotion, Span, promotions
from e2e.demo.records import Record
from forebay.observe.cluster import Change
from forebay.wire.names import LABEL_SERVICE, LABEL_STATE

CHAT = "chat/chat-8b"
GPU = "nvidia.com/gpu"


def pod(uid: str, state: str | None, *, node: str | None = "node-1", **meta: Any) -> dict[str, Any]:
    labels = {LABEL_SERVICE: "chat-8b"} | ({LABEL_STATE: state} if state else {})
    return {
        "metadata": {"uid": uid, "name": f"chat-8b-{uid}", "namespace": "chat", "labels": labels, **meta},
        "spec": {"nodeName": node, "containers": [{"resources": {"limits": {GPU: "1", "cpu": "2"}}}]},
        "status": {"podIP": f"10.88.0.{uid}", "phase": "Running"},
    }


def life(*changes: tuple[Change, dict[str, Any], int]) -> FleetLog:
    log = FleetLog(GPU)
    for change, one, at_ms in changes:
        log.on_pod(change, one, at_ms)
    return log


def test_a_life_is_a_row_of_spans() -> None:
    log = life(
        (Change.CHANGED, pod("1", None, node=None), -5000),  # pending: no node, so no GPU
        (Change.CHANGED, pod("1", "starting"), -4000),
        (Change.CHANGED, pod("1", "warm"), 100),
        (Change.CHANGED, pod("1", "warm"), 200),  # the same again
        (Change.CHANGED, pod("1", "serving"), 300),
        (Change.CHANGED, pod("1", "serving", deletionTimestamp="now"), 900),
        (Change.DELETED, pod("1", "serving", deletionTimestamp="now"), 1000),
    )
    name = "chat-8b-1"
    assert log.all_spans() == [
        Span(CHAT, name, "starting", 0, -5000, -4000),
        Span(CHAT, name, "starting", 1, -4000, 100),
        Span(CHAT, name, "warm", 1, 100, 300),
        Span(CHAT, name, "serving", 1, 300, 900),
        Span(CHAT, name, "draining", 1, 900, 1000),
    ]
    assert log.counts(CHAT) == {}


def test_counts_are_of_now() -> None:
    log = life(
        (Change.CHANGED, pod("1", "serving"), 0),
        (Change.CHANGED, pod("2", "warm"), 0),
        (Change.CHANGED, pod("3", "warm"), 0),
    )
    assert log.counts(CHAT) == {"serving": 1, "warm": 2}
    assert log.counts("other/service") == {}


def record(number: int, sent_ms: int, served_by: str | None, headers_ms: int | None) -> Record:
    return Record(number, CHAT, sent_ms, sent_ms, 100, 10, served_by=served_by, headers_ms=headers_ms)


def test_a_promotion_lasts_until_the_first_answer_of_that_replica() -> None:
    log = life(
        (Change.CHANGED, pod("1", "warm"), 0),
        (Change.CHANGED, pod("1", "serving"), 1000),
        (Change.CHANGED, pod("2", "starting"), 0),
        (Change.CHANGED, pod("2", "serving"), 1000),  # never was warm: not a promotion
        (Change.CHANGED, pod("3", "warm"), 0),
        (Change.CHANGED, pod("3", "serving"), 1500),  # never answered: no such time
    )
    records = [
        record(0, 900, "10.88.0.1:8000", 350),  # held since before the promotion: headers at 1,250
        record(1, 1100, "10.88.0.1:8000", 300),
        record(2, 1100, "10.88.0.2:8000", 5),
        record(3, 1100, None, None),
    ]
    assert promotions(log, records) == [Promotion(CHAT, "chat-8b-1", 1000, 250)]
