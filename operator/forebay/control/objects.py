"""What users wrote, as this process knows it: fed by kopf's doorbell, set right by a full list.

kopf tells of every change at once but never of a deletion that it missed, so a list each minute has the last word. A
list is a look at the past: it may neither bring back what was deleted since nor remove what was created since.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeAlias

from forebay.actuate.errors import ActError
from forebay.api.kinds import GPU_POOL, INFERENCE_SERVICE, SLO_POLICY
from forebay.report.publish import wordless
from forebay.wire.names import API_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from forebay.actuate.client import Kube
    from forebay.api.kinds import Kind

log = logging.getLogger(__name__)

Object: TypeAlias = dict[str, Any]

WATCHED = (INFERENCE_SERVICE, SLO_POLICY, GPU_POOL)
LIST_INTERVAL_S = 60.0  # 10,000 services cost 0.2 s of CPU a list: 0.3 % of one core
RETRY_S = 2.0
PAGE_LIMIT = "500"


class Objects:
    """A mirror of our kinds.

    Parameters
    ----------
    changed
        Called when something changed.

    Attributes
    ----------
    revision : int
        Grows with every change.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self.revision = 0
        self._changed = changed
        self._kept: dict[str, dict[str, Object]] = {kind.plural: {} for kind in WATCHED}
        self._deleted: dict[str, None] = {}  # uids, oldest first; a uid is never used twice

    def of(self, kind: Kind) -> Iterable[Object]:
        """Return all objects of a kind."""
        return self._kept[kind.plural].values()

    def take(self, plural: str, event: str | None, raw: Object) -> None:
        """Take what the doorbell brought: the object, and DELETED where it is gone."""
        uid = raw["metadata"]["uid"]
        if event == "DELETED":
            self._remember_deleted(uid)
            if self._kept[plural].pop(uid, None) is not None:
                self._note()
            return
        self._put(plural, lean(raw))

    def replace(self, plural: str, listed: Iterable[Object], version: str) -> None:
        """Take a full list, complete as of resourceVersion `version`."""
        uids = set()
        for raw in listed:
            uids.add(raw["metadata"]["uid"])
            self._put(plural, raw)
        kept = self._kept[plural]
        for uid in [uid for uid in kept if uid not in uids and _version(kept[uid]) <= int(version)]:
            del kept[uid]
            self._remember_deleted(uid)
            self._note()

    def _put(self, plural: str, raw: Object) -> None:
        uid = raw["metadata"]["uid"]
        old = self._kept[plural].get(uid)
        if uid in self._deleted or (old is not None and _version(old) >= _version(raw)):
            return
        self._kept[plural][uid] = raw
        # Our own writes of status come back as changes too; they change nothing that is resolved.
        if old is None or _wishes(old) != _wishes(raw):
            self._note()

    def _remember_deleted(self, uid: str) -> None:
        self._deleted[uid] = None
        while len(self._deleted) > 10_000:  # noqa: PLR2004 - a list takes seconds; nobody deletes as many in that time
            del self._deleted[next(iter(self._deleted))]

    def _note(self) -> None:
        self.revision += 1
        self._changed()


def _version(raw: Object) -> int:
    return int(raw["metadata"]["resourceVersion"])


def _wishes(raw: Mapping[str, Any]) -> tuple[object, ...]:
    meta = raw["metadata"]
    return meta.get("generation"), meta.get("annotations"), meta.get("deletionTimestamp"), raw.get("spec")


def lean(raw: Object) -> Object:
    """Leave out what nobody here reads, and what makes up most of an object: who wrote which field, and the prose."""
    leaner = raw | {"metadata": {name: of for name, of in raw["metadata"].items() if name != "managedFields"}}
    if "status" in raw:
        leaner["status"] = wordless(raw["status"])
    return leaner


async def list_all(kube: Kube, plural: str, namespace: str | None) -> tuple[list[Object], str]:
    """List every object of a kind, page by page.

    Returns
    -------
    tuple
        The objects, and the resourceVersion as of which they are complete.

    Raises
    ------
    ActError
        As actuate.errors says.
    """
    scope = f"/namespaces/{namespace}" if namespace else ""
    path = f"/apis/{API_VERSION}{scope}/{plural}"
    query = {"limit": PAGE_LIMIT}
    items: list[Object] = []
    while True:
        page = await kube.read(path, query)
        items += map(lean, page["items"])
        token = page["metadata"].get("continue")
        if not token:
            return items, page["metadata"]["resourceVersion"]
        query["continue"] = token


async def keep_listing(kube: Kube, objects: Objects, watch_namespace: str, synced: asyncio.Event) -> None:
    """List everything, now and each minute, until cancelled; `synced` is set after the first complete round."""
    while True:
        try:
            for kind in WATCHED:
                namespace = (watch_namespace or None) if kind.namespaced else None
                listed, version = await list_all(kube, kind.plural, namespace)
                objects.replace(kind.plural, listed, version)
        except ActError as error:
            # Not installed yet, not permitted yet, not up yet: all of them may come.
            log.warning("our kinds could not be listed", extra={"error": str(error)})
            await asyncio.sleep(RETRY_S)
            continue
        synced.set()
        await asyncio.sleep(LIST_INTERVAL_S)
