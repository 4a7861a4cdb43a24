"""The gateway's Prometheus metrics: counters straight from the book when asked, histograms on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client import Metric

    from forebay.routing.book import Book

# From a release within the same turn of the loop to the longest cold start that a request may wait for.
QUEUE_BUCKETS_S = (0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
# The picker's own share of a request: 0.4 ms of CPU is its budget for everything.
PICK_BUCKETS_S = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.01, 0.1)


class Metrics:
    """One gateway's metrics, in a registry of their own."""

    def __init__(self, book: Book, now_ms: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self.queue_seconds = Histogram(
            "forebay_gateway_queue_seconds",
            "Time from admission until a request was sent to a replica",
            ["service"],
            buckets=QUEUE_BUCKETS_S,
            registry=self.registry,
        )
        self.pick_seconds = Histogram(
            "forebay_gateway_pick_seconds",
            "Time to admit a request and choose its replica, without waiting",
            buckets=PICK_BUCKETS_S,
            registry=self.registry,
        )
        self.own_answers = Counter(
            "forebay_gateway_own_answers",
            "Responses of the gateway itself",
            ["status", "reason"],
            registry=self.registry,
        )
        self.unseen_ends = Counter(
            "forebay_gateway_unseen_ends",
            "Requests whose end nobody saw (a restart of the picker or of Envoy); counted as failed",
            registry=self.registry,
        )
        self.registry.register(_BookCollector(book, now_ms))


class _BookCollector(Collector):
    """Turns the book's signals into metrics at the moment of a scrape."""

    def __init__(self, book: Book, now_ms: Callable[[], int]) -> None:
        self._book, self._now_ms = book, now_ms

    def collect(self) -> Iterable[Metric]:  # type: ignore[explicit-override]  # typing.override is Python 3.12's
        requests = CounterMetricFamily(
            "forebay_gateway_requests", "Ended requests by outcome", labels=["service", "outcome"]
        )
        arrivals = CounterMetricFamily("forebay_gateway_arrivals", "Requests for a known service", labels=["service"])
        admitted = CounterMetricFamily("forebay_gateway_admitted", "Requests that were let in", labels=["service"])
        held = GaugeMetricFamily("forebay_gateway_held_requests", "Requests that wait", labels=["service"])
        tokens = GaugeMetricFamily(
            "forebay_gateway_held_prompt_tokens", "Estimated prompt tokens that wait", labels=["service"]
        )
        running = GaugeMetricFamily("forebay_gateway_in_flight_requests", "Requests with replicas", labels=["service"])
        pending = GaugeMetricFamily(
            "forebay_gateway_pending_prompt_tokens",
            "Estimated prompt tokens sent to replicas that no engine has counted yet",
            labels=["service"],
        )
        ratio = GaugeMetricFamily(
            "forebay_gateway_prompt_tokens_per_kilobyte", "Learned size of a prompt", labels=["service"]
        )
        wrong = GaugeMetricFamily(
            "forebay_gateway_prompt_tokens_error_permille",
            "Mean error of that, absent until it is known",
            labels=["service"],
        )
        for key, told in self._book.signals(self._now_ms()).items():
            service = self._book.services[key]
            for outcome in ("answered", "refused", "aborted", "failed"):
                requests.add_metric([key, outcome], getattr(told, f"{outcome}_total"))
            arrivals.add_metric([key], told.arrivals_total)
            admitted.add_metric([key], told.admitted_total)
            held.add_metric([key], told.requests_held)
            tokens.add_metric([key], told.held_prompt_tokens)
            running.add_metric([key], told.requests_in_flight)
            pending.add_metric([key], sum(r.pending_tokens for r in service.replicas.values()))
            ratio.add_metric([key], service.estimator.ratio_milli)
            if service.estimator.error_permille is not None:
                wrong.add_metric([key], service.estimator.error_permille)
        return (requests, arrivals, admitted, held, tokens, running, pending, ratio, wrong)
