"""What is done with a decision: named situations, then properties over a small simulated world."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.actuate.diff import RETRY_MS, Action, Create, Delete, SetState, Wanted, plan
from forebay.wire.lifecycle import ReplicaState

NOW = 10_000_000
STARTING, WARM, SERVING, DRAINING = ReplicaState


@dataclass(frozen=True)
class FakePod:
    """A replica's pod as the diff reads it."""

    uid: str
    state: ReplicaState
    ready: bool = True
    failed: bool = False
    deleting: bool = False
    revision: str = "aaaaaaaa"
    gpus: int = 1
    created_ms: int = 0
    version: str = "1"
    name: str = field(default="")

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", f"svc-{self.revision[:5]}-{self.uid}")


def starting(uid: str, *, ready: bool = False, failed: bool = False, created_ms: int = 0) -> FakePod:
    return FakePod(uid, STARTING, ready=ready, failed=failed, created_ms=created_ms)


def warm(uid: str, revision: str = "aaaaaaaa") -> FakePod:
    return FakePod(uid, WARM, revision=revision)


def serving(uid: str, revision: str = "aaaaaaaa", *, ready: bool = True) -> FakePod:
    return FakePod(uid, SERVING, revision=revision, ready=ready)


def want(serving: int, warm: int = 0, **more: object) -> Wanted:
    base = Wanted("ns/svc", "aaaaaaaa", 0, 1, 100, serving, warm, hold=False, victims=tuple("0123456789"))
    return replace(base, **more)  # type: ignore[arg-type]


def said(actions: tuple[Action, ...]) -> list[str]:
    words = []
    for action in actions:
        match action:
            case Create(name=name):
                words.append(f"create {name}")
            case SetState(uid=uid, state=state):
                words.append(f"{uid} {state}")
            case Delete(uid=uid):
                words.append(f"delete {uid}")
    return words


