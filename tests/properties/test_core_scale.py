"""A service decides alone as it does among ten thousand, where no budget binds."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from forebay.core.memory import initial_memory
from forebay.core.step import step
from tests.core import crowd
from tests.properties.test_core_step import only, only_fleet, retold

SERVICES = 10_000
REPLICAS_MOST = 10
LOOKS = 12
ALONE = 30  # of the ten thousand, judged once more for themselves


@pytest.mark.parametrize("seed", [1, 2])
def test_a_service_decides_alone_as_among_ten_thousand(seed: int) -> None:
    dice = np.random.default_rng(seed)
    spec = crowd.fleet(dice, SERVICES)
    looks = crowd.looks(dice, spec, dice.integers(0, REPLICAS_MOST + 1, SERVICES))
    rows = dice.choice(SERVICES, ALONE, replace=False).tolist()
    single = {row: only_fleet(spec, row) for row in rows}
    together, alone = initial_memory(spec, 0), {row: initial_memory(single[row], 0) for row in rows}
    moved = 0
    for look in islice(looks, LOOKS):
        together, among = step(spec, together, look)
        for row in rows:
            alone[row], verdict = step(single[row], alone[row], only(look, row))
            assert among.decision(row) == replace(verdict.decision(0), steps=retold(verdict, among, row))
            moved += int(verdict.replicas_serving[0] != verdict.replicas_after[0, 0])
    assert moved > ALONE  # a world in which nothing changes would prove nothing
