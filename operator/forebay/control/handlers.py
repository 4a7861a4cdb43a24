"""The doorbell: kopf watches our kinds and puts what it sees on our table. A door, not a room.

kopf runs in a thread and loop of its own: at its end it cancels every task of its loop, on the main thread it takes the
signal handlers, and it ends on a 404 or a watch error, whatever its backoffs (all measured), so it is started again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

import kopf

from forebay.control.objects import WATCHED
from forebay.wire.names import GROUP, VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forebay.api.kinds import Kind

log = logging.getLogger(__name__)

RESTART_S = 2.0


class _Endless:
    """Backoffs for ever; kopf's own list ends after 54 s, and with it kopf."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((0.2, 0.5, 1, 2), itertools.repeat(3))


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False  # no Events of kopf's
    settings.peering.standalone = True  # no peering objects
    settings.scanning.disabled = True  # or it needs rights to list CRDs and namespaces
    settings.watching.chunk_size = 500
    settings.watching.server_timeout = 300
    settings.queueing.idle_timeout = 0.1  # 5 s keeps a task per object: 211 MB instead of 87 for 10,000
    settings.networking.error_backoffs = _Endless()
    settings.process.ultimate_exiting_timeout = None  # or it kills the process ten minutes after its end
    return settings


def _registry(ring: Callable[[str, str | None, dict[str, Any]], None]) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**arguments: Any) -> kopf.ConnectionInfo | None:
        outside = "KUBECONFIG" in os.environ or "KUBERNETES_SERVICE_HOST" not in os.environ
        return kopf.login_with_kubeconfig(**arguments) if outside else kopf.login_with_service_account(**arguments)

    def listen(kind: Kind) -> None:
        @kopf.on.event(GROUP, VERSION, kind.plural, registry=registry)
        async def event(type: str | None, body: kopf.Body, **_: Any) -> None:  # noqa: A002 - kopf's name for it
            ring(kind.plural, type, dict(body))

    for kind in WATCHED:
        listen(kind)
    return registry


def quiet_kopf() -> None:
    """Keep kopf from logging two lines an event."""
    logging.getLogger("kopf").setLevel(logging.WARNING)
    # It warns that it has no signals; that is why it has a thread.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
    logging.getLogger("kopf.objects").setLevel(logging.ERROR)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)


class Doorbell:
    """kopf in its thread.

    Parameters
    ----------
    ring
        Called in the caller's loop with plural, event type and object.
    namespace
        The one to watch; empty: all.
    """

    def __init__(self, ring: Callable[[str, str | None, dict[str, Any]], None], namespace: str) -> None:
        self._ring, self._namespace = ring, namespace
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; call it in the loop that `ring` is for."""
        quiet_kopf()
        loop = asyncio.get_running_loop()

        def ring(plural: str, event: str | None, raw: dict[str, Any]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._ring, plural, event, raw)

        self._thread = threading.Thread(target=self._run, args=(_registry(ring),), name="doorbell", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask kopf to end. It takes up to 5 s over it, which nobody needs to wait for: the thread is a daemon."""
        self._stop.set()

    def _run(self, registry: kopf.OperatorRegistry) -> None:
        while not self._stop.is_set():
            try:
                asyncio.run(self._once(registry))
            except Exception:
                log.exception("the doorbell ended and is started again")
            self._stop.wait(RESTART_S)

    async def _once(self, registry: kopf.OperatorRegistry) -> None:
        scope: dict[str, Any] = {"namespaces": [self._namespace]} if self._namespace else {"clusterwide": True}
        # Without an identity kopf asks for the user's name, and the container's user has none (KeyError from getpwuid).
        scope["identity"] = "forebay"
        await kopf.operator(registry=registry, settings=_settings(), stop_flag=self._stop, **scope)
