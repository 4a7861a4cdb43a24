"""Starts the engine, watches it, and ends it so that no stream is cut: what the pod is to Kubernetes.

    start -> poll /health -> rehearse -> READY -> watch ... -> SIGTERM -> not ready -> idle -> engine stops -> exit 0
                                                  engine exits, or never gets ready -> FAILED -> exit 1

After a failure the supervisor exits as well, so that Kubernetes sees it: the pod fails, or its container is restarted,
as the pod says.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay.wire.lifecycle import EnginePhase
from forebay.wire.signals import ReplicaSignals
from forebay_replica.engine_client import EngineClient, EngineRefusedError
from forebay_replica.lifecycle import EngineEvent, next_phase
from forebay_replica.process_group import ProcessGroup
from forebay_replica.reading import EngineReader

if TYPE_CHECKING:
    from forebay.wire.replica_config import ReplicaConfig
    from forebay_replica.engine_vllm import EngineCommand

log = logging.getLogger(__name__)

POLL_S = 0.25  # of /health while it starts, and of the metrics while something is waited for
WATCH_S = 1.0  # of /health in service
LOST_AFTER = 3  # failed looks at /health in a row: with their timeouts up to 9 s, longer than a sane engine pauses
REHEARSAL_TIMEOUT_S = 120.0
LOST_DEADLINE_MS = 120_000  # an engine that was ready and does not come back in this time hangs
SWITCH_VERIFY_MS = 60_000  # sleep or wake answered: this long until the metrics show it
FAILED_LINGER_S = 3.0  # the operator asks once a second: it sees FAILED before the container is gone
DRAIN_AT_LEAST_MS = 2000  # gateways drop an endpoint within a second, the kernel's connections a little later
IDLE_LOOKS = 2  # a request between two steps is in neither gauge
# From SIGTERM to the engine's exit: 10 s of grace that vLLM grants a last request, 4 s that it takes to end (measured).
# The pod's grace period is the drain deadline + 30 s.
STOP_GRACE_S = 20.0
TERMINATION_LOG = Path("/dev/termination-log")  # the kubelet shows what stands here as the container's last message


class Supervisor:
    """One engine's keeper. Made and run in one event loop."""

    def __init__(self, config: ReplicaConfig, command: EngineCommand, port: int, token: str, pod_uid: str) -> None:
        self.config = config
        self.phase = EnginePhase.STARTING
        self.start_ms: int | None = None
        self._pod_uid = pod_uid
        self._loop = asyncio.get_running_loop()
        self._group = ProcessGroup(command)
        self._client = EngineClient(port, token)
        self.reader = EngineReader(self._client.page, self.now_ms)
        self._switch = asyncio.Lock()  # rehearsal, sleep and wake exclude each other
        self._stop_asked = asyncio.Event()
        self._started_at_ms = self._not_ready_since_ms = self.now_ms()
        self._draining_since_ms: int | None = None
        self._model_doubted = False

    def now_ms(self) -> int:
        """Return a monotonic time."""
        return int(self._loop.time() * 1000)

    async def run(self) -> int:
        """Keep the engine until it ends or a stop was asked for; return the exit code of the whole."""
        try:
            return await self._run()
        finally:
            await self._group.kill()
            await self.reader.close()
            await self._client.close()

    def ask_stop(self) -> None:
        """Drain, then stop the engine and end (SIGTERM). Readiness is withdrawn before this returns."""
        self.ask_drain()
        self._stop_asked.set()

    def ask_drain(self) -> None:
        """Withdraw readiness; what runs goes on."""
        self._happened(EngineEvent.DRAIN_ASKED)
        if self._draining_since_ms is None:
            self._draining_since_ms = self.now_ms()

    async def sleep(self) -> None:
        """Put the engine to sleep, and believe it only when its metrics say so.

        Raises
        ------
        LifecycleError
            When it is not READY.
        EngineRefusedError
            When it did not fall asleep; it is being woken and rehearsed again.
        """
        async with self._switch:
            self._happened(EngineEvent.SLEEP_ASKED)
            try:
                await self._client.sleep()
                await self._until_awake_is(wanted=False)
            except EngineRefusedError:
                log.exception("engine did not fall asleep")
                with suppress(EngineRefusedError):
                    await self._client.wake()
                raise
            self._happened(EngineEvent.SLEEP_DONE)

    async def wake(self) -> None:
        """Wake the engine and rehearse it; it is READY when this returns.

        Raises
        ------
        LifecycleError
            When it is not ASLEEP.
        EngineRefusedError
            When it did not wake, or the rehearsal failed; the rehearsal is tried again.
        """
        async with self._switch:
            self._happened(EngineEvent.WAKE_ASKED)
            await self._client.wake()
            await self._until_awake_is(wanted=True)
            self._happened(EngineEvent.WAKE_DONE)
            await self._client.rehearse(self.config.served_names[0], REHEARSAL_TIMEOUT_S)
            self._happened(EngineEvent.REHEARSED)

    async def signals(self) -> ReplicaSignals:
        """Say what is known of this replica now."""
        reading = await self.reader.latest()
        if reading is None:
            return ReplicaSignals(pod_uid=self._pod_uid, phase=self.phase, start_ms=self.start_ms)
        self._doubt_model(reading.page.model)
        return ReplicaSignals(
            pod_uid=self._pod_uid,
            phase=self.phase,
            start_ms=self.start_ms,
            sample_age_ms=max(0, self.now_ms() - reading.at_ms),
            **reading.page.signals(),
        )

    # --- the course of a life ----------------------------------------------------------------------------------------

    async def _run(self) -> int:
        self._happened(EngineEvent.PROCESS_STARTED)
        try:
            self._group.start()
        except OSError as error:
            self._happened(EngineEvent.PROCESS_EXITED)
            return await self._fail("engine could not be started", {"error": str(error)})
        watch = asyncio.create_task(self._watch())
        stop = asyncio.create_task(self._stop_asked.wait())
        try:
            turns: set[asyncio.Future[Any]] = {watch, stop, self._group.exited}
            await asyncio.wait(turns, return_when=asyncio.FIRST_COMPLETED)
            if stop.done() and not self._group.exited.done() and self.phase is EnginePhase.DRAINING:
                await self._drain()
            return await self._end(watch)
        finally:
            for task in (watch, stop):
                task.cancel()
            await asyncio.wait({watch, stop})

    async def _end(self, watch: asyncio.Task[None]) -> int:
        if self._group.exited.done():
            self._happened(EngineEvent.PROCESS_EXITED)
        if self.phase is EnginePhase.STOPPED:
            log.info("engine stopped")
            return 0
        if watch.done() and (error := watch.exception()) is not None:
            raise error
        exited = self._group.exited
        code = exited.result() if exited.done() else None
        message = "engine did not become ready in time" if code is None else "engine ended by itself"
        return await self._fail(message, {"exit_code": code})

    async def _fail(self, message: str, keys: dict[str, object]) -> int:
        log.error(message, extra=keys)
        _leave_word(f"{message} {keys}")
        await self._group.kill()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop_asked.wait(), FAILED_LINGER_S)
        return 1

    async def _watch(self) -> None:
        """Follow the engine's health until its end; return early only when it is given up."""
        failures = 0
        while not self._ended():
            try:
                await self._client.check_health()
            except EngineRefusedError as error:
                failures += 1
                log.debug("health not ok", extra={"error": str(error), "failures": failures})
                if failures == LOST_AFTER and not self._ended():
                    self._happened(EngineEvent.HEALTH_LOST)
            else:
                failures = 0
                await self._rehearse_when_starting()
            if self.phase is EnginePhase.STARTING and self._patience_ms() <= 0:
                self._happened(EngineEvent.START_DEADLINE)
            await asyncio.sleep(POLL_S if self.phase is EnginePhase.STARTING else WATCH_S)

    def _ended(self) -> bool:
        return self.phase in (EnginePhase.STOPPED, EnginePhase.FAILED)

    async def _rehearse_when_starting(self) -> None:
        async with self._switch:
            if self.phase is not EnginePhase.STARTING:
                return
            self._happened(EngineEvent.HEALTH_OK)
            timeout_s = min(REHEARSAL_TIMEOUT_S, max(self._patience_ms(), 1) / 1000)
            try:
                await self._client.rehearse(self.config.served_names[0], timeout_s)
            except EngineRefusedError as error:
                log.warning("rehearsal failed", extra={"error": str(error)})
            else:
                self._happened(EngineEvent.REHEARSED)

    def _patience_ms(self) -> int:
        """Time left until an engine that is not ready counts as failed."""
        allowed_ms = self.config.start_deadline_ms
        if self.start_ms is not None:
            allowed_ms = min(allowed_ms, LOST_DEADLINE_MS)
        return self._not_ready_since_ms + allowed_ms - self.now_ms()

    async def _drain(self) -> None:
        await self._until_idle()
        if self._group.exited.done():
            return
        self._group.terminate()
        await asyncio.wait({self._group.exited}, timeout=STOP_GRACE_S)
        if not self._group.exited.done():
            log.warning("engine did not stop in time and is killed", extra={"grace_s": STOP_GRACE_S})
        self._happened(EngineEvent.DRAINED)

    async def _until_idle(self) -> None:
        """Wait until nothing runs or waits. Not knowing is no zero: without numbers the whole deadline is waited."""
        if self.start_ms is None:
            return  # never ready, so nothing was ever routed here
        assert self._draining_since_ms is not None  # noqa: S101 - ask_drain came first
        idle_looks, seen_ms = 0, self._draining_since_ms
        while not self._group.exited.done():
            spent_ms = self.now_ms() - self._draining_since_ms
            if spent_ms >= self.config.drain_deadline_ms:
                log.warning("drain deadline passed", extra={"drain_deadline_ms": self.config.drain_deadline_ms})
                return
            reading = await self.reader.latest()
            if reading is not None and reading.at_ms > seen_ms:
                seen_ms = reading.at_ms
                idle_looks = idle_looks + 1 if reading.page.idle is True else 0
            if idle_looks >= IDLE_LOOKS and spent_ms >= DRAIN_AT_LEAST_MS:
                return
            await asyncio.wait({self._group.exited}, timeout=POLL_S)

    async def _until_awake_is(self, *, wanted: bool) -> None:
        since_ms = self.now_ms()
        while self.now_ms() < since_ms + SWITCH_VERIFY_MS:
            reading = await self.reader.latest()
            if reading is not None and reading.at_ms >= since_ms and reading.page.awake is wanted:
                return
            await asyncio.sleep(POLL_S)
        raise EngineRefusedError(f"its metrics do not show that it is {'awake' if wanted else 'asleep'}")

    def _happened(self, event: EngineEvent) -> None:
        before, self.phase = self.phase, next_phase(self.phase, event)
        if self.phase is before:
            return
        if self.phase is EnginePhase.STARTING:
            self._not_ready_since_ms = self.now_ms()
        if self.phase is EnginePhase.READY and self.start_ms is None:
            self.start_ms = self.now_ms() - self._started_at_ms
        log.info("phase", extra={"before": before, "after": self.phase, "event": event, "start_ms": self.start_ms})

    def _doubt_model(self, model: str | None) -> None:
        """Say once when the engine's metrics bear a model that we did not ask for."""
        if model is not None and model not in self.config.served_names and not self._model_doubted:
            self._model_doubted = True
            log.warning("engine serves another model", extra={"model": model, "asked": self.config.served_names[0]})


def _leave_word(message: str) -> None:
    """Leave a last message where the kubelet looks for it."""
    if TERMINATION_LOG.exists():
        TERMINATION_LOG.write_text(message, encoding="utf-8")
