"""The live loop: gather, decide, act, tell; each second, and early when requests begin to wait."""

from __future__ import annotations

import asyncio
import gc
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.actuate.diff import plan
from forebay.control.judge import room, wanted
from forebay.control.views import Findings
from forebay.report.attainment import Attainment

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from forebay.actuate.diff import Action
    from forebay.control.acting import Acting
    from forebay.control.judge import Judge, Judged
    from forebay.control.leader import Election
    from forebay.control.telling import Telling
    from forebay.core.memory import Memory
    from forebay.observe.scrape import Scraper
    from forebay.observe.world import World
    from forebay.report.journal import Journal
    from forebay.report.metrics import Metrics
    from forebay.report.render import Counts

log = logging.getLogger(__name__)

# Gateways push at most 20 lines a second each; ten ticks a second are as many as a decision of 50 ms leaves room for.
EARLY_MS = 100
ATTAINMENT_MS = 10_000  # reading two histograms of 4,000 replicas takes 40 ms: too much for each second
SETTLE_S = 5.0


@dataclass(frozen=True, slots=True)
class Parts:
    """What the loop drives."""

    judge: Judge
    acting: Acting
    telling: Telling
    world: World
    scraper: Scraper
    metrics: Metrics
    journal: Journal | None
    pods_seen: Callable[[], frozenset[str]]  # uids that the mirror of the pods shows
    # Reads what an earlier leader stored, into a fresh memory; also names the services of which it was unreadable.
    remember: Callable[[Memory], Awaitable[tuple[Memory, frozenset[str]]]]


class Loop:
    """Ticks while this process leads.

    Parameters
    ----------
    parts
        What it drives.
    election
        Whether it may.
    now_ms, wall_ms
        The loop's clock, of which only differences mean anything, and the clock of the cluster's timestamps.
    tick_ms
        Between two regular ticks.

    Attributes
    ----------
    last_tick_ms : int or None
        When the last successful tick ended, at first when this leadership began; None while not leading.
    """

    def __init__(
        self,
        parts: Parts,
        election: Election,
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        tick_ms: int,
    ) -> None:
        self.last_tick_ms: int | None = None
        self._parts, self._election = parts, election
        self._now_ms, self._wall_ms, self._tick_ms = now_ms, wall_ms, tick_ms
        self._wake = asyncio.Event()
        self._last_error = ""
        self._term: int | None = None
        self._unreadable: frozenset[str] = frozenset()
        self._attainment = Attainment()
        self._attained: dict[str, int] = {}
        self._attained_ms: int | None = None

    def wake(self) -> None:
        """Ask for an early tick."""
        self._wake.set()

    async def run(self) -> None:
        """Lead whenever elected, until cancelled."""
        while True:
            await self._election.leading.wait()
            try:
                await self._lead()
            finally:
                self.last_tick_ms = None
                self._parts.metrics.leading.set(0)

    async def close(self) -> None:
        """Finish what is under way and store what was learned, as far as the lease still allows it."""
        parts = self._parts
        await parts.acting.settle(SETTLE_S)
        if parts.judge.memory is not None and self._election.left_s() > 0:
            services = parts.judge.fleet().services
            parts.telling.checkpoint(parts.judge.memory, services, self._now_ms(), all_of_them=True)
        await parts.telling.settle(SETTLE_S)

    async def _lead(self) -> None:
        await self._recall()
        self._parts.metrics.leading.set(1)
        due_ms = self.last_tick_ms = self._now_ms()
        while self._election.leading.is_set():
            started_ms = self._now_ms()
            self._wake.clear()
            self._tick(started_ms)
            if started_ms >= due_ms:
                missed = (self._now_ms() - due_ms) // self._tick_ms
                self._parts.metrics.ticks_late.inc(missed)
                due_ms += self._tick_ms * (missed + 1)
            await self._pause(started_ms, due_ms)

    async def _recall(self) -> None:
        """Take up the memory: our own where nobody else led since, else what the last leader stored."""
        judge = self._parts.judge
        if judge.memory is None or self._election.term != self._term:
            fresh = judge.begin(self._now_ms())
            judge.memory, self._unreadable = await self._parts.remember(fresh)
            self._parts.telling.remember(judge.memory, self._unreadable)
        self._term = self._election.term
        # What is known by now lives as long as the process: of 10,000 services the collector would look at all of it
        # again every few ticks, for half a second each time.
        gc.collect()
        gc.freeze()
        if self._parts.journal is not None:
            self._parts.journal.interrupt()

    async def _pause(self, started_ms: int, due_ms: int) -> None:
        """Sleep until the next regular tick, or until a wake, but not less than EARLY_MS from one start to the next."""
        await asyncio.sleep(max(0, min(due_ms, started_ms + EARLY_MS) - self._now_ms()) / 1000)
        try:
            async with asyncio.timeout(max(0, due_ms - self._now_ms()) / 1000):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _tick(self, started_ms: int) -> None:
        """Gather, decide, act, tell. An error costs one tick: the next one looks at everything anew."""
        try:
            with self._parts.metrics.tick_seconds.time():
                self._parts.world.forget_unseen(started_ms, self._parts.pods_seen())
                judged = self._parts.judge.look(started_ms, self._wall_ms())
                self._act(judged)
                counts = self._tell(judged, started_ms)
                self._record(judged, counts, started_ms)
        except Exception as error:
            # The same error each second is told once: the second traceback says no more than the first.
            if repr(error) != self._last_error:
                log.exception("a tick failed")
            self._last_error = repr(error)
            self._parts.metrics.ticks_failed.inc()
            return
        self._last_error = ""
        self.last_tick_ms = self._now_ms()

    def _act(self, judged: Judged) -> None:
        acting = self._parts.acting
        busy = acting.busy()
        free = room(judged, acting.promised())
        wishes = [want for want in wanted(judged) if want.service not in busy]
        by_service: dict[str, list[Action]] = {}
        for action in plan(wishes, judged.pods, free, self._wall_ms()):
            by_service.setdefault(action.service, []).append(action)
        for service in judged.fleet.services:
            if service.key in by_service:
                acting.begin(service, by_service[service.key])

    def _tell(self, judged: Judged, now_ms: int) -> dict[str, Counts]:
        parts = self._parts
        if self._attained_ms is None or now_ms - self._attained_ms >= ATTAINMENT_MS:
            self._attainment.take(judged.fleet.spec, judged.snapshot)
            self._attained, self._attained_ms = self._attainment.permille(), now_ms
        findings = Findings(parts.scraper.garbage, parts.scraper.readings, self._unreadable, self._attained)
        counts = parts.telling.tell(judged, findings, now_ms)
        parts.telling.checkpoint(judged.memory, judged.fleet.services, now_ms)
        return counts

    def _record(self, judged: Judged, counts: dict[str, Counts], now_ms: int) -> None:
        parts = self._parts
        if parts.journal is not None:
            parts.journal.record(judged.fleet.spec, judged.before, judged.snapshot, judged.decisions)
            parts.metrics.journal_bytes.set(parts.journal.bytes_total)
            parts.metrics.journal_dropped.set(parts.journal.dropped_total)
        parts.metrics.garbage.labels("replica").set(parts.scraper.garbage_total)
        parts.metrics.fleet.tell(judged.decisions, counts, self._attained)
        elapsed_ms = now_ms - judged.before.recent.now_ms
        for service, pods in judged.pods.items():
            for pod in pods:
                state = "draining" if pod.leaving else pod.state.value
                parts.metrics.fleet.hold(service, state, pod.gpus, elapsed_ms)
