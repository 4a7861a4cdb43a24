"""The supervisor's port: what a replica says of itself, to anybody; what it is ordered to do, by the operator."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING

import orjson
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from forebay.wire.lifecycle import EnginePhase
from forebay.wire.names import (
    PATH_DRAIN,
    PATH_HEALTH,
    PATH_METRICS,
    PATH_READY,
    PATH_SLEEP,
    PATH_STATE,
    PATH_WAKE,
)
from forebay_replica.engine_client import EngineRefusedError
from forebay_replica.lifecycle import LifecycleError
from forebay_replica.token_review import ReviewUnavailableError, TokenJudge, Verdict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from prometheus_client.core import Metric

    from forebay_replica.supervisor import Supervisor

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 4096  # orders have no body
BEARER = "Bearer "
REFUSALS = {Verdict.NOT_AUTHENTICATED: HTTPStatus.UNAUTHORIZED, Verdict.OTHER_USER: HTTPStatus.FORBIDDEN}


class SupervisorServer:
    """Answers on the supervisor's port."""

    def __init__(self, supervisor: Supervisor, judge: TokenJudge) -> None:
        self._supervisor = supervisor
        self._judge = judge
        self._registry = CollectorRegistry()
        self._registry.register(_Figures(supervisor))

    def application(self) -> web.Application:
        """Return the routes."""
        application = web.Application(client_max_size=MAX_BODY_BYTES)
        application.add_routes(
            [
                web.get(PATH_STATE, self._state),
                web.get(PATH_HEALTH, self._health),
                web.get(PATH_READY, self._ready),
                web.get(PATH_METRICS, self._metrics),
                web.post(PATH_DRAIN, self._order(self._drain)),
                web.post(PATH_SLEEP, self._order(self._supervisor.sleep)),
                web.post(PATH_WAKE, self._order(self._supervisor.wake)),
            ]
        )
        return application

    async def _state(self, _: web.Request) -> web.Response:
        return web.Response(body=(await self._supervisor.signals()).to_json(), content_type="application/json")

    async def _health(self, _: web.Request) -> web.Response:
        """Answer that the supervisor lives. A dead engine is the supervisor's business, not the liveness probe's."""
        return _say(HTTPStatus.OK, phase=self._supervisor.phase)

    async def _ready(self, _: web.Request) -> web.Response:
        ready = self._supervisor.phase is EnginePhase.READY
        return _say(HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE, phase=self._supervisor.phase)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), content_type="text/plain", charset="utf-8")

    async def _drain(self) -> None:
        self._supervisor.ask_drain()

    def _order(self, obey: Callable[[], Awaitable[None]]) -> Callable[[web.Request], Awaitable[web.Response]]:
        """Wrap an order: only for the operator, answered with the state that it led to."""

        async def handle(request: web.Request) -> web.Response:
            try:
                verdict = await self._judge.judge(_bearer(request))
                if verdict in REFUSALS:
                    return _say(REFUSALS[verdict], error=verdict)
                await obey()
            except ReviewUnavailableError as error:
                return _say(HTTPStatus.SERVICE_UNAVAILABLE, error=str(error))
            except LifecycleError as error:
                return _say(HTTPStatus.CONFLICT, error=str(error))
            except EngineRefusedError as error:
                return _say(HTTPStatus.BAD_GATEWAY, error=str(error))
            return await self._state(request)

        return handle


def _bearer(request: web.Request) -> str:
    header = request.headers.get("Authorization", "")
    return header[len(BEARER) :].strip() if header.startswith(BEARER) else ""


def _say(status: HTTPStatus, **words: str) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(words), content_type="application/json")


class _Figures:
    """The supervisor's own metrics, made when they are asked for. The engine's are on its own port."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def collect(self) -> Iterator[Metric]:
        phases = GaugeMetricFamily("forebay_replica_phase", "1 for the phase that the engine is in.", labels=["phase"])
        for phase in EnginePhase:
            phases.add_metric([phase], float(phase is self._supervisor.phase))
        yield phases
        if self._supervisor.start_ms is not None:
            yield GaugeMetricFamily(
                "forebay_replica_start_seconds",
                "How long this engine took from process start to the first rehearsed token.",
                value=self._supervisor.start_ms / 1000,
            )
        yield CounterMetricFamily(
            "forebay_replica_page_failures",
            "Looks at the engine's metrics that brought no page.",
            value=self._supervisor.reader.failures_total,
        )
