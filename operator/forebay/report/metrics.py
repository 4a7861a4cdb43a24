"""TELL: Prometheus metrics. What the loop counts is counted at once; what is a state is read when somebody scrapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from forebay.core.units import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from forebay.core.decision import Decisions
    from forebay.report.render import Counts

_SERVICE = ("namespace", "service")
# Beyond this fleet the numbers behind every decision, 54 a service, are for `forebay explain` alone: of 10,000 services
# they made a page of 58 MB that took 5 s to render.
INPUTS_SERVICES_MAX = 1_000
_TICK_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class FleetState(Collector):
    """The last tick, as metrics. `tell` replaces it; a scrape between two ticks reads the former one."""

    def __init__(self) -> None:
        self._decisions: Decisions | None = None
        self._counts: Mapping[str, Counts] = {}
        self._attained: Mapping[str, int] = {}
        self._gpu_ms: dict[tuple[str, str], int] = {}

    def tell(self, decisions: Decisions, counts: Mapping[str, Counts], attained: Mapping[str, int]) -> None:
        """Replace what is known of the fleet."""
        self._decisions, self._counts, self._attained = decisions, counts, attained

    def hold(self, service: str, state: str, gpus: int, elapsed_ms: int) -> None:
        """Add GPU time: `gpus` held by replicas in `state` for `elapsed_ms`."""
        key = (service, state)
        self._gpu_ms[key] = self._gpu_ms.get(key, 0) + gpus * elapsed_ms

    def collect(self) -> Iterable[Metric]:  # type: ignore[explicit-override] # typing.override needs Python 3.12
        """Build the metrics, for the registry."""
        yield from self._replicas()
        gpu = CounterMetricFamily(
            "forebay_gpu_seconds", "GPU time held by replicas, by state of the replica", labels=(*_SERVICE, "state")
        )
        for (service, state), held_ms in sorted(self._gpu_ms.copy().items()):
            gpu.add_metric((*service.split("/"), state), held_ms / 1000)
        yield gpu
        share = GaugeMetricFamily(
            "forebay_slo_attainment_ratio",
            "Share of good requests over 30 minutes, by engine histograms",
            labels=_SERVICE,
        )
        for service, permille in sorted(self._attained.items()):
            share.add_metric(service.split("/"), permille / 1000)
        yield share
        if self._decisions is not None:
            yield from _decided(self._decisions)

    def _replicas(self) -> Iterator[Metric]:
        family = GaugeMetricFamily("forebay_replicas", "Replicas by state", labels=(*_SERVICE, "state"))
        ready = GaugeMetricFamily("forebay_replicas_ready", "Serving replicas that answer", labels=_SERVICE)
        for service, counts in sorted(self._counts.items()):
            key = service.split("/")
            for state in ("starting", "warm", "serving", "draining"):
                family.add_metric((*key, state), getattr(counts, state))
            ready.add_metric(key, counts.ready)
        yield family
        yield ready


def _decided(decisions: Decisions) -> Iterator[Metric]:
    wanted = GaugeMetricFamily("forebay_replicas_desired", "Replicas wanted", labels=(*_SERVICE, "state"))
    hold = GaugeMetricFamily("forebay_hold", "1 while nothing may be removed: something is unknown", labels=_SERVICE)
    weighed = GaugeMetricFamily(
        "forebay_decision_input", "Numbers that the last decision weighed; the unit is in the name",
        labels=(*_SERVICE, "stage", "input"),
    )  # fmt: skip
    told = len(decisions.services) <= INPUTS_SERVICES_MAX
    for row, service in enumerate(decisions.services):
        key = service.split("/")
        wanted.add_metric((*key, "serving"), int(decisions.replicas_serving[row]))
        wanted.add_metric((*key, "warm"), int(decisions.replicas_warm[row]))
        hold.add_metric(key, int(decisions.hold[row]))
        for stage, inputs in zip(decisions.stages, decisions.inputs, strict=True) if told else ():
            for name, column in inputs:
                if (value := int(column[row])) != UNKNOWN:
                    weighed.add_metric((*key, stage, name), value)
    yield wanted
    yield hold
    yield weighed


class Metrics:
    """All metrics of one operator process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.fleet = FleetState()
        self.registry.register(self.fleet)
        at = self.registry
        self.tick_seconds = Histogram("forebay_tick_seconds", "Time of one tick", buckets=_TICK_BUCKETS, registry=at)
        self.ticks_late = Counter("forebay_ticks_late", "Ticks that began after the next one was due", registry=at)
        self.ticks_failed = Counter("forebay_ticks_failed", "Ticks that an error ended", registry=at)
        self.decisions = Counter("forebay_decisions", "Decisions that changed a service", _SERVICE, registry=at)
        self.actions = Counter("forebay_actions", "Actions by kind and outcome", ("action", "outcome"), registry=at)
        self.status_writes = Counter("forebay_status_writes", "Writes of status", registry=at)
        self.events_dropped = Gauge(
            "forebay_events_dropped", "Events not written, their service said too much", registry=at
        )
        self.garbage = Gauge("forebay_signals_garbage", "Answers that were no signals", ("source",), registry=at)
        self.leading = Gauge("forebay_leading", "1 while this process leads", registry=at)
        self.journal_bytes = Gauge("forebay_journal_bytes", "Bytes written to the journal", registry=at)
        self.journal_dropped = Gauge(
            "forebay_journal_dropped", "Journal records that could not be written", registry=at
        )

    def page(self) -> bytes:
        """Render the page for /metrics."""
        return generate_latest(self.registry)
