"""OBSERVE, the past: what a Prometheus server has kept of vLLM engines. Only `forebay record` asks for it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException

from forebay.wire.engine_metrics import NUMBERS

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from forebay.core.units import I64

STEP_S = 15  # the usual scrape interval: a finer step repeats readings
POINTS_MAX = 10_000  # of one query; Prometheus refuses more than 11,000
TIMEOUT_S = 60
RETRIES = 2
# In the order of EngineHistory's columns.
SIGNALS = (
    "requests_finished_total", "requests_running", "requests_queued", "prompt_tokens_total", "generation_tokens_total",
)  # fmt: skip


class PrometheusError(ValueError):
    """The server cannot be asked, or has not what was asked for: why, and what to do about it."""


@dataclass(frozen=True, slots=True)
class EngineHistory:
    """The readings of one engine. Shape [K]."""

    labels: str  # what tells it from the others
    at_ms: I64  # since 1970, ascending
    finished_total: I64  # requests
    running: I64  # requests
    queued: I64  # requests
    prompt_tokens_total: I64
    generation_tokens_total: I64


def engine_histories(
    url: str, selector: str, start: datetime, end: datetime, heard: Callable[[float], None]
) -> tuple[EngineHistory, ...]:
    """Ask for the counters of all engines that a selector finds, every 15 s.

    Parameters
    ----------
    url
        Of the server.
    selector
        Label matchers as PromQL has them, without braces: `namespace="chat",model_name="llama"`.
    start, end
        The span, both with a zone.
    heard
        Told the share of the queries that are answered, in [0, 1].

    Raises
    ------
    PrometheusError
        When the server does not answer, refuses, or knows no such engine.
    """
    readings: dict[str, dict[int, dict[str, int]]] = {}  # engine to instant to signal to value
    span = timedelta(seconds=STEP_S * POINTS_MAX)
    parts = max(1, math.ceil((end - start) / span))
    with PrometheusConnect(url.rstrip("/"), retry=RETRIES, timeout=TIMEOUT_S) as server:
        for place, signal in enumerate(SIGNALS):
            name = NUMBERS[signal][-1].name  # the spelling that every version prints stands last
            query = f"sum without (finished_reason) ({name}{{{selector}}})"
            found = False
            for part in range(parts):
                begin = start + part * span
                series = _ask(server, query, begin, min(begin + span - timedelta(seconds=STEP_S), end))
                found |= bool(series)
                for labels, values in series.items():
                    instants = readings.setdefault(labels, {})
                    for at_ms, value in values.items():
                        instants.setdefault(at_ms, {})[signal] = value
                heard((place * parts + part + 1) / (len(SIGNALS) * parts))
            if not found:
                raise PrometheusError(
                    f"{url} has no {name}{{{selector}}} from {start:%F %T} to {end:%F %T} UTC: try the selector in "
                    f"its own web page, and see whether it keeps data for so long"
                )
    return tuple(_history(labels, instants) for labels, instants in sorted(readings.items()))


def _ask(server: PrometheusConnect, query: str, start: datetime, end: datetime) -> dict[str, dict[int, int]]:
    """Ask for one number of every engine: engine to instant (ms) to value. What is not finite was not read."""
    try:
        return {
            ",".join(f"{key}={value}" for key, value in sorted(one["metric"].items())): {
                round(at_s * 1000): round(float(text)) for at_s, text in one["values"] if math.isfinite(float(text))
            }
            for one in server.custom_query_range(query, start, end, f"{STEP_S}")
        }
    except PrometheusApiClientException as error:
        raise PrometheusError(f"{server.url} refused {query}: {error}") from error
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise PrometheusError(f"{server.url} answered, but not as Prometheus does: {error!r}") from error
    except OSError as error:
        raise PrometheusError(f"{server.url} cannot be asked: {error}. Is it Prometheus's own address?") from error


def _history(labels: str, instants: dict[int, dict[str, int]]) -> EngineHistory:
    """Keep the instants at which everything was read."""
    whole = sorted(at_ms for at_ms, values in instants.items() if len(values) == len(SIGNALS))
    columns = ([instants[at_ms][signal] for at_ms in whole] for signal in SIGNALS)
    return EngineHistory(labels, np.array(whole, np.int64), *(np.array(column, np.int64) for column in columns))
