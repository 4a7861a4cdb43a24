"""`forebay gateway`: wires the picker together, runs it, and lets it end without cutting a stream."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeAlias

import aiohttp
import grpc
import orjson
import uvloop
import yaml
from envoy.service.accesslog.v3 import als_pb2_grpc as als_grpc  # type: ignore[import-untyped]  # generated

from forebay.gateway import envoy
from forebay.gateway.access_log import Ends
from forebay.gateway.counters import CountersFile, Reconciler, restore
from forebay.gateway.desk import Desk
from forebay.gateway.endpoints import EndpointsFile, replace_file
from forebay.gateway.envoy_admin import EnvoyAdmin, EnvoyError
from forebay.gateway.ext_proc import Picker
from forebay.gateway.metrics import Metrics
from forebay.gateway.poll import Poller
from forebay.gateway.settings import Settings
from forebay.gateway.signals_server import SignalsServer
from forebay.gateway.table import Table, prune_pod, prune_policy, prune_service
from forebay.gateway.teller import Teller
from forebay.observe.cluster import Reflector, find_api_server, resource_path
from forebay.report.logs import configure_logs
from forebay.routing.book import Book
from forebay.wire.names import GROUP, LABEL_SERVICE, VERSION

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from forebay.observe.cluster import ApiServer

    Watch: TypeAlias = Callable[[Table, asyncio.Event], Coroutine[Any, Any, None]]

log = logging.getLogger(__name__)

CHECK_ENVOY_S = 1.0
RECONCILE_S = 10.0
LAST_ENTRIES_S = 3.0  # from "drained" to the end of Envoy; it reports its last requests meanwhile
# Python's gRPC takes Envoy's keepalive for an attack: it answers GOAWAY "too many pings" and drops every held request.
SERVER_OPTIONS = (
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.so_reuseport", 0),
)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def render_envoy(settings: Settings) -> None:
    """Write Envoy's bootstrap and, if there is none yet, an empty endpoints file."""
    # Through JSON: parts that appear twice are then two, and YAML writes no aliases. People read this file.
    document = orjson.loads(orjson.dumps(envoy.bootstrap(settings)))
    text = yaml.safe_dump(document, sort_keys=False, width=120)
    replace_file(settings.bootstrap_file, text.encode())
    if not settings.endpoints_file.exists():
        EndpointsFile(settings.endpoints_file).write_empty()


