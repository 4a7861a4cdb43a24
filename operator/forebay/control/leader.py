"""Which of the operator's processes may write: our own election on a Lease.

The client's own election leads for 10 s beside its successor after a pause, and for ever through a black hole: both
were measured. Here (a) validity is counted from before the renewal was sent, on a clock that goes on while the machine
is suspended; (b) every write asks `left_s()` first; (c) another holder, or a conflict, ends leadership at once; (d)
each taking raises leaseTransitions, the term; (e) no request lasts longer than the lease it is to renew.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from forebay.actuate.errors import ActError, AlreadyThereError, ConflictError, GoneError
from forebay.wire.names import GROUP, LABEL_PART_OF

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.actuate.client import Kube, Object

log = logging.getLogger(__name__)

ANNOTATION_SCOPE = f"{GROUP}/scope"  # the namespace whose services are driven, or EVERYWHERE
EVERYWHERE = "*"
RENEWALS = 5  # tries within one lease: with 10 s one each 2 s, so that three may fail
MARGIN_PERCENT = 15  # clocks that run apart, and the write that is under way when validity ends


def boot_clock_s() -> float:
    """Seconds since boot, suspended time included: a laptop's lid must not lengthen a lease."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Lease:
    """The Lease as far as the election reads it."""

    holder: str
    transitions: int
    renewed: str  # the holder's words; only compared for change, so that no two clocks need to agree
    duration_ms: int
    version: str = ""  # resourceVersion


class LeaseStore(Protocol):
    """Where the Lease lives; errors are ActErrors."""

    async def read(self) -> Lease | None:
        """Return the Lease, None when there is none."""

    async def write(self, lease: Lease) -> Lease:
        """Create it (empty version) or replace exactly that version."""


