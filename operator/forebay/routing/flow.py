"""DECIDE: who waits, in which order, and who must go when the room is full.

Between priorities: strictly the higher first. Within one: start-time fair queueing over tenants, a request costing
its prompt tokens. It is fair like deficit round robin (two tenants that both wait never differ by more than one
request's cost each) without rounds that visit a tenant many times before a 100,000-token prompt fits its quantum.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

# Tenants that are away and owe nothing are forgotten once there are this many more than requests: API keys are for
# ever.
TENANTS_REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class Waiting:
    """One request that waits for a replica."""

    request_id: str
    tenant: str
    priority: int
    prompt_tokens: int  # estimated
    body_bytes: int
    arrived_ms: int
    # Readings of the service's two clocks at which its patience ends (Service.start_clock_ms, busy_clock_ms).
    start_limit_ms: int
    busy_limit_ms: int


@dataclass(slots=True)
class _Tenant:
    name: str
    virtual: int  # tokens of service at which its next request starts
    tokens: int = 0
    requests: dict[str, Waiting] = field(default_factory=dict)  # in order of arrival


@dataclass(slots=True)
class _Level:
    """The tenants that wait at one priority."""

    virtual: int = 0  # where the last released request started
    requests: int = 0
    body_bytes: int = 0
    tenants: dict[str, _Tenant] = field(default_factory=dict)
    heap: list[tuple[int, str]] = field(default_factory=list)  # (virtual, tenant), at most once a tenant
    in_heap: set[str] = field(default_factory=set)

    def push(self, waiting: Waiting) -> None:
        tenant = self.tenants.get(waiting.tenant)
        if tenant is None:
            tenant = self.tenants[waiting.tenant] = _Tenant(waiting.tenant, self.virtual)
        if not tenant.requests:
            # Who was away gets no credit for it, but keeps what it still owes.
            tenant.virtual = max(tenant.virtual, self.virtual)
        if tenant.name not in self.in_heap:
            heapq.heappush(self.heap, (tenant.virtual, tenant.name))
            self.in_heap.add(tenant.name)
        tenant.requests[waiting.request_id] = waiting
        tenant.tokens += waiting.prompt_tokens
        self.requests += 1
        self.body_bytes += waiting.body_bytes

    def first(self) -> Waiting | None:
        while self.heap:
            virtual, name = self.heap[0]
            tenant = self.tenants.get(name)
            if tenant is None or not tenant.requests:  # all its requests were removed from their places
                heapq.heappop(self.heap)
                self.in_heap.discard(name)
            elif tenant.virtual != virtual:  # it was away and came back further behind
                heapq.heapreplace(self.heap, (tenant.virtual, name))
            else:
                return next(iter(tenant.requests.values()))
        return None

    def take(self, waiting: Waiting) -> None:
        """Release what `first` returned."""
        tenant = self.tenants[waiting.tenant]
        self.virtual = tenant.virtual
        tenant.virtual += waiting.prompt_tokens
        self.remove(waiting)

    def remove(self, waiting: Waiting) -> None:
        tenant = self.tenants[waiting.tenant]
        del tenant.requests[waiting.request_id]
        tenant.tokens -= waiting.prompt_tokens
        self.requests -= 1
        self.body_bytes -= waiting.body_bytes
        if len(self.tenants) > 2 * self.requests + TENANTS_REMEMBERED:
            self.tenants = {n: t for n, t in self.tenants.items() if t.requests or t.virtual > self.virtual}

    def heaviest(self) -> _Tenant:
        """Return the tenant with the most waiting tokens, by name where equal."""
        return max((t for t in self.tenants.values() if t.requests), key=lambda t: (t.tokens, t.name))

    def tokens_of(self, tenant: str) -> int:
        return self.tenants[tenant].tokens if tenant in self.tenants else 0


class FairQueue:
    """All requests of one service that wait."""

    def __init__(self) -> None:
        self.waiting: dict[str, Waiting] = {}  # in order of arrival
        self.prompt_tokens = 0
        self.body_bytes = 0
        self._levels: dict[int, _Level] = {}

    def push(self, waiting: Waiting) -> None:
        """Append a request."""
        self.waiting[waiting.request_id] = waiting
        self.prompt_tokens += waiting.prompt_tokens
        self.body_bytes += waiting.body_bytes
        self._levels.setdefault(waiting.priority, _Level()).push(waiting)

    def first(self) -> Waiting | None:
        """Return who is next, without taking it."""
        return self._levels[max(self._levels)].first() if self._levels else None

    def take_first(self) -> Waiting:
        """Take who is next; the queue must not be empty."""
        waiting = self.first()
        if waiting is None:
            raise LookupError("nobody waits")
        self._levels[waiting.priority].take(waiting)
        self._left(waiting)
        return waiting

    def remove(self, request_id: str) -> Waiting | None:
        """Take a request out of its place; None if it does not wait."""
        waiting = self.waiting.get(request_id)
        if waiting is not None:
            self._levels[waiting.priority].remove(waiting)
            self._left(waiting)
        return waiting

    def _left(self, waiting: Waiting) -> None:
        del self.waiting[waiting.request_id]
        self.prompt_tokens -= waiting.prompt_tokens
        self.body_bytes -= waiting.body_bytes
        # What a tenant owes is forgotten with the level: nobody is left to whom it could be owed.
        if self._levels[waiting.priority].requests == 0:
            del self._levels[waiting.priority]

    def bytes_below(self, priority: int) -> int:
        """Sum the bytes that wait at lower priorities."""
        return sum(level.body_bytes for p, level in self._levels.items() if p < priority)

    def victim_for(self, priority: int, tenant: str, prompt_tokens: int) -> Waiting | None:
        """Say who should leave a full queue so that a newcomer may enter; None: the newcomer is the one to refuse.

        The newest request of the heaviest tenant at the lowest priority; at the newcomer's own priority only if that
        tenant holds more than the newcomer's would then hold, so that one tenant cannot lock the others out.
        """
        if not self._levels:
            return None
        lowest = min(self._levels)
        level = self._levels[lowest]
        heaviest = level.heaviest()
        mine = level.tokens_of(tenant) + prompt_tokens
        if lowest < priority or (lowest == priority and heaviest.name != tenant and heaviest.tokens > mine):
            return next(reversed(heaviest.requests.values()))
        return None
