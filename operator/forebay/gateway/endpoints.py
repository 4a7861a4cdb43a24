"""The endpoints file that Envoy watches: every replica's pod, written anew by rename whenever one changes."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import orjson

from forebay.gateway import envoy

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

log = logging.getLogger(__name__)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".tmp")
    beside.write_bytes(data)
    beside.replace(path)


class EndpointsFile:
    """Keeps the file equal to the hosts that it was last given.

    All pods of a service are in it from the moment they have an address, long before they serve: a promotion then
    changes nothing here, and a request never waits for Envoy to learn of its replica (about 4 ms, measured; more when
    busy).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hosts: dict[str, envoy.Host] = {}
        self._written: dict[str, envoy.Host] | None = None
        self._due = False

    def write_empty(self) -> None:
        """Make the file, which Envoy wants to find when it starts."""
        self._write()

    def put(self, uid: str, host: envoy.Host | None) -> None:
        """Set or (None) remove a pod's host; the file follows within one turn of the loop, many changes at once."""
        # Removed first, then at the end: of two pods with one address the one that changed last is alive.
        self._hosts.pop(uid, None)
        if host is not None:
            self._hosts[uid] = host
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._write)

    def addresses(self) -> Iterable[str]:
        """List "ip:port" of everything in the file."""
        return (f"{host.ip}:{host.port}" for host in self._hosts.values())

    def _write(self) -> None:
        self._due = False
        by_address = {f"{host.ip}:{host.port}": host for host in self._hosts.values()}
        if by_address == self._written:
            return
        try:
            replace_file(self._path, orjson.dumps(envoy.endpoints(by_address.values())))
            self._written = by_address
        except OSError:
            # A full or read-only volume: what Envoy knows stays valid, and the next change tries again.
            log.exception("endpoints file could not be written", extra={"path": str(self._path)})