TABLE: dict[str, tuple[Wanted, list[FakePod], int, list[str]]] = {
    "nothing to do is nothing done": (want(2, 1), [serving("0"), serving("1"), warm("2")], 5, []),
    "from zero to five in one decision": (
        want(5), [], 5, [f"create svc-aaaaa-{i}" for i in range(5)],
    ),
    "a name that exists is not used again, even while its pod leaves": (
        want(1), [FakePod("0", DRAINING, deleting=True)], 5, ["create svc-aaaaa-1"],
    ),
    "a create waits until the GPU is free": (want(3), [serving("0")], 1, ["create svc-aaaaa-1"]),
    "a burst is met by promotion, and the pool refilled": (
        want(2, 1), [serving("0"), warm("1")], 5, ["1 serving", "create svc-aaaaa-2"],
    ),
    "what became ready serves": (want(1), [starting("0", ready=True)], 5, ["0 serving"]),
    "what became ready beyond what must serve is parked": (
        want(1, 1), [serving("0"), starting("1", ready=True)], 5, ["1 warm"],
    ),
    "a warm one is promoted before one that just started": (
        want(1, 1), [starting("0", ready=True), warm("1")], 5, ["1 serving", "0 warm"],
    ),
    "an unready serving replica is stood in for, and not removed": (
        want(1, 0, victims=()), [serving("0", ready=False), warm("1")], 5, ["1 serving"],
    ),
    "shrinking labels first, then deletes": (want(1), [serving("0"), serving("1")], 5, ["0 draining", "delete 0"]),
    "shrinking takes the unready and the idle first": (
        want(1), [serving("0"), warm("1"), starting("2")], 5, ["delete 2", "delete 1"],
    ),
    "only what the decision allows is removed": (
        want(1, victims=("1",)), [serving("0"), serving("1"), serving("2")], 5,
        ["0 warm", "1 draining", "delete 1"],
    ),
    "on hold nothing is removed and nothing demoted": (
        want(1, hold=True), [serving("0"), serving("1"), starting("2")], 5, [],
    ),
    "less load but a pool to fill demotes instead of deleting": (
        want(1, 1), [serving("0"), serving("1")], 5, ["0 warm"],
    ),
    "an interrupted farewell is finished": (
        want(1), [serving("0"), FakePod("1", DRAINING)], 5, ["delete 1"],
    ),
    "a replica that failed in service is replaced": (
        want(1), [FakePod("0", SERVING, ready=False, failed=True)], 5, ["delete 0", "create svc-aaaaa-1"],
    ),
    "a replica that fails at its start is kept for a minute": (
        want(1), [starting("0", failed=True, created_ms=NOW - RETRY_MS + 1)], 5, [],
    ),
    "and then tried again": (
        want(1), [starting("0", failed=True, created_ms=NOW - RETRY_MS)], 5, ["delete 0", "create svc-aaaaa-1"],
    ),
    "a service that cannot run creates nothing and outdates nothing": (
        want(3, revision=None), [serving("0", "old")], 5, [],
    ),
    "a suspect is stood in for at once, replaced when its successor is ready": (
        want(1, suspects=frozenset("0")), [serving("0"), warm("1")], 5, ["1 serving", "0 draining", "delete 0"],
    ),
    "a rollout surges by a quarter, at least by one": (
        want(2), [serving("0", "old"), serving("1", "old")], 5, ["create svc-aaaaa-0"],
    ),
    "the successor is promoted in the tick in which its predecessor leaves": (
        want(1), [serving("0", "old"), starting("1", ready=True)], 5, ["1 serving", "0 draining", "delete 0"],
    ),
    "the only replica waits for its successor": (
        want(1), [serving("0", "old"), starting("1")], 0, [],
    ),
    "a rollout without a free GPU gives way one at a time, a warm one first": (
        want(2, 1), [serving("0", "old"), serving("1", "old"), warm("2", "old")], 0, ["delete 2"],
    ),
    "and waits until that one is gone": (
        want(2, 1), [serving("0", "old"), serving("1", "old"), replace(warm("2", "old"), deleting=True)], 0, [],
    ),
    "a rollout on hold without a free GPU waits": (want(1, hold=True), [serving("0", "old")], 0, []),
    "a stale replica that never became ready goes at once": (
        want(1), [replace(starting("0"), revision="old")], 0, ["delete 0"],
    ),
    "a rollout on hold replaces one for one": (
        want(1, hold=True), [serving("0", "old"), serving("1", "old"), starting("2", ready=True)], 5,
        ["2 warm", "0 draining", "delete 0"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("sentence", TABLE)
def test_situation(sentence: str) -> None:
    wanted, pods, room, expected = TABLE[sentence]
    actions = plan([wanted], {"ns/svc": pods}, {0: room}, NOW)
    assert said(actions) == expected


def test_scarce_gpus_go_to_the_higher_priority() -> None:
    low = replace(want(2), service="ns/low", priority=1)
    high = replace(want(2), service="ns/high", priority=2)
    actions = plan([low, high], {}, {0: 3}, NOW)
    assert said(actions) == ["create high-aaaaa-0", "create high-aaaaa-1", "create low-aaaaa-0"]


def test_a_service_without_devices_needs_no_room() -> None:
    assert len(plan([replace(want(2), gpus=0)], {}, {}, NOW)) == 2


# --- a small world in which actions happen -----------------------------------------------------------------------


@dataclass
class World:
    """Pods that start, become ready and leave; refuses what a real API server would refuse."""

    gpus: int
    pods: dict[str, FakePod] = field(default_factory=dict)
    born: int = 0

    def room(self) -> int:
        return self.gpus - sum(pod.gpus for pod in self.pods.values())

    def act(self, actions: tuple[Action, ...], service: str = "ns/svc") -> None:
        for action in actions:
            match action:
                case Create(name=name, revision=revision):
                    assert name not in {pod.name for pod in self.pods.values()}
                    self.born += 1
                    uid = f"n{self.born}"
                    self.pods[uid] = FakePod(uid, STARTING, ready=False, revision=revision, name=name)
                case SetState(uid=uid, state=state):
                    self.pods[uid] = replace(self.pods[uid], state=state)
                case Delete(uid=uid):
                    self.pods[uid] = replace(self.pods[uid], deleting=True)
            assert self.room() >= min(0, self.start_room), service

    start_room: int = 0

    def time_passes(self) -> None:
        self.pods = {uid: replace(pod, ready=True) for uid, pod in self.pods.items() if not pod.deleting}


PODS = st.lists(
    st.builds(
        FakePod,
        uid=st.uuids().map(str),
        state=st.sampled_from(list(ReplicaState)),
        ready=st.booleans(),
        failed=st.booleans(),
        deleting=st.booleans(),
        revision=st.sampled_from(["aaaaaaaa", "old"]),
        created_ms=st.sampled_from([0, NOW]),
    ),
    max_size=8,
    unique_by=lambda pod: pod.uid,
)


def counts(world: World) -> tuple[int, int]:
    live = [pod for pod in world.pods.values() if not pod.deleting]
    return sum(p.state is SERVING for p in live), sum(p.state is WARM for p in live)


@given(pods=PODS, serve=st.integers(0, 5), park=st.integers(0, 3), spare=st.integers(0, 4))
def test_actions_lead_to_what_is_wanted_and_never_over_the_budget(
    pods: list[FakePod], serve: int, park: int, spare: int
) -> None:
    world = World(max(serve + park, len(pods)) + spare, {pod.uid: pod for pod in pods})
    world.start_room = world.room()
    now = NOW
    for _ in range(40):
        order = tuple(sorted(world.pods))
        wanted = replace(want(serve, park), victims=order)
        live = list(world.pods.values())
        actions = plan([wanted], {"ns/svc": live}, {0: world.room()}, now)
        assert actions == plan([wanted], {"ns/svc": list(reversed(live))}, {0: world.room()}, now)
        world.act(actions)
        world.time_passes()
        now += RETRY_MS
    assert counts(world) == (serve, park)
    assert all(pod.revision == "aaaaaaaa" and not pod.failed for pod in world.pods.values())


@given(pods=PODS, serve=st.integers(0, 5), park=st.integers(0, 3))
def test_on_hold_no_healthy_up_to_date_replica_leaves(pods: list[FakePod], serve: int, park: int) -> None:
    wanted = replace(want(serve, park, hold=True), victims=tuple(pod.uid for pod in pods))
    by_uid = {pod.uid: pod for pod in pods}
    for action in plan([wanted], {"ns/svc": pods}, {0: 9}, NOW):
        if isinstance(action, Delete):
            pod = by_uid[action.uid]
            assert pod.failed or pod.state is DRAINING or pod.revision == "old"


@given(pods=PODS, serve=st.integers(1, 5), park=st.integers(0, 3))
def test_a_rollout_with_room_never_leaves_fewer_ready_than_wanted_or_than_there_were(
    pods: list[FakePod], serve: int, park: int
) -> None:
    pods = [replace(pod, failed=False) for pod in pods]
    wanted = replace(want(serve, park), victims=tuple(pod.uid for pod in pods))
    after = {pod.uid: pod for pod in pods if not pod.deleting and pod.state is not DRAINING}
    before = sum(pod.ready for pod in after.values())
    for action in plan([wanted], {"ns/svc": pods}, {0: 99}, NOW):
        if isinstance(action, Delete):
            after.pop(action.uid, None)
    assert sum(pod.ready for pod in after.values()) >= min(before, serve + park)
