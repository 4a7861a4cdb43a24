"""The documents between processes: written and read back, bounded in size, refused when they are something else."""

from __future__ import annotations

from dataclasses import fields
from itertools import accumulate

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.wire.engine_metrics import BUCKETS, NUMBERS, SECONDS
from forebay.wire.replica_config import Emulation, ReplicaConfig, ReplicaConfigError
from forebay.wire.signals import (
    ITL_BOUNDS_MS,
    MAX_STATE_BYTES,
    TTFT_BOUNDS_MS,
    GatewayService,
    GatewaySignals,
    ReplicaSignals,
    SignalsError,
)
from forebay_replica.metrics_page import EnginePage

count = st.integers(0, (1 << 62) - 1)


def buckets(bounds: tuple[int, ...]) -> st.SearchStrategy[tuple[int, ...]]:
    steps = st.lists(st.integers(0, 1 << 50), min_size=len(bounds) + 1, max_size=len(bounds) + 1)
    return steps.map(lambda each: tuple(accumulate(each)))


signals = st.builds(
    ReplicaSignals,
    pod_uid=st.text(max_size=36),
    phase=st.text(max_size=10),
    model=st.none() | st.text(max_size=63),
    **{
        f.name: st.none() | count
        for f in fields(ReplicaSignals)
        if f.name not in ("pod_uid", "phase", "model", "ttft_buckets", "itl_buckets")
    },
    ttft_buckets=st.none() | buckets(TTFT_BOUNDS_MS),
    itl_buckets=st.none() | buckets(ITL_BOUNDS_MS),
)


@given(signals)
def test_what_a_replica_says_is_what_is_read(said: ReplicaSignals) -> None:
    assert ReplicaSignals.from_json(said.to_json()) == said


def test_a_replica_after_a_billion_requests_still_says_it_in_a_kilobyte() -> None:
    requests = 10**9
    shares = (1, 2, 5, 10, 20, 35, 55, 75, 90, 97, 99)  # per cent up to each bound: spread over eleven buckets
    ttft = tuple(requests * share // 100 for share in shares) + (requests,) * (len(TTFT_BOUNDS_MS) + 1 - len(shares))
    itl = tuple(300 * n for n in ttft[: len(ITL_BOUNDS_MS) + 1])
    said = ReplicaSignals(
        pod_uid="01234567-89ab-cdef-0123-456789abcdef",
        phase="draining",
        model="m" * 63,
        ttft_buckets=ttft,
        itl_buckets=itl,
        **{
            f.name: 1000 * requests
            for f in fields(ReplicaSignals)
            if f.name not in ("pod_uid", "phase", "model", "ttft_buckets", "itl_buckets")
        },
    )
    assert len(said.to_json()) <= MAX_STATE_BYTES


REFUSED = {
    "no JSON": b"{",
    "no object": b"[]",
    "no phase": b'{"pod_uid": "u"}',
    "a float": b'{"pod_uid": "u", "phase": "ready", "requests_running": 1.5}',
    "a negative count": b'{"pod_uid": "u", "phase": "ready", "requests_running": -1}',
    "a truth value": b'{"pod_uid": "u", "phase": "ready", "requests_running": true}',
    "a phase that is no text": b'{"pod_uid": "u", "phase": 1}',
    "too few buckets": b'{"pod_uid": "u", "phase": "ready", "itl_buckets": [1]}',
}


@pytest.mark.parametrize("document", REFUSED.values(), ids=REFUSED)
def test_what_is_no_replica_document_is_refused(document: bytes) -> None:
    with pytest.raises(SignalsError):
        ReplicaSignals.from_json(document)


def test_a_newer_replica_may_say_more_and_an_older_one_less() -> None:
    read = ReplicaSignals.from_json(b'{"pod_uid": "u", "phase": "ready", "of_next_year": {"a": 1}}')
    assert read == ReplicaSignals(pod_uid="u", phase="ready")


def test_a_gateway_line_is_read_back() -> None:
    row = GatewayService(*range(len(fields(GatewayService))))
    said = GatewaySignals(gateway_uid="g", sequence=3, services={"chat/a": row})
    assert GatewaySignals.from_json(said.to_json()) == said
    assert b"\n" not in said.to_json()


def test_a_gateway_line_without_a_count_is_refused() -> None:
    document = orjson.loads(
        GatewaySignals("g", 1, {"a/b": GatewayService(*[0] * len(fields(GatewayService)))}).to_json()
    )
    del document["services"]["a/b"]["refused_total"]
    with pytest.raises(SignalsError):
        GatewaySignals.from_json(orjson.dumps(document))


def test_every_signal_of_the_table_has_a_field() -> None:
    supervisors_own = {"ranks_awake", "requests_queued"}
    table = NUMBERS.keys() | SECONDS.keys() | BUCKETS.keys()
    assert table - supervisors_own <= {f.name for f in fields(ReplicaSignals)}
    assert table - {"ranks_awake"} <= {f.name for f in fields(EnginePage)}


def test_a_replica_configuration_is_read_back() -> None:
    emulation = Emulation(*range(len(fields(Emulation))))
    config = ReplicaConfig("Emulated", "hf://a/b", ("m", "alias"), extra_args=("--x", "1"), emulation=emulation)
    assert ReplicaConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"engine": "VLLM", "model_uri": "hf://a/b", "served_names": 1}'])
def test_what_is_no_replica_configuration_is_refused(text: str) -> None:
    with pytest.raises(ReplicaConfigError):
        ReplicaConfig.from_json(text)
