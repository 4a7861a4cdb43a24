"""What holds for every input of the judgement."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from forebay.core import codec
from forebay.core.fleet import FleetSpec, Mode
from forebay.core.memory import Memory, initial_memory
from forebay.core.snapshot import Snapshot, State
from forebay.core.step import STAGES, step
from forebay.core.units import UNKNOWN, segment_sum
from tests.core import build

COUNTS = st.one_of(st.integers(0, 40), st.sampled_from([0, 10**6, 2**61, UNKNOWN]))
TOTALS = st.one_of(st.integers(0, 10**6), st.sampled_from([0, 2**61, UNKNOWN]))
COUNTERS = (
    "prompt_tokens_total",
    "generation_tokens_total",
    "prefix_query_tokens_total",
    "prefix_hit_tokens_total",
    "requests_finished_total",
    "ttft_sum_ms",
    "itl_sum_ms",
)
AGES = st.sampled_from([0, 0, 0, 900, 3000, 3001, 60_000, UNKNOWN])

SERVICES = st.fixed_dictionaries(
    {
        "mode": st.sampled_from([Mode.AUTO] * 4 + [Mode.MANUAL, Mode.PAUSED]),
        "batch_class": st.booleans(),
        "blocked": st.sampled_from([False] * 5 + [True]),
        "replicas_manual": st.integers(0, 9),
        "replicas_min": st.integers(0, 3),
        "replicas_max": st.integers(3, 30),
        "idle_ms": st.sampled_from([1000, 30_000]),
        "scale_down_delay_ms": st.sampled_from([0, 2000, 120_000]),
        "priority": st.integers(0, 2),
        "ttft_target_ms": st.sampled_from([1, 500, 600_000]),
        "itl_mean_ms": st.sampled_from([5, 50]),
        "burst_multiplier_milli": st.sampled_from([1000, 5000]),
        "headroom_milli": st.sampled_from([0, 150, 3000]),
        "warm_gpus_max": st.integers(0, 8),
        "gpus_per_replica": st.sampled_from([0, 1, 4]),
        "batch_max": st.sampled_from([1, 8, 256]),
        "kv_tokens_prior": st.sampled_from([UNKNOWN, 10, 100_000]),
        "step_c0_ps": st.sampled_from([UNKNOWN, 20 * build.PS_PER_MS, 10**15]),
        "step_p1_ps": st.sampled_from([UNKNOWN, build.PS_PER_MS // 10, 10**12]),
        "step_p2_fs": st.sampled_from([UNKNOWN, 700, 10**9]),
    }
)
REPLICAS = st.fixed_dictionaries(
    {
        "state": st.sampled_from(State),
        "age_ms": AGES,
        "ready": st.sampled_from([True, True, False]),
        "failed": st.sampled_from([False] * 4 + [True]),
        "unschedulable": st.sampled_from([False] * 4 + [True]),
        "outdated": st.booleans(),
        "since_created_ms": st.integers(0, 300_000),
        "requests_running": COUNTS,
        "requests_waiting": COUNTS,
        "kv_tokens_total": TOTALS,
        "kv_tokens_used": TOTALS,
        **dict.fromkeys((*COUNTERS, "ttft_count", "itl_count"), TOTALS),
    }
)
GATEWAYS = st.fixed_dictionaries(
    {
        "age_ms": AGES,
        "requests_held": COUNTS,
        "held_prompt_tokens": TOTALS,
        "held_oldest_ms": TOTALS,
        "arrivals_total": TOTALS,
        "arrival_prompt_tokens_total": TOTALS,
    }
)
GPUS = st.one_of(st.integers(0, 40), st.just(UNKNOWN))


@st.composite
def worlds(draw: st.DrawFn, most: int = 4, gpus: st.SearchStrategy[int] = GPUS) -> tuple[FleetSpec, list[Snapshot]]:
    """A fleet and a few looks at it, a second or less apart, after the windows have filled."""
    spec = build.fleet(*draw(st.lists(SERVICES, min_size=1, max_size=most)), gpus_max=draw(gpus))
    count = len(spec.services)
    now_ms = 100_000
    looks = []
    for _ in range(draw(st.integers(1, 4))):
        now_ms += draw(st.sampled_from([0, 150, 1000, 7000, 200_000]))
        rows = draw(st.lists(REPLICAS, max_size=3 * count))
        replicas = [
            row | {"uid": f"r{place:02}", "service": place % count, "gpus": int(spec.gpus_per_replica[place % count])}
            for place, row in enumerate(rows)
        ]
        gateways = [draw(GATEWAYS) | {"uid": uid, "service": row} for uid in ("g0", "g1") for row in range(count)]
        looks.append(
            build.snapshot(
                now_ms,
                replicas,
                gateways[: draw(st.sampled_from([0, count, 2 * count]))],
                gateways_expected=draw(st.integers(0, 2)),
                allocatable=draw(gpus),
                foreign=draw(st.integers(0, 3)),
            )
        )
    return spec, looks


def judge(spec: FleetSpec, looks: list[Snapshot]) -> list[tuple[Memory, Any]]:
    memory = initial_memory(spec, 0)
    said = []
    for look in looks:
        memory, decisions = step(spec, memory, look)
        said.append((memory, decisions))
    return said


@given(worlds())
def test_numbers_stay_whole_and_small(world: tuple[FleetSpec, list[Snapshot]]) -> None:
    for memory, decisions in judge(*world):
        assert decisions.replicas_after.dtype == np.int64
        assert (decisions.replicas_after >= 0).all()
        assert (decisions.replicas_after <= 10**6 + 10**6 * 4).all()
        assert (decisions.replicas_warm >= 0).all()
        for field in fields(memory.learned):
            column = getattr(memory.learned, field.name)
            assert ((column >= 0) & (column < 2**61)).all(), field.name
        for stage in decisions.inputs:
            for name, column in stage:
                assert column.dtype == np.int64, name
                assert ((column == UNKNOWN) | (np.abs(column) < 2**62)).all(), name


@given(worlds())
def test_bounds_are_never_broken(world: tuple[FleetSpec, list[Snapshot]]) -> None:
    spec, looks = world
    driven = (spec.mode == Mode.AUTO) & ~spec.blocked
    least = np.where(spec.batch_class, spec.replicas_min, np.maximum(spec.replicas_min, 1))
    for _, decisions in judge(spec, looks):
        bounded = decisions.replicas_after[STAGES.index("bounds")]
        assert (bounded[driven] >= least[driven]).all()
        assert (bounded[driven] <= spec.replicas_max[driven]).all()


@given(worlds())
def test_a_pool_is_never_promised_more_gpus_than_it_has_or_than_cannot_be_taken_away(
    world: tuple[FleetSpec, list[Snapshot]],
) -> None:
    spec, looks = world
    last = None
    for look, (_, decisions) in zip(looks, judge(spec, looks), strict=True):
        rows = look.replicas
        there = segment_sum(rows.gpus * (rows.state != State.DRAINING), rows.service, len(spec.services))
        available = 2**62 if spec.gpus_max[0] == UNKNOWN else int(spec.gpus_max[0])
        if look.gpus_allocatable[0] != UNKNOWN:
            available = min(available, max(0, int(look.gpus_allocatable[0] - look.gpus_foreign[0])))
        granted = (decisions.replicas_serving + decisions.replicas_warm) * spec.gpus_per_replica
        # Beyond the budget only what is there already: what may not be removed, or not all in one tick.
        assert granted.sum() <= max(available, there.sum()) or (granted <= there).all()
        if look.gpus_allocatable[0] == UNKNOWN:
            assert (granted <= there).all()
        last = decisions
    assert last is not None


@given(worlds(gpus=st.just(UNKNOWN)))
def test_nothing_is_removed_while_something_needed_is_unknown(world: tuple[FleetSpec, list[Snapshot]]) -> None:
    spec, looks = world
    driven = (spec.mode == Mode.AUTO) & ~spec.blocked
    before: Any = None
    for memory, decisions in judge(spec, looks):
        if before is not None:
            held = driven & decisions.hold
            assert (memory.safety.replicas_serving[held] >= before.replicas_serving[held]).all()
            totals = (safety.replicas_serving + safety.replicas_warm for safety in (memory.safety, before))
            after, earlier = (total[held] for total in totals)
            assert (after >= np.minimum(earlier, spec.replicas_max[held])).all()
        before = memory.safety


@given(worlds(gpus=st.just(10**6)), st.integers(0, 60), st.integers(0, 60), st.integers(0, 60))
def test_more_demand_never_asks_for_less(
    world: tuple[FleetSpec, list[Snapshot]], arrivals: int, held: int, waiting: int
) -> None:
    spec, looks = world
    said = judge(spec, looks)
    memory = said[-2][0] if len(said) > 1 else initial_memory(spec, 0)
    look = looks[-1]
    prompt = max(1, 2**20)  # as long as any, so that no mean grows shorter
    more = replace(
        look,
        gateways=replace(
            look.gateways,
            arrivals_total=raised(look.gateways.arrivals_total, arrivals),
            arrival_prompt_tokens_total=raised(look.gateways.arrival_prompt_tokens_total, arrivals * prompt),
            requests_held=raised(look.gateways.requests_held, held),
            held_prompt_tokens=raised(look.gateways.held_prompt_tokens, held * prompt),
        ),
        replicas=replace(look.replicas, requests_waiting=raised(look.replicas.requests_waiting, waiting)),
    )
    _, less_asked = step(spec, memory, look)
    _, more_asked = step(spec, memory, more)
    last = STAGES.index("bounds") + 1
    assert (more_asked.replicas_after[:last] >= less_asked.replicas_after[:last]).all()


def raised(column: Any, by: int) -> Any:
    return np.where(column == UNKNOWN, UNKNOWN, column + by)


@given(worlds())
def test_equal_inputs_give_equal_bytes(world: tuple[FleetSpec, list[Snapshot]]) -> None:
    spec, looks = world
    for (memory, decisions), (again, same) in zip(judge(spec, looks), judge(spec, looks), strict=True):
        assert codec.encode_memory(memory) == codec.encode_memory(again)
        assert codec.encode_decisions(decisions) == codec.encode_decisions(same)


@given(worlds())
def test_a_replay_from_bytes_gives_the_same_bytes(world: tuple[FleetSpec, list[Snapshot]]) -> None:
    spec, looks = world
    told = codec.decode_fleet(codec.encode_fleet(spec))
    memory = codec.decode_memory(codec.encode_memory(initial_memory(spec, 0)))
    for look, (_, decisions) in zip(looks, judge(spec, looks), strict=True):
        memory, replayed = step(told, memory, codec.decode_snapshot(codec.encode_snapshot(look)))
        memory = codec.decode_memory(codec.encode_memory(memory))
        assert codec.encode_decisions(replayed) == codec.encode_decisions(decisions)


@given(worlds(gpus=st.just(10**6)))
def test_a_service_alone_decides_as_among_many(world: tuple[FleetSpec, list[Snapshot]]) -> None:
    spec, looks = world
    together = judge(spec, looks)
    for row in range(len(spec.services)):
        alone = judge(only_fleet(spec, row), [only(look, row) for look in looks])
        for (_, among), (_, single) in zip(together, alone, strict=True):
            assert among.decision(row) == replace(single.decision(0), steps=retold(single, among, row))


def retold(single: Any, among: Any, row: int) -> Any:
    """Leave out the one number that speaks of the whole pool."""
    steps = []
    for mine, theirs in zip(single.decision(0).steps, among.decision(row).steps, strict=True):
        whole = dict(theirs.inputs)
        inputs = tuple((name, whole[name] if name == "gpus_used" else value) for name, value in mine.inputs)
        steps.append(replace(mine, inputs=inputs))
    return tuple(steps)


def only_fleet(spec: FleetSpec, row: int) -> FleetSpec:
    columns = {
        field.name: getattr(spec, field.name)[row : row + 1]
        for field in fields(spec)
        if field.name not in {"pools", "gpus_max"}
    }
    return FleetSpec(pools=spec.pools, gpus_max=spec.gpus_max, **columns)


def only(look: Snapshot, row: int) -> Snapshot:
    def some(rows: Any) -> Any:
        mine = np.flatnonzero(rows.service == row)
        columns = {field.name: getattr(rows, field.name)[mine] for field in fields(rows) if field.name != "uid"}
        columns["service"] = np.zeros(len(mine), np.int64)
        return type(rows)(uid=tuple(rows.uid[place] for place in mine), **columns)

    return replace(look, replicas=some(look.replicas), gateways=some(look.gateways))
