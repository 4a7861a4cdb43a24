"""The simulated engines are the emulated engine, the simulated gateway is the router, and the score is goodness."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.goodness import Goodness, Targets, judge
from forebay.engine_model.bank import BLOCK_TOKENS
from forebay.engine_model.engine import Engine, EngineSettings
from forebay.engine_model.step_time import StepTimes
from forebay.routing import pick
from forebay.routing.replica import Replica
from forebay.sim.datapath import gateway, layout
from forebay.sim.service import Wanted
from tests.sim import build
from tests.sim.build import SECOND

if TYPE_CHECKING:
    from forebay.sim.datapath.layout import DataPath
    from forebay.sim.service import SimulatedService
    from forebay.sim.trace import Trace

PS = 1_000_000  # a microsecond
TIMES = StepTimes(5_000 * PS, 30 * PS, PS // 50, 60 * PS, 700_000)
TOLD = {
    "step_c0_ps": TIMES.c0_ps,
    "step_c1_ps": TIMES.c1_ps,
    "step_c2_ps": TIMES.c2_ps,
    "step_p1_ps": TIMES.p1_ps,
    "step_p2_fs": TIMES.p2_fs,
}


def of_engine(world: SimulatedService, watch: build.Watch, lane: int, **told: int) -> dict[int, list[int]]:
    """Token times of the requests that went to one lane, from the engine that a pod runs; steps end on whole us."""
    trace = world.trace
    longest = int(world.path.clock[layout.MODEL_LEN_MAX])
    blocks = told["kv_tokens_prior"] // BLOCK_TOKENS + 1
    caching = trace.prefix_ids is not None
    engine = Engine(EngineSettings(TIMES, blocks, longest, told["batch_max"], told["step_tokens_max"], caching))
    due = [(end_us, at_us, request) for request, (place, at_us, end_us) in watch.sent_us.items() if place == lane]
    tokens: dict[int, list[int]] = {}
    now_us = 0

    def submit(during_us: int, until_us: int) -> None:
        for one in [one for one in due if one[0] == during_us and one[1] <= until_us]:
            due.remove(one)
            prompt, output = int(trace.prompt_tokens[one[2]]), int(trace.output_tokens[one[2]])
            engine.submit(str(one[2]), prompt, output, hashes(trace, one[2]), one[1] * PS)

    while True:
        duration_ps = engine.begin_step(now_us * PS)
        if duration_ps is None:
            if not due:
                return tokens
            now_us = due[0][1]
            submit(layout.NEVER_US, now_us)
            continue
        now_us += max(1, duration_ps // PS)
        submit(now_us, now_us)
        for running in engine.end_step(now_us * PS).emitted:
            tokens.setdefault(int(running.request_id), []).append(now_us)


def hashes(trace: Trace, request: int) -> list[int]:
    """The blocks of a request's prompt as the simulator names them: so many engine blocks share a trace's id."""
    if trace.prefix_ids is None or trace.prefix_offsets is None:
        return []
    share = max(1, trace.prefix_block_tokens // BLOCK_TOKENS)
    ids = trace.prefix_ids[trace.prefix_offsets[request] : trace.prefix_offsets[request + 1]]
    return [int(name) * share + place for name in ids for place in range(share)]


@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 20),
    told=st.fixed_dictionaries(
        {
            "batch_max": st.integers(1, 6),
            "step_tokens_max": st.integers(8, 300),
            "kv_tokens_prior": st.integers(15, 60).map(lambda blocks: blocks * BLOCK_TOKENS + 5),
        }
    ),
    texts=st.integers(0, 3),
)
def test_each_token_comes_when_the_engine_in_a_pod_would_give_it(
    seed: int, count: int, told: dict[str, int], texts: int
) -> None:
    trace = build.drawn(seed, count, 1, prompt=(1, 150), output=(1, 40), texts=texts)
    with pytest.MonkeyPatch.context() as patch:
        watch = build.Watch(patch)
        world = watch.watch(build.service(trace, serving=2, **TOLD, **told))
        world.advance(60 * SECOND)
    assert len(watch.sent_us) > 0
    for lane in range(2):
        seen = {request: times for request, times in watch.token_us.items() if watch.sent_us[request][0] == lane}
        assert seen == of_engine(world, watch, lane, **told)


# Prices in whole milliseconds: `judge` counts in them, the simulator in microseconds.
WHOLE = {"step_c0_ps": 7_000 * PS, "step_c1_ps": 4_000 * PS, "step_c2_ps": 0, "step_p1_ps": 1_000 * PS, "step_p2_fs": 0}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "classes", [(build.TARGETS, build.TIGHT), (build.TIGHT,)], ids=["two classes", "the tight one"]
)
def test_the_score_is_what_goodness_says_of_every_single_request(
    seed: int, classes: tuple[Targets, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = build.drawn(seed, 80, 20, prompt=(1, 200), output=(1, 150))
    watch = build.Watch(monkeypatch)
    world = watch.watch(build.service(trace, serving=2, classes=classes, batch_max=12, **WHOLE))
    world.advance(90 * SECOND)
    assert len(watch.token_us) == len(trace)
    for kind, targets in enumerate(classes):
        judged = [judged_of(trace, request, times, targets) for request, times in watch.token_us.items()]
        score = world.path.score[kind * layout.SCORES : (kind + 1) * layout.SCORES].tolist()
        assert score == [
            sum(one.good for one in judged),
            sum(one.ttft for one in judged),
            sum(one.itl_mean and one.itl_worst_second for one in judged),
        ]
        assert 0 < score[0] < len(trace), "a world in which all is good, or nothing, would prove little"


def judged_of(trace: Trace, request: int, times: list[int], targets: Targets) -> Goodness:
    since_us = int(trace.arrival_us[request]) - layout.FRONT_END_US
    token_ms = [(at_us - since_us) // 1000 for at_us in times]
    assert all((at_us - since_us) % 1000 == 0 for at_us in times)
    return judge(targets, int(trace.prompt_tokens[request]), token_ms)


def test_a_request_that_was_preempted_for_more_than_a_second_has_that_pause_as_its_worst(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = build.trace_of(*[(place, 40, 120) for place in range(8)])
    watch = build.Watch(monkeypatch)
    patient = Targets(60_000, 0, 60_000, 400)
    world = watch.watch(build.service(trace, serving=1, classes=(patient,), kv_tokens_prior=480, batch_max=8, **WHOLE))
    world.advance(120 * SECOND)
    assert watch.preempted
    good = sum(judged_of(trace, request, times, patient).good for request, times in watch.token_us.items())
    assert 0 < good < len(trace)
    assert int(world.path.score[layout.GOOD]) == good


@pytest.mark.parametrize("seed", range(3))
def test_the_gateway_sends_each_request_where_the_router_would(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    picked = gateway.pick

    def checked(path: DataPath, prompt: int, now_us: int) -> int:
        nonlocal asked
        asked += 1
        lane = picked(path, prompt, now_us)
        ordered = pick.order(book_of(path, now_us), int(prompt), 0, int(now_us) // 1000)
        assert lane == (int(ordered[0].uid) if ordered else -1)
        return lane

    build.run_plain(monkeypatch)
    monkeypatch.setattr(gateway, "pick", checked)
    trace = build.drawn(seed, 150, 10, prompt=(1, 900), output=(1, 90))
    world = build.service(trace, lanes=5, serving=3, kv_tokens_prior=3200, batch_max=6)
    for second in range(1, 20):
        world.advance(second * SECOND)
        if second == 4:
            world.start(1, second * SECOND, ready=True)
            world.settle(Wanted(4, 0), second * SECOND, 0)
    assert asked > len(trace)


def book_of(path: DataPath, now_us: int) -> list[Replica]:
    """What the router's own book would say of each lane."""
    book = []
    for number, open_us in enumerate(path.routable):
        lane = path.lane[number * layout.LANE_FIELDS : (number + 1) * layout.LANE_FIELDS]
        replica = Replica(
            uid=f"{number:03d}", endpoint="", batch_max=int(path.bank.size[1]), routable=open_us <= now_us
        )
        replica.prefill_tokens_per_s, replica.pace = int(lane[layout.RATE]), int(lane[layout.PACE])
        replica.kv_tokens_total = int(path.bank.size[3]) * BLOCK_TOKENS
        replica.kv_tokens_used = int(lane[layout.REPORT_KV_USED])
        replica.pending_tokens = int(lane[layout.PENDING])
        replica.adopted = int(lane[layout.OWN])
        replica.report, replica.report_ms = True, int(now_us) // 1000 - int(now_us - lane[layout.REPORT_US]) // 1000
        book.append(replica)
    return book
