"""When the loop ticks, in virtual time; and what it does in a tick, with the real judgement and no cluster."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from forebay.actuate.apply import Result
from forebay.actuate.diff import Action, Create, SetState
from forebay.actuate.errors import RefusedError
from forebay.api.kinds import INFERENCE_SERVICE, SLO_POLICY
from forebay.control.acting import Acting
from forebay.control.judge import Judge, Sources, room, wanted
from forebay.control.loop import EARLY_MS, Loop, Parts
from forebay.control.objects import Objects
from forebay.control.views import Findings, counts_of, gist, problems_of
from forebay.core.reasons import Reason
from forebay.core.units import UNKNOWN
from forebay.observe.cluster import Change
from forebay.observe.pods import wall_ms
from forebay.observe.world import World
from forebay.report.journal import Journal, replay, segments
from forebay.report.metrics import Metrics
from forebay.resolve.defaults import ReplicaDefaults
from forebay.resolve.fleet import Resolver
from tests.observe.test_gather import CREATED, WALL, node, pod, service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from pathlib import Path

    from forebay.actuate.pods import Object

TICK_MS = 1000


class Leading:
    """An election that the test decides."""

    def __init__(self) -> None:
        self.leading = asyncio.Event()
        self.leading.set()
        self.term = 1

    def left_s(self) -> float:
        return 60.0 if self.leading.is_set() else 0.0


class Clocked(Loop):
    """The loop with its tick replaced by a note of the time."""

    def __init__(self, metrics: Metrics) -> None:
        self.ticks: list[int] = []
        self.takes_ms = 0
        self.clock = asyncio.get_running_loop().time
        parts: Any = type("Parts", (), {"metrics": metrics})
        super().__init__(parts, Leading(), self.ms, self.ms, TICK_MS)  # type: ignore[arg-type] # as far as it is asked

    def ms(self) -> int:
        return round(self.clock() * 1000)

    async def _recall(self) -> None:  # type: ignore[explicit-override] # override needs Python 3.12
        pass

    def _tick(self, started_ms: int) -> None:  # type: ignore[explicit-override] # override needs Python 3.12
        self.ticks.append(started_ms)
        if self.takes_ms:
            # Virtual time cannot pass within a tick: let the clock jump as a long tick makes it jump.
            before, jump_s = self.clock, self.takes_ms / 1000
            self.clock = lambda: before() + jump_s


@asynccontextmanager
async def running(loop: Loop) -> AsyncIterator[None]:
    task = asyncio.create_task(loop.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def gaps(ticks: list[int]) -> list[int]:
    return [after - before for before, after in pairwise(ticks)]


@pytest.mark.looptime
async def test_it_ticks_each_second() -> None:
    loop = Clocked(Metrics())
    async with running(loop):
        await asyncio.sleep(5.5)
    assert gaps(loop.ticks) == [TICK_MS] * 5


@pytest.mark.looptime
async def test_a_wake_brings_the_next_tick_forward_and_leaves_the_regular_ones_alone() -> None:
    loop = Clocked(Metrics())
    async with running(loop):
        await asyncio.sleep(0.4)
        loop.wake()
        await asyncio.sleep(2.1)
    assert gaps(loop.ticks) == [400, 600, 1000]


@pytest.mark.looptime
async def test_a_storm_of_wakes_ticks_ten_times_a_second_and_no_more() -> None:
    loop = Clocked(Metrics())
    async with running(loop):
        for _ in range(400):
            loop.wake()
            await asyncio.sleep(0.005)
    assert min(gaps(loop.ticks)) >= EARLY_MS
    assert len(loop.ticks) <= 22


@pytest.mark.looptime
async def test_a_tick_that_takes_too_long_skips_what_it_missed_and_is_counted() -> None:
    metrics = Metrics()
    loop = Clocked(metrics)
    async with running(loop):
        await asyncio.sleep(0.5)
        loop.takes_ms = 2500
        loop.wake()
        await asyncio.sleep(0.01)
        loop.takes_ms = 0
        await asyncio.sleep(2)
    assert metrics.ticks_late._value.get() >= 2
    # No volley of ticks to catch up.
    assert all(gap >= EARLY_MS for gap in gaps(loop.ticks))
    assert len(loop.ticks) <= 6


@pytest.mark.looptime
async def test_it_ticks_only_while_it_leads() -> None:
    loop = Clocked(Metrics())
    election: Any = loop._election
    async with running(loop):
        await asyncio.sleep(1.5)
        election.leading.clear()
        await asyncio.sleep(5)
        seen = len(loop.ticks)
        assert seen <= 3
        election.leading.set()
        await asyncio.sleep(1.5)
    assert len(loop.ticks) == seen + 2


# --- one tick with the real judgement --------------------------------------------------------------------------------


class Recorder:
    """In the actuator's place: remembers the actions, answers as told, never reaches a cluster."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self.manifests: list[Object] = []
        self.error: RefusedError | None = None
        self.held = asyncio.Event()
        self.held.set()

    async def carry_out(self, actions: Iterable[Action], manifest: Callable[[Create], Object]) -> list[Result]:
        done = list(actions)
        self.actions += done
        self.manifests += [manifest(action) for action in done if isinstance(action, Create)]
        await self.held.wait()
        return [Result(action, error=self.error) for action in done]


