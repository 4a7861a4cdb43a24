"""Everything an operator process is made of, put together once. No decision is taken here."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from forebay.actuate.apply import Actuator
from forebay.actuate.client import Kube
from forebay.actuate.client import open_client as open_kube
from forebay.actuate.errors import ActError
from forebay.api.kinds import INFERENCE_SERVICE, SERVICE_CHECKPOINT
from forebay.control import health
from forebay.control.acting import Acting
from forebay.control.checkpoint import restored
from forebay.control.handlers import Doorbell
from forebay.control.judge import Judge, Sources
from forebay.control.leader import EVERYWHERE, Election, KubeLeaseStore
from forebay.control.loop import Loop, Parts
from forebay.control.objects import Objects, keep_listing, list_all
from forebay.control.scope import Candidate
from forebay.control.telling import Telling
from forebay.observe.cluster import Change, Reflector, find_api_server, resource_path
from forebay.observe.gateways import GatewayStreams
from forebay.observe.scrape import Scraper
from forebay.observe.scrape import open_client as open_scraper
from forebay.observe.world import World
from forebay.report.journal import Journal
from forebay.report.metrics import Metrics
from forebay.resolve.defaults import ReplicaDefaults
from forebay.resolve.fleet import Resolver
from forebay.wire.names import GROUP, LABEL_MANAGED_BY

if TYPE_CHECKING:
    from collections.abc import Coroutine

    import aiohttp

    from forebay.control.settings import Settings
    from forebay.core.memory import Memory
    from forebay.observe.cluster import ApiServer, Object

log = logging.getLogger(__name__)

# A mirror that has had no answer for this long is no longer believed; a server's restart takes less.
NODES_STALE_MS = 60_000
FIRST_TICK_S = 60.0  # after a start, lists of 20,000 pods included
TICK_STALE_MS = 30_000  # thirty ticks that failed or hung: a restart is the better try
MEMORY_RETRY_S = 1.0


def now_ms() -> int:
    """Milliseconds of a clock of which only differences mean anything."""
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Operator:
    """One operator process.

    Parameters
    ----------
    settings
        What it was told.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.world = World(settings.operator_namespace, settings.watch_namespace)
        self.objects = Objects(self._wake)
        self.namespaces: dict[str, dict[str, str]] = {}
        self.autoscalers: dict[str, str] = {}
        self.budgets: dict[str, None] = {}
        self.listed = asyncio.Event()  # our own kinds
        self.loop: Loop | None = None
        self._mirrors: dict[str, Reflector] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._started_ms = now_ms()

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set, then hand over in order."""
        async with AsyncExitStack() as stack:
            api = await find_api_server()
            http = await stack.enter_async_context(api.session())
            client = await stack.enter_async_context(await open_kube())
            replicas_http = await stack.enter_async_context(open_scraper())
            scraper = Scraper(replicas_http, now_ms)
            streams = GatewayStreams(replicas_http, now_ms, self._wake)
            stack.push_async_callback(streams.close)
            unfenced = Kube(client, lambda: float("inf"))
            candidate, election = self._candidate(unfenced)
            self.loop = self._loop(Kube(client, election.left_s), unfenced, election, scraper, streams)
            self._mirror(api, http)
            doorbell = Doorbell(self.objects.take, self.settings.watch_namespace)
            doorbell.start()
            stack.callback(doorbell.stop)
            runner = await health.serve(
                self.settings.listen_port, self._alive, lambda: self._ready(candidate), self.metrics.page
            )
            stack.push_async_callback(runner.cleanup)
            for mirror in self._mirrors.values():
                self._start(mirror.run())
            self._start(keep_listing(unfenced, self.objects, self.settings.watch_namespace, self.listed))
            self._start(self._ask_replicas(scraper, streams))
            await self._lead_until(stop, candidate, self.loop)

    def _wake(self) -> None:
        if self.loop is not None:
            self.loop.wake()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task

    async def _lead_until(self, stop: asyncio.Event, candidate: Candidate, loop: Loop) -> None:
        standing = asyncio.create_task(self._when_synced(candidate))
        ticking = asyncio.create_task(loop.run())
        stopped = asyncio.create_task(stop.wait())
        essential = [standing, ticking, *self._tasks]
        try:
            done, _ = await asyncio.wait([stopped, *essential], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopped}:
                task.result()  # none of them ends by itself: raise what ended it
        finally:
            # First no more ticks, then the last writes under the lease, then the lease, then everything else.
            await _end(ticking, stopped)
            await loop.close()
            await _end(standing)
            await _end(*self._tasks)

    async def _when_synced(self, candidate: Candidate) -> None:
        # Who leads without having seen all pods would make them a second time.
        for mirror in (self._mirrors["pods"], self._mirrors["nodes"]):
            await mirror.synced.wait()
        await self.listed.wait()
        await candidate.run()

    def _candidate(self, kube: Kube) -> tuple[Candidate, Election]:
        settings = self.settings
        scope = settings.watch_namespace or EVERYWHERE
        store = KubeLeaseStore(kube, settings.operator_namespace, settings.lease_name, scope)
        identity = f"{settings.identity}_{secrets.token_hex(4)}"
        election = Election(store, identity, settings.lease_duration_ms)
        return Candidate(kube, election, (settings.operator_namespace, settings.lease_name), scope), election

    def _loop(self, kube: Kube, unfenced: Kube, election: Election, scraper: Scraper, streams: GatewayStreams) -> Loop:
        settings = self.settings
        sources = Sources(
            self.objects, self.world, scraper.readings, streams.readings, self.namespaces, self.autoscalers,
            self._nodes_known,
        )  # fmt: skip
        defaults = ReplicaDefaults(settings.vllm_image, settings.emulated_image, settings.operator_username)
        acting = Acting(
            Actuator(kube),
            self.world,
            self.metrics,
            now_ms=now_ms,
            wake=self._wake,
            pull_policy=settings.image_pull_policy,
        )
        telling = Telling(
            kube, self.objects, acting, self.metrics, budgets=self.budgets.keys(), instance=settings.identity
        )
        journal = None
        if settings.journal_dir is not None:
            journal = Journal(settings.journal_dir, settings.journal_max_mb << 20)

        async def remember(memory: Memory) -> tuple[Memory, frozenset[str]]:
            return await self._remember(unfenced, memory)

        parts = Parts(
            Judge(sources, Resolver(defaults)), acting, telling, self.world, scraper, self.metrics, journal,
            lambda: frozenset(self._mirrors["pods"].objects), remember,
        )  # fmt: skip
        return Loop(parts, election, now_ms, wall_ms, settings.tick_ms)

    async def _remember(self, kube: Kube, memory: Memory) -> tuple[Memory, frozenset[str]]:
        """Read what an earlier leader stored. Until then nothing is decided: a guess is worse than a wait."""
        namespace = self.settings.watch_namespace or None
        while True:
            try:
                # Read anew: the mirror may lag behind the last write of the leader before us.
                services, _ = await list_all(kube, INFERENCE_SERVICE.plural, namespace)
                checkpoints, _ = await list_all(kube, SERVICE_CHECKPOINT.plural, namespace)
                break
            except ActError as error:
                log.warning("the stored memory cannot be read yet", extra={"error": str(error)})
                await asyncio.sleep(MEMORY_RETRY_S)
        safety = {_key(s): s["status"]["memory"] for s in services if s.get("status", {}).get("memory")}
        learned = {_key(c): c["spec"]["memory"] for c in checkpoints if c.get("spec", {}).get("memory")}
        return restored(memory, safety, learned)

    # --- mirrors -----------------------------------------------------------------------------------------------------

    def _mirror(self, api: ApiServer, http: aiohttp.ClientSession) -> None:
        namespace = self.settings.watch_namespace or None
        pods, nodes, namespaces = resource_path("", "v1", "pods"), resource_path("", "v1", "nodes"), "namespaces"
        hpas = resource_path("autoscaling", "v2", "horizontalpodautoscalers", namespace)
        budgets = resource_path("policy", "v1", "poddisruptionbudgets", namespace)
        self._mirrors = {
            "pods": Reflector(api, http, pods, self._on_pod, prune=self.world.prune_pod),
            "nodes": Reflector(api, http, nodes, self.world.on_node, prune=self.world.prune_node),
            "namespaces": Reflector(
                api, http, resource_path("", "v1", namespaces), self._on_namespace, prune=_prune_namespace
            ),
            "autoscalers": Reflector(api, http, hpas, self._on_autoscaler, prune=_prune_autoscaler),
            "budgets": Reflector(
                api, http, budgets, self._on_budget, prune=_prune_budget, label_selector=f"{LABEL_MANAGED_BY}=forebay"
            ),
        }

    def _on_pod(self, change: Change, kept: Object) -> None:
        before = self.world.essence(kept["uid"])
        self.world.on_pod(change, kept)
        if self.world.essence(kept["uid"]) != before:
            self._wake()

    def _on_namespace(self, change: Change, kept: Object) -> None:
        if change is Change.DELETED:
            self.namespaces.pop(kept["name"], None)
        else:
            self.namespaces[kept["name"]] = kept["labels"]

    def _on_autoscaler(self, change: Change, kept: Object) -> None:
        self.autoscalers.pop(kept["uid"], None)
        if change is Change.CHANGED and kept["target"]:
            self.autoscalers[kept["uid"]] = kept["target"]

    def _on_budget(self, change: Change, kept: Object) -> None:
        if change is Change.DELETED:
            self.budgets.pop(kept["key"], None)
        else:
            self.budgets[kept["key"]] = None

    def _nodes_known(self) -> bool:
        nodes = self._mirrors["nodes"]
        failing = nodes.failing_since_ms
        return nodes.synced.is_set() and (failing is None or now_ms() - failing < NODES_STALE_MS)

    async def _ask_replicas(self, scraper: Scraper, streams: GatewayStreams) -> None:
        while True:
            started_ms = now_ms()
            streams.follow(self.world.gateway_targets())
            await scraper.sweep(self.world.scrape_targets())
            self.metrics.garbage.labels("gateway").set(streams.garbage_total)
            await asyncio.sleep(max(0, started_ms + self.settings.tick_ms - now_ms()) / 1000)

    # --- health ------------------------------------------------------------------------------------------------------

    def _alive(self) -> str:
        last_ms = self.loop.last_tick_ms if self.loop is not None else None
        if last_ms is not None and now_ms() - last_ms > TICK_STALE_MS:
            return f"no tick succeeded for {now_ms() - last_ms} ms"
        return ""

    def _ready(self, candidate: Candidate) -> str:
        missing = sorted(name for name, mirror in self._mirrors.items() if not mirror.synced.is_set())
        if missing:
            return f"not listed yet: {', '.join(missing)}"
        if not self.listed.is_set():
            return "Forebay's own kinds are not listed yet: are the CRDs installed?"
        if candidate.waits_for:
            return f"another Forebay with an overlapping scope holds the lease {candidate.waits_for}"
        return ""


async def _end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _key(raw: Object) -> str:
    return f"{raw['metadata']['namespace']}/{raw['metadata']['name']}"


def _prune_namespace(raw: Object) -> Object:
    return {"name": raw["metadata"]["name"], "labels": raw["metadata"].get("labels", {})}


def _prune_budget(raw: Object) -> Object:
    return {"key": _key(raw)}


def _prune_autoscaler(raw: Object) -> Object:
    target = raw["spec"]["scaleTargetRef"]
    ours = target.get("kind") == "InferenceService" and target.get("apiVersion", "").startswith(f"{GROUP}/")
    return {
        "uid": raw["metadata"]["uid"],
        "target": f"{raw['metadata']['namespace']}/{target['name']}" if ours else "",
    }
