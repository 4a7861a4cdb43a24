"""DECIDE: the gateway's book: every request of every service from its arrival to its one end.

The shells around it bring requests, reports and ends, each with the time; the book answers who is refused, who waits
and who goes where. At any instant, for every service:

    admitted = answered + refused + aborted + failed + held + in flight
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.routing.flow import Waiting
from forebay.routing.pick import order
from forebay.routing.replica import Replica
from forebay.routing.service import Counters, Limits, Outcome, Refusal, Service, ServiceSpec
from forebay.wire.signals import GatewayService

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.wire.signals import ReplicaSignals


@dataclass(frozen=True, slots=True)
class Admission:
    """The door's answer: let in or not, and who had to leave the queue for it."""

    admitted: bool
    evicted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Route:
    """A request that goes to a replica now."""

    request_id: str
    endpoints: tuple[str, ...]  # "ip:port", the first is meant, the others are for when it refuses the connection
    waited_ms: int


class Book:
    """All services of one gateway."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.services: dict[str, Service] = {}
        self._held: dict[str, Service] = {}
        self._holding: dict[str, None] = {}  # keys of services whose queue is not empty, in order
        self._sent: dict[str, tuple[Service, Replica]] = {}
        self._queue_bytes = 0
        self._adopted = 0

    # --- what there is ----------------------------------------------------------------------------------------------

    def set_service(self, spec: ServiceSpec, now_ms: int) -> None:
        """Make or change a service."""
        service = self.services.get(spec.key)
        if service is None:
            self.services[spec.key] = Service(spec, clock_ms=now_ms)
            return
        service.spec, service.gone = spec, False
        for replica in service.replicas.values():
            replica.batch_max = spec.batch_max

    def drop_service(self, key: str) -> list[str]:
        """Forget a service once nothing of it runs; return the held requests, now refused with SERVICE_GONE."""
        service = self.services.get(key)
        if service is None:
            return []
        service.gone = True
        refused = list(service.queue.waiting)
        for request_id in refused:
            self._leave_queue(service, request_id)
            service.counters.count(Outcome.REFUSED)
        self._forget_if_empty(service)
        return refused

    def set_replica(self, key: str, uid: str, endpoint: str, *, routable: bool, now_ms: int) -> None:
        """Make or change a replica; one that is not routable gets nothing new, what it has goes on."""
        service = self.services[key]
        service.turn_clocks(now_ms)
        replica = service.replicas.get(uid)
        if replica is None:
            replica = service.replicas[uid] = Replica(uid, endpoint, service.spec.batch_max)
        replica.endpoint, replica.routable, replica.leaving = endpoint, routable and not service.gone, False

    def drop_replica(self, key: str, uid: str, now_ms: int) -> None:
        """Forget a replica whose pod is gone, as soon as the ends of its requests have been reported."""
        service = self.services.get(key)
        if service is not None and uid in service.replicas:
            service.turn_clocks(now_ms)
            service.replicas[uid].routable = False
            service.replicas[uid].leaving = True
            self._forget_if_empty(service)

    def observe(self, key: str, report: ReplicaSignals, now_ms: int) -> None:
        """Take a replica's report in."""
        service = self.services.get(key)
        replica = service.replicas.get(report.pod_uid) if service is not None else None
        if service is None or replica is None:
            return
        counted = replica.observe(report, now_ms)
        if counted is not None:
            service.estimator.counted(counted.prompt_tokens, counted.requests_finished)

    # --- the life of a request --------------------------------------------------------------------------------------

    def admit(
        self, key: str, request_id: str, *, tenant: str, priority: int | None, body_bytes: int, now_ms: int
    ) -> Admission:
        """Let a request in, or not; it then waits until `release` returns it.

        Parameters
        ----------
        priority
            What the client asks for; it may only lower the policy's. None: the policy's.

        Raises
        ------
        KeyError
            When the service is not known; the caller answers 404 before.
        """
        service = self.services[key]
        service.turn_clocks(now_ms)
        rank = service.spec.priority if priority is None else min(priority, service.spec.priority)
        tokens = service.estimator.tokens(body_bytes, service.spec.prompt_tokens_max)
        service.counters.arrivals += 1
        service.counters.arrival_prompt_tokens += tokens
        evicted = self._make_room(service, rank, tenant, tokens, body_bytes)
        if evicted is None or service.gone:
            return Admission(admitted=False)
        waiting = Waiting(
            request_id=request_id,
            tenant=tenant,
            priority=rank,
            prompt_tokens=tokens,
            body_bytes=body_bytes,
            arrived_ms=now_ms,
            start_limit_ms=service.start_clock_ms + self.limits.start_wait_ms,
            busy_limit_ms=service.busy_clock_ms + self.limits.busy_wait_ms,
        )
        service.counters.admitted += 1
        service.queue.push(waiting)
        self._held[request_id] = service
        self._holding[key] = None
        self._queue_bytes += body_bytes
        return Admission(admitted=True, evicted=evicted)

    def _make_room(
        self, service: Service, priority: int, tenant: str, tokens: int, body_bytes: int
    ) -> tuple[str, ...] | None:
        queue, limits = service.queue, self.limits
        over = self._queue_bytes + body_bytes - limits.queue_bytes_max
        if over > queue.bytes_below(priority):
            return None  # whoever left, the bytes would not fit
        evicted: list[str] = []
        while len(queue.waiting) >= limits.queue_requests_max or over > 0:
            victim = queue.victim_for(priority, tenant, tokens)
            if victim is None:
                return None
            over -= victim.body_bytes
            self._leave_queue(service, victim.request_id)
            service.counters.count(Outcome.REFUSED)
            evicted.append(victim.request_id)
        return tuple(evicted)

    def release(self, key: str, now_ms: int) -> list[Route]:
        """Send on, in order, all held requests of a service for which there is room."""
        service = self.services.get(key)
        routes: list[Route] = []
        if service is None:
            return routes
        service.turn_clocks(now_ms)
        while (first := service.queue.first()) is not None:
            ranked = order(service.replicas.values(), first.prompt_tokens, service.mean_prompt_tokens, now_ms)
            if not ranked:
                break
            self._leave_queue(service, first.request_id, as_first=True)
            ranked[0].send(first.request_id, first.prompt_tokens, first.body_bytes, now_ms)
            self._sent[first.request_id] = (service, ranked[0])
            endpoints = tuple(replica.endpoint for replica in ranked)
            routes.append(Route(first.request_id, endpoints, now_ms - first.arrived_ms))
        return routes

    def expire(self, key: str, now_ms: int) -> list[tuple[str, Refusal]]:
        """Refuse the held requests whose patience is over."""
        service = self.services.get(key)
        refused: list[tuple[str, Refusal]] = []
        if service is None:
            return refused
        service.turn_clocks(now_ms)
        # All have the same budgets, so the limits rise in order of arrival, on both clocks.
        for waiting in list(service.queue.waiting.values()):
            if waiting.start_limit_ms <= service.start_clock_ms:
                why = Refusal.NOT_STARTED
            elif waiting.busy_limit_ms <= service.busy_clock_ms:
                why = Refusal.STILL_BUSY
            else:
                break
            self.refuse(waiting.request_id)
            refused.append((waiting.request_id, why))
        return refused

    def refuse(self, request_id: str) -> bool:
        """End a held request by our own answer; False if it is not held."""
        return self._end_held(request_id, Outcome.REFUSED)

    def abort(self, request_id: str, now_ms: int) -> bool:
        """End a request whose client left before it was sent to a replica, or while it was."""
        return self._end_held(request_id, Outcome.ABORTED) or self.end(request_id, Outcome.ABORTED, now_ms) is not None

    def end(self, request_id: str, outcome: Outcome, now_ms: int) -> str | None:
        """End a sent request.

        Returns
        -------
        str or None
            The key of its service; None if it is not with a replica (it ended before, or was never admitted).
        """
        service, replica = self._sent.pop(request_id, (None, None))
        if service is None or replica is None:
            return None
        sent = replica.end(request_id, now_ms)
        if outcome is Outcome.ANSWERED:
            service.estimator.ended(sent.body_bytes)
        service.counters.count(outcome)
        self._forget_if_empty(service)
        return service.spec.key

    def _end_held(self, request_id: str, outcome: Outcome) -> bool:
        service = self._held.get(request_id)
        if service is None:
            return False
        self._leave_queue(service, request_id)
        service.counters.count(outcome)
        return True

    def _leave_queue(self, service: Service, request_id: str, *, as_first: bool = False) -> None:
        waiting = service.queue.take_first() if as_first else service.queue.remove(request_id)
        if waiting is not None:
            del self._held[request_id]
            self._queue_bytes -= waiting.body_bytes
            if not service.queue.waiting:
                del self._holding[service.spec.key]

    def _forget_if_empty(self, service: Service) -> None:
        for uid in [uid for uid, r in service.replicas.items() if r.leaving and r.own == 0]:
            del service.replicas[uid]
        if service.gone and service.in_flight == 0:
            self.services.pop(service.spec.key, None)

    # --- after a restart of this process ----------------------------------------------------------------------------

    def restore(self, key: str, counters: Counters, running: dict[str, int], now_ms: int) -> int:
        """Continue a former process's counters with what still runs of it, replica uid to requests.

        Returns
        -------
        int
            Requests that ended while nobody listened: held ones that Envoy answered with 503, and ends that were never
            reported. They are counted as failed, since nobody saw them succeed.
        """
        service = self.services[key]
        for uid, count in running.items():
            service.replicas[uid].adopt(count, now_ms)
            self._adopted += count
        known = counters.answered + counters.refused + counters.aborted + counters.failed + sum(running.values())
        unseen = max(0, counters.admitted - known)
        # More run than the last line told of: they were admitted after it.
        late = max(0, known - counters.admitted)
        counters.failed += unseen
        counters.admitted += late
        counters.arrivals += late
        service.counters = counters
        return unseen

    def end_adopted(self, endpoint: str, outcome: Outcome, now_ms: int) -> str | None:
        """End one request that began before this process, known only by its replica; return its service's key."""
        for service in self.services.values() if self._adopted else ():
            for replica in service.replicas.values():
                if replica.endpoint == endpoint and replica.adopted > 0:
                    replica.adopt(-1, now_ms)
                    self._adopted -= 1
                    service.counters.count(outcome)
                    self._forget_if_empty(service)
                    return service.spec.key
        return None

    def sent_before(self, before_ms: int) -> Iterator[tuple[str, str]]:
        """Yield (request id, endpoint) of what was sent before a time and has not ended, oldest first a replica."""
        for request_id, (_, replica) in self._sent.items():
            if replica.sent[request_id].sent_ms < before_ms:
                yield request_id, replica.endpoint

    # --- what is told -----------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Requests that are with replicas, of all services."""
        return len(self._sent) + self._adopted

    @property
    def holding(self) -> list[str]:
        """The services that hold requests."""
        return list(self._holding)

    def signals(self, now_ms: int) -> dict[str, GatewayService]:
        """Describe every service."""
        told: dict[str, GatewayService] = {}
        for key, service in sorted(self.services.items()):
            oldest = next(iter(service.queue.waiting.values()), None)
            c = service.counters
            told[key] = GatewayService(
                requests_held=len(service.queue.waiting),
                held_prompt_tokens=service.queue.prompt_tokens,
                held_oldest_ms=max(0, now_ms - oldest.arrived_ms) if oldest is not None else 0,
                requests_in_flight=service.in_flight,
                arrivals_total=c.arrivals,
                arrival_prompt_tokens_total=c.arrival_prompt_tokens,
                admitted_total=c.admitted,
                answered_total=c.answered,
                refused_total=c.refused,
                aborted_total=c.aborted,
                failed_total=c.failed,
            )
        return told