class Silent:
    """In the telling's place."""

    def tell(self, *_: object) -> dict[str, Any]:
        return {}

    def checkpoint(self, *_: object) -> None:
        pass


class Scene:
    """One service on one node, judged tick by tick."""

    def __init__(self, *services: dict[str, Any], folder: Path | None = None) -> None:
        self.now = 10_000
        self.objects = Objects(lambda: None)
        self.objects.replace(INFERENCE_SERVICE.plural, [_versioned(s) for s in services or (service("a"),)], "1")
        self.world = World("forebay")
        self.world.on_node(Change.CHANGED, self.world.prune_node(node("n1")))
        self.autoscalers: dict[str, str] = {}
        self.nodes_known = True
        readings: Any = {}
        sources = Sources(self.objects, self.world, readings, {}, {}, self.autoscalers, lambda: self.nodes_known)
        self.judge = Judge(sources, Resolver(ReplicaDefaults("vllm:1", "emulated:1", "system:serviceaccount:f:f")))
        self.recorder = Recorder()
        self.metrics = Metrics()
        actuator: Any = self.recorder
        self.acting = Acting(
            actuator, self.world, self.metrics, now_ms=lambda: self.now, wake=lambda: None, pull_policy="IfNotPresent"
        )
        self.journal = Journal(folder, 1 << 30) if folder else None
        silent: Any = Silent()
        scraper: Any = type("Scraper", (), {"garbage": {}, "readings": {}, "garbage_total": 0})

        async def remember(memory: Any) -> tuple[Any, frozenset[str]]:
            return memory, frozenset()

        parts = Parts(
            self.judge, self.acting, silent, self.world, scraper, self.metrics, self.journal, frozenset, remember
        )
        election: Any = Leading()
        self.loop = Loop(parts, election, lambda: self.now, lambda: WALL + self.now, TICK_MS)

    async def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += TICK_MS
            self.loop._tick(self.now)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert self.metrics.ticks_failed._value.get() == 0


def _versioned(raw: dict[str, Any]) -> dict[str, Any]:
    return raw | {"metadata": raw["metadata"] | {"resourceVersion": "1"}}


async def test_a_new_service_gets_its_pod_in_its_first_tick() -> None:
    scene = Scene()
    await scene.tick()
    (create,) = scene.recorder.actions
    assert isinstance(create, Create)
    (made,) = scene.recorder.manifests
    assert made["metadata"]["name"] == create.name
    assert made["metadata"]["annotations"]["forebay.dev/revision"].startswith(create.name.split("-")[1])


async def test_a_service_whose_actions_are_under_way_is_left_alone_and_others_go_on() -> None:
    scene = Scene(service("a"))
    scene.recorder.held.clear()
    await scene.tick(3)
    assert len(scene.recorder.actions) == 1
    scene.objects.replace(INFERENCE_SERVICE.plural, [_versioned(service("a")), _versioned(service("b"))], "1")
    await scene.tick(3)
    assert [action.service for action in scene.recorder.actions] == ["ns/a", "ns/b"]
    assert scene.acting.busy() == {"ns/a", "ns/b"}
    assert scene.acting.promised() == {"ns/a": 1, "ns/b": 1}
    scene.recorder.held.set()
    await asyncio.sleep(0.01)
    assert scene.acting.busy() == frozenset()


async def test_what_is_promised_is_not_promised_again() -> None:
    scene = Scene(service("a"))
    scene.recorder.held.clear()
    await scene.tick()
    judged = scene.judge.look(scene.now + 1, WALL)
    assert room(judged, scene.acting.promised()) == {0: 7}