class Gateway:
    """One picker, put together.

    Parameters
    ----------
    settings
        What it is told.
    now_ms
        The clock.
    """

    def __init__(self, settings: Settings, now_ms: Callable[[], int] = _now_ms) -> None:
        self.settings, self._now_ms = settings, now_ms
        self.book = Book(settings.limits)
        self.metrics = Metrics(self.book, now_ms)
        self.counters = CountersFile(settings.counters_file, settings.gateway_uid)
        self.teller = Teller(settings.gateway_uid, self.book, self.counters, now_ms)
        self.desk = Desk(self.book, now_ms, self.metrics, self.teller.ring)
        self.endpoints = EndpointsFile(settings.endpoints_file)
        self.table = Table(self.desk, self.endpoints, settings.ports, now_ms)
        self.drained = asyncio.Event()
        self._why_not_ready = "starting"
        self._leaving = False

    async def serve(self, watch: Watch, stop: asyncio.Event) -> None:
        """Run until `stop`, then drain and return.

        Parameters
        ----------
        watch
            Feeds the table for ever, and sets its event once everything that exists is in it.
        stop
            Set when the pod is to go.

        Raises
        ------
        ExceptionGroup
            When one of the gateway's loops died. Without it the picker would go on wrongly; a new process starts right.
        """
        # Leaving the stack undoes from bottom to top, also when it is cancelled half-way.
        async with AsyncExitStack() as stack:
            server = SignalsServer(self.teller, self.metrics.registry, lambda: self._why_not_ready, self.drained)
            stack.push_async_callback(server.stop)
            await server.start(self.settings.listen, self.settings.ports.signals)
            http = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
            admin = EnvoyAdmin(http, self.settings.ports)
            jobs = await stack.enter_async_context(asyncio.TaskGroup())
            synced = asyncio.Event()
            tasks = [jobs.create_task(watch(self.table, synced))]
            stack.callback(lambda: [task.cancel() for task in tasks])
            self._why_not_ready = "the cluster is not read yet"
            if not await _either(synced, stop):
                return
            await restore(self.book, self.counters.load(), admin, self.metrics, self._now_ms)
            grpc_server = self._grpc_server()
            stack.push_async_callback(grpc_server.stop, 1.0)
            await grpc_server.start()
            tasks += [jobs.create_task(loop) for loop in self._loops(http, admin)]
            log.info("gateway serves", extra={"gateway_uid": self.settings.gateway_uid})
            await stop.wait()
            await self._drain(admin)
            self.drained.set()
            # Whoever waits on /v1/drained hears of it, then Envoy ends, and its last entries arrive.
            await self._until(lambda: _gone(admin), LAST_ENTRIES_S)
            self.teller.tell()

    def _loops(self, http: aiohttp.ClientSession, admin: EnvoyAdmin) -> list[Coroutine[Any, Any, None]]:
        reconciler = Reconciler(self.desk, admin, self.metrics, self._now_ms)
        return [
            self.teller.run(),
            self.desk.tick_forever(),
            Poller(http, self.table, self.desk, self.settings.ports).run(),
            self._check_envoy(admin),
            _every(RECONCILE_S, reconciler.check),
        ]

    def _grpc_server(self) -> grpc.aio.Server:
        server = grpc.aio.server(options=SERVER_OPTIONS)
        picker = Picker(self.table, self.desk, self.metrics, self.settings.limits.queue_bytes_max)
        server.add_generic_rpc_handlers((picker.handler(),))
        als_grpc.add_AccessLogServiceServicer_to_server(Ends(self.desk), server)
        server.add_insecure_port(f"127.0.0.1:{self.settings.ports.ext_proc}")
        return server

    async def _check_envoy(self, admin: EnvoyAdmin) -> None:
        complete = False
        while True:
            ready = await admin.is_ready()
            if ready and not complete:
                complete = await self._envoy_knows_all(admin)
            if not self._leaving:
                self._why_not_ready = (
                    ""
                    if ready and complete
                    else "Envoy does not know all endpoints yet"
                    if ready
                    else "Envoy does not answer"
                )
            await asyncio.sleep(CHECK_ENVOY_S if complete else CHECK_ENVOY_S / 10)

    async def _envoy_knows_all(self, admin: EnvoyAdmin) -> bool:
        try:
            return set(self.endpoints.addresses()) <= (await admin.running()).requests.keys()
        except EnvoyError:
            return False

    async def _drain(self, admin: EnvoyAdmin) -> None:
        """Leave: not ready at once, new requests served while they come, streams finished, then the rest refused."""
        self._leaving, self._why_not_ready = True, "the gateway is going away"
        log.info("gateway leaves", extra={"in_flight": self.book.in_flight})
        try:
            await admin.drain()
        except EnvoyError as error:
            log.warning("Envoy does not drain", extra={"error": str(error)})
        deadline_s = asyncio.get_running_loop().time() + self.settings.drain_s
        await asyncio.sleep(min(self.settings.withdraw_s, self.settings.drain_s))

        async def idle() -> bool:
            return not self.book.holding and self.book.in_flight == 0

        await self._until(idle, deadline_s - asyncio.get_running_loop().time())
        refused = self.desk.refuse_all()
        if refused or self.book.in_flight:
            log.warning("drain time is over", extra={"refused": refused, "cut": self.book.in_flight})
        await asyncio.sleep(0.1)  # the refusals are on their way through Envoy

    async def _until(self, what: Callable[[], Awaitable[bool]], patience_s: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, patience_s)):
                while not await what():  # noqa: ASYNC110 - a state of Envoy, which has no event
                    await asyncio.sleep(0.1)
        except TimeoutError:
            pass


async def _gone(admin: EnvoyAdmin) -> bool:
    return not await admin.is_ready()


async def _every(period_s: float, job: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(period_s)
        await job()


async def _either(wanted: asyncio.Event, other: asyncio.Event) -> bool:
    """Wait for one of two events; say whether it was the first."""
    waits = [asyncio.ensure_future(event.wait()) for event in (wanted, other)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    return wanted.is_set()


async def watch_cluster(api: ApiServer, settings: Settings, table: Table, synced: asyncio.Event) -> None:
    """Feed the table from the Kubernetes API for ever; set `synced` once all three kinds are complete."""
    async with api.session() as http, asyncio.TaskGroup() as jobs:
        policies = resource_path(GROUP, VERSION, "slopolicies")
        reflectors = [Reflector(api, http, policies, table.on_policy, prune=prune_policy)]
        for namespace in settings.namespaces or (None,):
            services = resource_path(GROUP, VERSION, "inferenceservices", namespace)
            reflectors.append(Reflector(api, http, services, table.on_service, prune=prune_service))
            pods = resource_path("", "v1", "pods", namespace)
            reflectors.append(Reflector(api, http, pods, table.on_pod, prune=prune_pod, label_selector=LABEL_SERVICE))
        for reflector in reflectors:
            jobs.create_task(reflector.run())
        for reflector in reflectors:
            await reflector.synced.wait()
        synced.set()


async def serve(settings: Settings, api: ApiServer) -> None:
    """Run the picker of a pod until SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    gc.freeze()  # modules live for ever, looking at them again and again is 4 % of the CPU of a request
    await Gateway(settings).serve(lambda table, synced: watch_cluster(api, settings, table, synced), stop)


def run(*, render_only: bool = False) -> None:
    """Run `forebay gateway`.

    Parameters
    ----------
    render_only
        Write Envoy's configuration and return (the init container).

    Raises
    ------
    SettingsError
        When the environment is not complete; the text says what to set.
    NoApiServerError
        When neither a service account nor a kubeconfig is there.
    """
    settings = Settings.from_environment()
    if render_only:
        render_envoy(settings)
        return
    configure_logs("INFO")
    uvloop.run(_serve_found(settings))


async def _serve_found(settings: Settings) -> None:
    await serve(settings, await find_api_server())
