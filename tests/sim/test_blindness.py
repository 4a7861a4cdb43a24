"""The judgement sees what a `/metrics` page offers, and never what is true of the simulated world."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from forebay.core.snapshot import State
from forebay.sim import run as loop
from forebay.sim.datapath import layout
from forebay.sim.run import ForebayJudge, Pool, run
from forebay.sim.service import SimulatedService
from forebay.sim.world import World
from tests.core import build as core_build
from tests.sim import build

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

PRIOR = {"step_c0_ps": 20_000_000_007, "step_c1_ps": 500_000_003, "step_c2_ps": 30_011, "step_p1_ps": 100_000_019}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every number, text and array inside; anything else is nothing that the judgement may be handed."""
    if is_dataclass(value):
        for field in fields(value):
            yield from leaves(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, tuple | list):
        for place, item in enumerate(value):
            yield from leaves(item, f"{path}[{place}]")
    else:
        assert isinstance(value, int | str | np.ndarray | np.integer), f"{path} is a {type(value).__name__}"
        yield path, value


def test_step_is_handed_no_constant_of_the_world_and_no_array_of_its(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = core_build.fleet(PRIOR, gpus_max=12)
    trace = build.drawn(1, 400, 60, prompt=(10, 900), output=(1, 90))
    world = World(3, cold_s=30, cold_sd_s=2)
    one = SimulatedService(trace, fleet, 0, classes=(build.TARGETS,), world=world, lanes=16)
    told = {name: getattr(fleet, name).tobytes() for name in PRIOR}
    owned = build.columns(one)
    looks = 0
    real = loop.step

    def step(*given: Any) -> Any:
        nonlocal looks
        looks += 1
        secret = secrets(one, world)
        for path, leaf in leaves(given):
            if isinstance(leaf, np.ndarray):
                assert not any(np.shares_memory(leaf, column) for column in owned.values()), path
                assert not secret & set(leaf.ravel().tolist()), path
            else:
                assert leaf not in secret, path
        return real(*given)

    monkeypatch.setattr(loop, "step", step)
    run([one], ForebayJudge(fleet, [Pool((0,), 12)]), [2])
    assert looks > 100
    assert one.replicas_made > 2
    assert {name: getattr(fleet, name).tobytes() for name in PRIOR} == told
    # The world is another one indeed: no replica has the prior's constants.
    assert not {value for name, value in PRIOR.items()} & set(one.path.times.tolist())


def secrets(one: SimulatedService, world: World) -> set[int]:
    """True step times, the states of the dice, and when those that start will be ready."""
    starting = one.state == State.STARTING
    drawn = [one.path.times, one.path.lane[layout.DICE :: layout.LANE_FIELDS]]
    drawn += [column[starting] // 1000 for column in (one.ready_us, one.start_us)]
    numbers = {int(value) for column in drawn for value in column}
    for number in range(one.replicas_made + 4):  # and of those that may come
        true, _, dice = world.replica(one.prior, one.row, number)
        numbers |= {*true.tolist(), dice}
    return {number for number in numbers if number > 10_000}  # a count may be as small by chance


def test_nothing_that_judges_or_serves_loads_the_simulator() -> None:
    program = (
        "import sys, forebay.core.step, forebay.core.codec, forebay.routing.book, forebay.engine_model.engine,"
        "forebay.resolve.fleet, forebay.control.judge, forebay.gateway.desk;"
        "print([name for name in sys.modules if name.startswith('forebay.sim')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
