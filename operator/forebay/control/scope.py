"""A second Forebay whose scope overlaps an older one's does not stand for election: it waits, and says so.

Each release has its own Lease in its own namespace, so the election alone would let both drive the same services. The
Lease bears the scope; of two that overlap the one created first stays.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from forebay.actuate.errors import ActError, RefusedError
from forebay.control.leader import ANNOTATION_SCOPE, EVERYWHERE
from forebay.wire.names import LABEL_PART_OF

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forebay.actuate.client import Kube, Object
    from forebay.control.leader import Election

log = logging.getLogger(__name__)

INTERVAL_S = 10.0
# A lease whose holder has not renewed for three of its durations belongs to a release that was removed.
DEAD_AFTER = 3


def rival(leases: Iterable[Object], own: tuple[str, str], scope: str, now: datetime) -> str:
    """Name the Lease of an older, living Forebay with an overlapping scope; the empty text: there is none.

    Parameters
    ----------
    leases
        All Leases that are part of Forebay.
    own
        Namespace and name of this release's Lease.
    scope
        Its scope.
    now
        The wall clock; only lives and deaths of minutes depend on it.
    """
    listed = {(lease["metadata"]["namespace"], lease["metadata"]["name"]): lease for lease in leases}
    ours = listed.pop(own, None)
    for key in sorted(listed):
        lease = listed[key]
        theirs = lease["metadata"].get("annotations", {}).get(ANNOTATION_SCOPE)
        if theirs is None or not _lives(lease, now) or (theirs != scope and EVERYWHERE not in {theirs, scope}):
            continue
        if ours is None or _age(lease, key) < _age(ours, own):
            return "/".join(key)
    return ""


def _age(lease: Object, key: tuple[str, str]) -> tuple[str, tuple[str, str]]:
    return lease["metadata"]["creationTimestamp"], key


def _lives(lease: Object, now: datetime) -> bool:
    spec = lease.get("spec", {})
    if not spec.get("holderIdentity") or not spec.get("renewTime"):
        return False
    renewed = datetime.strptime(spec["renewTime"], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
    return (now - renewed).total_seconds() < DEAD_AFTER * int(spec.get("leaseDurationSeconds", 1))


class Candidate:
    """Stands for election as long as there is no rival.

    Attributes
    ----------
    waits_for : str
        The rival's Lease; empty while there is none.
    """

    def __init__(self, kube: Kube, election: Election, own: tuple[str, str], scope: str) -> None:
        self.waits_for = ""
        self._kube, self._election, self._own, self._scope = kube, election, own, scope
        self._standing: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Look around and stand, until cancelled; then hand over."""
        try:
            while True:
                self.waits_for = await self._look()
                if self.waits_for and self._standing is not None:
                    await self._withdraw()
                if not self.waits_for and self._standing is None:
                    self._standing = asyncio.create_task(self._election.run(), name="election")
                await asyncio.sleep(INTERVAL_S)
        finally:
            await self._withdraw()

    async def _look(self) -> str:
        try:
            page = await self._kube.read(
                "/apis/coordination.k8s.io/v1/leases", {"labelSelector": f"{LABEL_PART_OF}=forebay"}
            )
        except RefusedError:
            # Rights for one namespace only: others cannot be seen, and the cluster's owner keeps scopes apart.
            return ""
        except ActError as error:
            log.warning("other releases cannot be looked for", extra={"error": str(error)})
            return self.waits_for
        found = rival(page["items"], self._own, self._scope, datetime.now(UTC))
        if found and found != self.waits_for:
            log.error("another Forebay with an overlapping scope leads; this one waits", extra={"lease": found})
        return found

    async def _withdraw(self) -> None:
        standing, self._standing = self._standing, None
        if standing is not None:
            standing.cancel()
            await asyncio.gather(standing, return_exceptions=True)
