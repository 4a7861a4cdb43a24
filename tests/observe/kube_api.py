"""A small HTTP server that speaks Kubernetes' list and watch, and misbehaves on demand."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from aiohttp import web

PODS = "/api/v1/pods"


class Collection:
    """One kind of object with a history; `faults` are answered first, one a request."""

    def __init__(self) -> None:
        self.version = 10
        self.objects: dict[str, dict[str, Any]] = {}
        self.events: list[tuple[int, bytes]] = []
        self.oldest = 0  # watches from before this version are Gone
        self.list_faults: list[int] = []
        self.watch_faults: list[int] = []
        self.page_size = 2
        self.requests: list[dict[str, str]] = []
        self.tokens: list[str | None] = []
        self.news = asyncio.Condition()
        self.open_watches: set[web.StreamResponse] = set()
        self.cut = asyncio.Event()
        self.mute = False  # a black hole: the connection stands, nothing comes
        self.url = ""  # of its server

    def put_unseen(self, name: str) -> None:
        """Make an object of which no watch tells."""
        self.version += 1
        meta = {"name": name, "namespace": "n", "uid": f"uid-{name}", "resourceVersion": str(self.version)}
        self.objects[name] = {"metadata": meta, "spec": {}}

    async def put(self, name: str, uid: str | None = None, **spec: Any) -> None:
        await self._record("ADDED" if name not in self.objects else "MODIFIED", name, uid or f"uid-{name}", spec)

    async def delete(self, name: str) -> None:
        gone = self.objects[name]
        await self._record("DELETED", name, gone["metadata"]["uid"], gone["spec"])
        del self.objects[name]

    async def bookmark(self) -> None:
        self.version += 1
        await self._publish("BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}})

    async def error(self, code: int) -> None:
        await self._publish("ERROR", {"kind": "Status", "code": code, "message": "no"})

    async def garbage(self) -> None:
        await self._append(b'{"type": "ADDED", "obj\n')

    def forget_history(self) -> None:
        """Compact: every present resourceVersion is too old to watch from."""
        self.version += 1
        self.oldest = self.version

    async def cut_watches(self) -> None:
        """End every watch in the middle of its body."""
        self.cut.set()
        async with self.news:
            self.news.notify_all()
        while self.open_watches:  # noqa: ASYNC110 - a state of the server, polled by a test
            await asyncio.sleep(0.005)
        self.cut.clear()

    async def _record(self, kind: str, name: str, uid: str, spec: dict[str, Any]) -> None:
        self.version += 1
        meta = {"name": name, "namespace": "n", "uid": uid, "resourceVersion": str(self.version)}
        self.objects[name] = {"metadata": meta, "spec": spec}
        await self._publish(kind, self.objects[name])

    async def put_object(self, obj: dict[str, Any]) -> None:
        """Make or change a whole object."""
        self.version += 1
        name = obj["metadata"]["name"]
        kind = "ADDED" if name not in self.objects else "MODIFIED"
        self.objects[name] = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
        await self._publish(kind, self.objects[name])

    async def _publish(self, kind: str, obj: dict[str, Any]) -> None:
        await self._append(orjson.dumps({"type": kind, "object": obj}) + b"\n")

    async def _append(self, line: bytes) -> None:
        self.events.append((self.version, line))
        async with self.news:
            self.news.notify_all()

    async def get(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(dict(request.query))
        self.tokens.append(request.headers.get("Authorization"))
        if request.query.get("watch"):
            return await self._watch(request)
        if self.list_faults:
            return web.Response(status=self.list_faults.pop(0))
        rows = sorted(self.objects.items())
        at = int(request.query.get("continue", "0"))
        page = [o for _, o in rows[at : at + self.page_size]]
        meta = {"resourceVersion": str(self.version)}
        if at + self.page_size < len(rows):
            meta["continue"] = str(at + self.page_size)
        return web.json_response({"metadata": meta, "items": page})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        if self.watch_faults:
            return web.Response(status=self.watch_faults.pop(0))
        since = int(request.query["resourceVersion"])
        if since < self.oldest:
            return web.Response(status=410)
        response = web.StreamResponse()
        await response.prepare(request)
        self.open_watches.add(response)
        at = next((i for i, (version, _) in enumerate(self.events) if version > since), len(self.events))
        try:
            while not self.cut.is_set():
                while at < len(self.events) and not self.mute:
                    await response.write(self.events[at][1])
                    at += 1
                async with self.news:
                    await self.news.wait()
            assert request.transport is not None
            request.transport.abort()
        finally:
            self.open_watches.discard(response)
        return response


class KubeApi:
    """The server of some collections, by path."""

    def __init__(self, *paths: str) -> None:
        self.collections = {path: Collection() for path in paths}
        self.url = ""

    async def start(self) -> KubeApi:
        app = web.Application()
        for path, collection in self.collections.items():
            app.router.add_get(path, collection.get)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def stop(self) -> None:
        await self._runner.cleanup()