class Election:
    """Stands for election until cancelled.

    Parameters
    ----------
    store
        The Lease.
    identity
        Of this process, followed by "_" and something that no other life of it has. A holder of the same identity is
        an earlier life, which has ended: its lease need not be waited for.
    duration_ms
        Of the lease.

    Attributes
    ----------
    leading : asyncio.Event
        Set while this process leads. It is set and cleared by the election; before a write ask `left_s`.
    term : int
        Number of the present leadership.
    holder : str
        Who leads, as far as known; for people.
    """

    def __init__(
        self, store: LeaseStore, identity: str, duration_ms: int, clock_s: Callable[[], float] = boot_clock_s
    ) -> None:
        self.leading = asyncio.Event()
        self.term = 0
        self.holder = ""
        self._store, self._identity, self._duration_ms, self._clock_s = store, identity, duration_ms, clock_s
        self._valid_until_s = 0.0
        self._lease: Lease | None = None  # as we last wrote it
        self._seen: tuple[str, str, int] | None = None  # of another holder's lease: holder, renewed, transitions
        self._seen_at_s = 0.0

    def left_s(self) -> float:
        """Seconds for which writing is still allowed; 0 or less: not at all."""
        return self._valid_until_s - self._clock_s()

    async def run(self) -> None:
        """Stand, lead, lose, stand again; on cancellation hand the Lease over."""
        pause_s = self._duration_ms / 1000 / RENEWALS
        try:
            while True:
                began_s = self._clock_s()
                await self._try()
                # From start to start, so that a server that is slow to answer is not also asked seldom.
                wait_s = pause_s * random.uniform(0.8, 1.0)  # noqa: S311 - so that two candidates do not walk in step
                wait_s = max(0.0, began_s + wait_s - self._clock_s())
                await asyncio.sleep(max(0.0, min(wait_s, self.left_s())) if self.leading.is_set() else wait_s)
                if self.leading.is_set() and self.left_s() <= 0:
                    self._step_down("the lease was not renewed in time")
        finally:
            await self._release()

    async def _try(self) -> None:
        try:
            async with asyncio.timeout(self._patience_s()):
                written, sent_s = await self._renew() if self._lease is not None else await self._stand()
        except (ConflictError, AlreadyThereError, GoneError):
            self._step_down("another process wrote the lease")
        except (ActError, TimeoutError) as error:
            left_s = round(self.left_s(), 1)
            log.warning("the lease could not be renewed", extra={"error": repr(error), "left_s": left_s})
        else:
            if written is not None:
                self._lead(written, sent_s)

    def _patience_s(self) -> float:
        """Wait for an answer: while leading half of what is left, so that a second try remains; else half a lease."""
        duration_s = self._duration_ms / 1000
        if not self.leading.is_set():
            return duration_s / 2
        return max(0.01, min(self.left_s(), max(duration_s / RENEWALS, self.left_s() / 2)))

    async def _renew(self) -> tuple[Lease | None, float]:
        """Write over our own last version: one request, because a busy server answers each of them late."""
        if self._lease is None:
            return await self._stand()
        sent_s = self._clock_s()
        try:
            return await self._store.write(replace(self._lease, renewed=_now())), sent_s
        except ConflictError:
            # Another process, or a renewal of our own whose answer was lost: the Lease itself says which.
            self._lease = None
            return await self._stand()

    async def _stand(self) -> tuple[Lease | None, float]:
        claim = self._claim(await self._store.read())
        # The time of the write, not of the read: the server grants from there.
        sent_s = self._clock_s()
        return (None if claim is None else await self._store.write(claim)), sent_s

    def _claim(self, current: Lease | None) -> Lease | None:
        now = _now()
        if current is None:
            return Lease(self._identity, 1, now, self._duration_ms)
        self.holder = current.holder
        if current.holder == self._identity and current.transitions == self.term:
            return replace(current, renewed=now, duration_ms=self._duration_ms)  # nobody led in between
        if self.leading.is_set():
            self._step_down("another process holds the lease")
        earlier_life = current.holder.rpartition("_")[0] == self._identity.rpartition("_")[0]
        if current.holder and not earlier_life and not self._expired(current):
            return None
        return replace(
            current,
            holder=self._identity,
            transitions=current.transitions + 1,
            renewed=now,
            duration_ms=self._duration_ms,
        )

    def _expired(self, lease: Lease) -> bool:
        seen = (lease.holder, lease.renewed, lease.transitions)
        if seen != self._seen:
            self._seen, self._seen_at_s = seen, self._clock_s()
        return self._clock_s() - self._seen_at_s >= lease.duration_ms / 1000

    def _lead(self, lease: Lease, sent_s: float) -> None:
        self._valid_until_s = sent_s + self._duration_ms / 1000 * (100 - MARGIN_PERCENT) / 100
        self._lease = lease
        self.holder = self._identity
        self.term = lease.transitions
        if not self.leading.is_set() and self.left_s() > 0:
            log.info("leading", extra={"term": self.term})
            self.leading.set()

    def _step_down(self, why: str) -> None:
        self._valid_until_s = 0.0
        self._lease = self._seen = None
        if self.leading.is_set():
            log.warning("not leading any more", extra={"why": why})
            self.leading.clear()

    async def _release(self) -> None:
        if not self.leading.is_set() or self.left_s() <= 0:
            self._step_down("the lease had ended")
            return
        self._step_down("shutting down")
        try:
            async with asyncio.timeout(2):
                current = await self._store.read()
                if current is not None and current.holder == self._identity:
                    await self._store.write(replace(current, holder=""))
        except (ActError, TimeoutError) as error:
            log.info("the lease was not handed over", extra={"error": repr(error)})


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class KubeLeaseStore:
    """The Lease in the API server; it tells other Forebays the scope of this one (see scope.py)."""

    def __init__(self, kube: Kube, namespace: str, name: str, scope: str) -> None:
        self._kube, self._namespace, self._name, self._scope = kube, namespace, name, scope
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"

    async def read(self) -> Lease | None:
        """Return the Lease, None when there is none.

        Raises
        ------
        ActError
            When the server does not say.
        """
        try:
            return _lease(await self._kube.read(f"{self._path}/{self._name}"))
        except GoneError:
            return None

    async def write(self, lease: Lease) -> Lease:
        """Create it, or replace exactly the version that was read.

        Raises
        ------
        ActError
            When the server does not, or another process was faster.
        """
        body: Object = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": self._name,
                "namespace": self._namespace,
                "labels": {LABEL_PART_OF: "forebay"},
                "annotations": {ANNOTATION_SCOPE: self._scope},
            },
            "spec": {
                "holderIdentity": lease.holder,
                "leaseDurationSeconds": max(1, lease.duration_ms // 1000),
                "leaseTransitions": lease.transitions,
                "renewTime": lease.renewed,
            },
        }
        if not lease.version:
            return _lease(await self._kube.write("POST", self._path, body))
        body["metadata"]["resourceVersion"] = lease.version
        return _lease(await self._kube.write("PUT", f"{self._path}/{self._name}", body))


def _lease(raw: Object) -> Lease:
    spec = raw.get("spec", {})
    return Lease(
        holder=spec.get("holderIdentity") or "",
        transitions=int(spec.get("leaseTransitions") or 0),
        renewed=spec.get("renewTime") or "",
        duration_ms=int(spec.get("leaseDurationSeconds") or 1) * 1000,
        version=raw["metadata"]["resourceVersion"],
    )
