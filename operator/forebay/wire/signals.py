"""What a replica and a gateway report: flat integers with their units in the names, and None for what is not known.

Both documents are JSON. A field that is None is left out; a reader takes a missing field as None and ignores fields
that it does not know, so that the two ends may differ by a version.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from itertools import accumulate, pairwise
from typing import Any, Self

import orjson

# Upper bounds of the histograms of a ReplicaSignals, in milliseconds: vLLM's own buckets (vllm/v1/metrics/loggers.py),
# without the last, infinite one.
TTFT_BOUNDS_MS = (
    1, 5, 10, 20, 40, 60, 80, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10000, 20000, 40000, 80000, 160000,
    640000, 2560000,
)  # fmt: skip
ITL_BOUNDS_MS = (
    10, 25, 50, 75, 100, 150, 200, 300, 400, 500, 750, 1000, 2500, 5000, 7500, 10000, 20000, 40000, 80000,
)  # fmt: skip

_BUCKETS = {"ttft_buckets", "itl_buckets"}

MAX_STATE_BYTES = 1024


class SignalsError(ValueError):
    """A document that is not what its path promises."""


def _load(cls: type[Any], data: bytes) -> dict[str, Any]:
    try:
        raw = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise SignalsError(f"not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise SignalsError(f"expected a JSON object, got {type(raw).__name__}")
    names = {f.name for f in fields(cls)}
    return {k: v for k, v in raw.items() if k in names}


def _check_counts(document: dict[str, Any], text: frozenset[str], lists: dict[str, int]) -> None:
    for name, value in document.items():
        if name in text:
            if not isinstance(value, str):
                raise SignalsError(f"{name}: expected text, got {value!r}")
        elif name in lists:
            ok = isinstance(value, list) and len(value) == lists[name] and all(_is_count(v) for v in value)
            if not ok:
                raise SignalsError(f"{name}: expected {lists[name]} counts")
        elif not _is_count(value):
            raise SignalsError(f"{name}: expected a whole number >= 0, got {value!r}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


@dataclass(frozen=True, slots=True)
class ReplicaSignals:
    """One look at one replica, made by its supervisor from the engine's `/metrics` on loopback.

    `*_total` are counters of the engine process; a restart of the engine sets them back to zero.
    """

    pod_uid: str
    phase: str  # an EnginePhase
    model: str | None = None  # the served name that the engine's own metrics bear
    sample_age_ms: int | None = None  # age of the engine's numbers when this document was made; None: never read
    start_ms: int | None = None  # how long this engine took from process start to READY; None while it starts
    requests_running: int | None = None
    requests_waiting: int | None = None
    kv_blocks_total: int | None = None
    kv_block_tokens: int | None = None
    kv_used_permille: int | None = None
    prompt_tokens_total: int | None = None  # all prompt tokens, cached ones included
    generation_tokens_total: int | None = None
    prefix_query_tokens_total: int | None = None
    prefix_hit_tokens_total: int | None = None
    preemptions_total: int | None = None
    requests_finished_total: int | None = None
    ttft_sum_ms: int | None = None
    itl_sum_ms: int | None = None
    queue_time_sum_ms: int | None = None
    ttft_buckets: tuple[int, ...] | None = None  # cumulative counts at TTFT_BOUNDS_MS, then the count of all
    itl_buckets: tuple[int, ...] | None = None  # cumulative counts at ITL_BOUNDS_MS, then the count of all

    def to_json(self) -> bytes:
        """Encode; at most MAX_STATE_BYTES bytes.

        Cumulative counts are written as the count of each bucket: most of those are 0, while 43 cumulative counts alone
        would be 400 bytes after ten million requests.
        """
        document = {k: v for k, v in asdict(self).items() if v is not None}
        for name in _BUCKETS & document.keys():
            document[name] = [after - before for before, after in pairwise((0, *document[name]))]
        return orjson.dumps(document)

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Decode and check.

        Raises
        ------
        SignalsError
            When the document is not JSON, lacks a required field or holds a value of the wrong kind.
        """
        raw = {k: v for k, v in _load(cls, data).items() if v is not None}
        if not {"pod_uid", "phase"} <= raw.keys():
            raise SignalsError("pod_uid or phase is missing")
        _check_counts(
            raw,
            frozenset({"pod_uid", "phase", "model"}),
            {"ttft_buckets": len(TTFT_BOUNDS_MS) + 1, "itl_buckets": len(ITL_BOUNDS_MS) + 1},
        )
        for name in _BUCKETS & raw.keys():
            raw[name] = tuple(accumulate(raw[name]))
        return cls(**raw)


@dataclass(frozen=True, slots=True)
class GatewayService:
    """What one gateway knows of one service. `*_total` are counters of the gateway's pod, over restarts of its picker.

    At any instant: admitted = answered + refused + aborted + failed + held + in flight. What was turned away at the
    door of a full queue was never admitted: it is arrivals - admitted.
    """

    requests_held: int  # admitted, not yet sent to a replica
    held_prompt_tokens: int  # estimated prompt tokens of those
    held_oldest_ms: int  # age of the oldest of those, 0 if none
    requests_in_flight: int  # sent to a replica, not yet ended
    arrivals_total: int  # every request for this service, refused ones included
    arrival_prompt_tokens_total: int  # estimated prompt tokens of those
    admitted_total: int
    answered_total: int
    refused_total: int
    aborted_total: int
    failed_total: int


@dataclass(frozen=True, slots=True)
class GatewaySignals:
    """One line of a gateway's stream: all services that it knows, at once."""

    gateway_uid: str  # pod UID; a new one is a new baseline for every counter
    sequence: int
    services: dict[str, GatewayService] = field(default_factory=dict)  # key: "namespace/name"

    def to_json(self) -> bytes:
        """Encode as one line without its newline."""
        return orjson.dumps(asdict(self))

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Decode and check.

        Raises
        ------
        SignalsError
            When the document is not JSON, lacks a field or holds a value of the wrong kind.
        """
        raw = _load(cls, data)
        services = raw.get("services")
        if (
            not isinstance(raw.get("gateway_uid"), str)
            or not _is_count(raw.get("sequence"))
            or not isinstance(services, dict)
        ):
            raise SignalsError("gateway_uid, sequence or services is missing")
        wanted = {f.name for f in fields(GatewayService)}
        parsed: dict[str, GatewayService] = {}
        for key, value in services.items():
            row = {k: v for k, v in value.items() if k in wanted} if isinstance(value, dict) else {}
            if row.keys() != wanted:
                raise SignalsError(f"services[{key}]: a field is missing")
            _check_counts(row, frozenset(), {})
            parsed[key] = GatewayService(**row)
        return cls(gateway_uid=raw["gateway_uid"], sequence=raw["sequence"], services=parsed)
