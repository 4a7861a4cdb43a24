"""ACT, first half: what is decided and what exists become ordered actions. Pure.

The states of a replica and the only ways between them:

    (no pod) --Create--> STARTING --SetState--> WARM <--SetState--> SERVING
                            |                    |                     |
                            +------- SetState(DRAINING), Delete -------+

A pod that never served needs no DRAINING before its Delete. Order over the whole fleet: labels first (they repair a
service in milliseconds), then what leaves, then what comes; nothing is created on a GPU that is not free yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from forebay.wire.lifecycle import ReplicaState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# A replica that failed before it ever was ready is kept this long: its pod tells a person why, and a wrong image is
# tried 60 times an hour instead of 3,600 times.
RETRY_MS = 60_000
# During a rollout this share of the replicas may exist twice; a Deployment's default.
SURGE_PERCENT = 25


class Pod(Protocol):
    """What the diff reads of a replica's pod."""

    @property
    def uid(self) -> str: ...  # noqa: D102 - the name says it
    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def state(self) -> ReplicaState: ...  # noqa: D102
    @property
    def ready(self) -> bool: ...  # noqa: D102
    @property
    def failed(self) -> bool: ...  # noqa: D102
    @property
    def deleting(self) -> bool: ...  # noqa: D102
    @property
    def revision(self) -> str: ...  # noqa: D102
    @property
    def gpus(self) -> int: ...  # noqa: D102
    @property
    def created_ms(self) -> int: ...  # noqa: D102
    @property
    def version(self) -> str: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the decision says of one service."""

    service: str  # namespace/name
    revision: str | None  # of a pod made now; None: none can be made, so nothing is created and nothing is outdated
    pool: int
    gpus: int  # a replica
    priority: int
    serving: int
    warm: int
    hold: bool  # nothing may be removed
    victims: tuple[str, ...] = ()  # uids that may be removed, best first
    suspects: frozenset[str] = frozenset()  # uids to be replaced


@dataclass(frozen=True, slots=True)
class Create:
    """Make a replica's pod."""

    service: str
    name: str
    revision: str