async def test_a_pool_whose_nodes_are_unknown_has_no_room() -> None:
    scene = Scene(service("a"))
    scene.nodes_known = False
    await scene.tick()
    assert scene.recorder.actions == []


async def test_a_ready_replica_serves_at_the_next_tick() -> None:
    scene = Scene()
    scene.world.on_pod(Change.CHANGED, scene.world.prune_pod(_current(scene, pod("u1", state="starting"))))
    await scene.tick()
    (label,) = scene.recorder.actions
    assert isinstance(label, SetState)
    assert label.state == "serving"


def _current(scene: Scene, raw: dict[str, Any]) -> dict[str, Any]:
    plan = scene.judge.fleet().services[0].plan
    assert plan is not None
    return raw | {"metadata": raw["metadata"] | {"annotations": {"forebay.dev/revision": plan.revision}}}


async def test_a_refusal_is_told_until_the_next_write_succeeds() -> None:
    scene = Scene()
    scene.recorder.error = RefusedError("HTTP 403 Forbidden: quota")
    await scene.tick()
    (problem,) = scene.acting.refused("ns/a")
    assert problem.reason is Reason.WRITE_REFUSED
    assert "quota" in problem.message
    assert not problem.blocking
    scene.recorder.error = None
    await scene.tick()
    assert scene.acting.refused("ns/a") == ()
    assert [event.reason for event in scene.acting.take_events("ns/a")] == ["ReplicaStarted"]
    assert scene.acting.take_events("ns/a") == []


async def test_a_foreign_autoscaler_is_given_way_in_auto_and_is_nobodys_business_in_manual() -> None:
    manual = service("m")
    manual["spec"]["scaling"] = {"mode": "Manual"}
    scene = Scene(service("a"), manual)
    scene.autoscalers["h1"], scene.autoscalers["h2"] = "ns/a", "ns/m"
    judged = scene.judge.look(scene.now, WALL)
    assert judged.foreign == {"ns/a"}
    of = judged.fleet.services[0]
    told = problems_of(of, (), Findings({}, {}, frozenset(), {}), judged.foreign, ())
    assert [problem.reason for problem in told] == [Reason.FOREIGN_AUTOSCALER]


async def test_the_fleet_is_resolved_anew_only_when_something_changed() -> None:
    scene = Scene()
    before = scene.judge.fleet()
    assert scene.judge.fleet() is before
    policy = {"metadata": {"uid": "p", "name": "p", "resourceVersion": "2"}, "spec": {}}
    scene.objects.take(SLO_POLICY.plural, "ADDED", policy)
    assert scene.judge.fleet() is not before


async def test_victims_and_suspects_reach_their_own_service() -> None:
    scene = Scene(service("a"), service("b"))
    for uid, of in (("u1", "a"), ("u2", "b")):
        raw = pod(uid, of, phase="Failed")
        scene.world.on_pod(Change.CHANGED, scene.world.prune_pod(raw))
    judged = scene.judge.look(scene.now, WALL)
    assert [want.victims for want in wanted(judged)] == [("u1",), ("u2",)]


async def test_equal_gists_for_equal_looks_and_another_one_for_another_count() -> None:
    scene = Scene()
    _, first, second = (scene.judge.look(scene.now + i, WALL) for i in range(3))
    of = first.fleet.services[0]
    nothing, one = counts_of(of, ()), counts_of(of, first.pods.get("ns/a", ()))
    assert nothing == one
    assert gist(first, 0, nothing, (), {}) == gist(second, 0, nothing, (), {})
    assert gist(first, 0, nothing, (), {}) != gist(first, 0, nothing, (), {"ns/a": 1000})
    assert UNKNOWN not in {nothing.total, nothing.ready}


async def test_the_journal_of_a_changing_fleet_decides_the_same_bytes_again(tmp_path: Path) -> None:
    scene = Scene(folder=tmp_path)
    await scene.tick(5)
    scene.world.on_pod(Change.CHANGED, scene.world.prune_pod(_current(scene, pod("u1", state="starting"))))
    await scene.tick(5)
    scene.objects.replace(INFERENCE_SERVICE.plural, [_versioned(service("a")), _versioned(service("b"))], "1")
    await scene.tick(5)
    scene.loop._parts.journal.interrupt()  # type: ignore[union-attr] # this scene has one
    await scene.tick(5)
    replayed = replay(tmp_path)
    assert replayed.ticks == 20
    assert replayed.differences == ()
    assert len(segments(tmp_path)) == 2
    assert wall_ms(CREATED) < WALL