@dataclass(frozen=True, slots=True)
class SetState:
    """Write a replica's label: promotion, demotion, or the first half of a farewell."""

    service: str
    name: str
    uid: str
    version: str  # resourceVersion that the decision saw
    was: ReplicaState
    state: ReplicaState


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete exactly this pod; its supervisor drains it."""

    service: str
    name: str
    uid: str


Action: TypeAlias = Create | SetState | Delete


def plan(
    wanted: Sequence[Wanted], pods: Mapping[str, Sequence[Pod]], room: Mapping[int, int], now_ms: int
) -> tuple[Action, ...]:
    """Order the actions that lead from what exists to what is wanted, as far as one tick may go.

    Parameters
    ----------
    wanted
        One entry a service.
    pods
        service to all its pods that exist, leaving ones included.
    room
        pool to GPUs that are free for new replicas: neither held by a pod nor promised.
    now_ms
        Wall clock, as `created_ms`.

    Returns
    -------
    tuple
        Labels, then farewells, then creates; creates by priority, and never more than `room` has GPUs for.
    """
    ordered = sorted(wanted, key=lambda w: (-w.priority, w.service))
    pool_of = {want.service: want.pool for want in ordered}
    leaving = {pool_of.get(service) for service, of in pods.items() if any(_leaves(pod) for pod in of)}
    free = dict(room)
    labels: list[Action] = []
    farewells: list[Action] = []
    creates: list[Action] = []
    for want in ordered:
        if _is_settled(want, pods.get(want.service, ())):
            continue
        service = _Service(want, pods.get(want.service, ()), now_ms)
        count = service.creates_wanted()
        fits = count if want.gpus == 0 else max(0, min(count, free.get(want.pool, 0) // want.gpus))
        free[want.pool] = free.get(want.pool, 0) - fits * want.gpus
        if count > 0 and fits == 0:
            service.give_way(pool_leaving=want.pool in leaving)
        labels += service.labels()
        farewells += service.farewells()
        creates += service.creates(fits)
    return (*labels, *farewells, *creates)


def _is_settled(want: Wanted, pods: Sequence[Pod]) -> bool:
    """Say whether all is as wanted, which of a thousand services it nearly always is."""
    serving = 0
    for pod in pods:
        serves = pod.state is ReplicaState.SERVING
        at_work = serves or pod.state is ReplicaState.WARM
        stale = want.revision is not None and pod.revision != want.revision
        if not (at_work and pod.ready) or stale or pod.failed or pod.deleting:
            return False
        serving += serves
    return serving == want.serving and len(pods) == want.serving + want.warm and not want.suspects


def _leaves(pod: Pod) -> bool:
    return pod.deleting or pod.state is ReplicaState.DRAINING


class _Service:
    """The working sheet of one service: who stays, who goes, who is stale."""

    def __init__(self, want: Wanted, pods: Iterable[Pod], now_ms: int) -> None:
        self.want = want
        self.pods = sorted(pods, key=lambda pod: pod.uid)
        present = [pod for pod in self.pods if not _leaves(pod)]
        self.dead = [pod for pod in present if pod.failed and not _kept_to_tell(pod, now_ms)]
        live = [pod for pod in present if pod not in self.dead]
        self.stale = [pod for pod in live if self._is_stale(pod)]
        self.fresh = [pod for pod in live if not self._is_stale(pod)]
        self.total = want.serving + want.warm
        self.rank = {uid: place for place, uid in enumerate(want.victims)}
        self.going: list[Pod] = []
        self._choose_who_goes()

    def _is_stale(self, pod: Pod) -> bool:
        want = self.want
        return pod.uid in want.suspects or (want.revision is not None and pod.revision != want.revision)

    def _victim_key(self, pod: Pod) -> tuple[bool, bool, bool, int, str]:
        """Sort by harm: failed, never ready, without traffic; then as the decision ranks them."""
        return (
            not pod.failed,
            pod.ready,
            pod.state is ReplicaState.SERVING,
            self.rank.get(pod.uid, len(self.rank)),
            pod.uid,
        )

    def _choose_who_goes(self) -> None:
        excess = 0 if self.want.hold else len(self.fresh) - self.total
        allowed = [pod for pod in self.fresh if pod.uid in self.rank or pod.failed]
        self._send(sorted(allowed, key=self._victim_key)[: max(0, excess)])
        ready_fresh = sum(pod.ready and not pod.failed for pod in self.fresh)
        # A stale replica goes when a fresh one is ready in its place, or when it never became ready itself.
        goal = max(self.total, len(self.stale)) if self.want.hold else self.total
        hopeless = [pod for pod in self.stale if not pod.ready and pod.state is ReplicaState.STARTING]
        useful = sorted((pod for pod in self.stale if pod not in hopeless), key=self._victim_key)
        self._send(hopeless)
        self._send(useful[: max(0, len(useful) - max(0, goal - ready_fresh))])

    def _send(self, pods: Iterable[Pod]) -> None:
        for pod in pods:
            self.going.append(pod)
            (self.fresh if pod in self.fresh else self.stale).remove(pod)

    def creates_wanted(self) -> int:
        """Count the pods that are missing, within the surge while a rollout runs."""
        if self.want.revision is None:
            return 0
        surge = -(-self.total * SURGE_PERCENT // 100)
        return max(0, min(self.total - len(self.fresh), self.total + surge - len(self.fresh) - len(self.stale)))

    def give_way(self, *, pool_leaving: bool) -> None:
        """Let one stale replica go although no successor is ready: the GPUs are all taken, waiting would last for ever.

        One at a time, a warm one before a serving one, none while a successor already starts, and not the only one
        while another pod of the pool is about to free its GPUs.
        """
        coming = any(not pod.ready for pod in self.fresh) or any(_leaves(pod) for pod in self.pods)
        only_one = len(self.stale) + len(self.fresh) == 1
        if self.want.hold or coming or not self.stale or (only_one and pool_leaving):
            return
        self._send([min(self.stale, key=self._victim_key)])

    def labels(self) -> list[Action]:
        """Promote until enough serve, best first; park what else became ready; demote what is too much."""
        stay = [pod for pod in (*self.fresh, *self.stale) if not pod.failed and pod.ready]
        serving = [pod for pod in stay if pod.state is ReplicaState.SERVING and pod.uid not in self.want.suspects]
        idle = [pod for pod in stay if pod.state is not ReplicaState.SERVING and pod.uid not in self.want.suspects]
        fresh = {pod.uid for pod in self.fresh}
        idle.sort(key=lambda pod: (pod.uid not in fresh, pod.state is not ReplicaState.WARM, pod.uid))
        missing = max(0, self.want.serving - len(serving))
        actions: list[Action] = [self._label(pod, ReplicaState.SERVING) for pod in idle[:missing]]
        actions += [self._label(pod, ReplicaState.WARM) for pod in idle[missing:] if pod.state is not ReplicaState.WARM]
        if not self.want.hold:
            surplus = max(0, len(serving) - self.want.serving)
            demoted = sorted(serving, key=lambda pod: (pod.uid in fresh, *self._victim_key(pod)))[:surplus]
            actions += [self._label(pod, ReplicaState.WARM) for pod in demoted]
        return actions

    def farewells(self) -> list[Action]:
        """Say farewell to those who go, and finish the farewells that a crash interrupted."""
        actions: list[Action] = []
        interrupted = [pod for pod in self.pods if pod.state is ReplicaState.DRAINING and not pod.deleting]
        for pod in (*interrupted, *self.dead, *self.going):
            if pod.state is ReplicaState.SERVING and not pod.failed:
                actions.append(self._label(pod, ReplicaState.DRAINING))
            actions.append(Delete(self.want.service, pod.name, pod.uid))
        return actions

    def creates(self, count: int) -> list[Action]:
        """Make `count` pods under the lowest free names, so that a second maker of the same pod gets a 409."""
        revision = self.want.revision
        if revision is None or count == 0:
            return []
        stem = f"{self.want.service.partition('/')[2]}-{revision[:5]}-"
        taken = {pod.name for pod in self.pods}
        names: list[str] = []
        ordinal = 0
        while len(names) < count:
            if f"{stem}{ordinal}" not in taken:
                names.append(f"{stem}{ordinal}")
            ordinal += 1
        return [Create(self.want.service, name, revision) for name in names]

    def _label(self, pod: Pod, state: ReplicaState) -> SetState:
        return SetState(self.want.service, pod.name, pod.uid, pod.version, pod.state, state)


def _kept_to_tell(pod: Pod, now_ms: int) -> bool:
    return pod.state is ReplicaState.STARTING and now_ms - pod.created_ms < RETRY_MS
