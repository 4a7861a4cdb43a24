"""The worst second since a step, kept on a stack, is what trying all seconds gives."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from forebay.sim.datapath import layout, scores
from tests.sim import build
from tests.sim.build import SECOND


def worst(gaps_us: list[int]) -> list[int]:
    """`worst_since` of every step of a lane whose steps took so long, asked at the end."""
    path = build.service(build.trace_of((0, 1, 1)), lanes=1).path
    now_us = 0
    for gap_us in gaps_us:
        now_us += gap_us
        path.lane[layout.STEP] += 1
        scores.note_end(path, 0, now_us)
    return [int(scores.worst_since(path, 0, step)) for step in range(1, len(gaps_us) + 1)]


def tried(gaps_us: list[int]) -> list[int]:
    """The same by trying every second that begins with a step's end and ends with the first one a second later."""
    ends = [0, *accumulate(gaps_us)]
    means = [0] * len(ends)
    for begun in range(1, len(ends)):
        closed = next((step for step in range(begun, len(ends)) if ends[step] - ends[begun] >= SECOND), None)
        if closed is not None:
            means[begun] = (ends[closed] - ends[begun]) // (closed - begun)
    return [max(means[step:]) for step in range(1, len(ends))]


@given(st.lists(st.one_of(st.integers(4_000, 90_000), st.integers(4_000, 3_000_000)), min_size=1, max_size=120))
def test_the_worst_second_is_the_one_that_trying_all_finds(gaps_us: list[int]) -> None:
    assert worst(gaps_us) == tried(gaps_us)


def test_a_lane_that_speeds_up_a_thousand_times_in_a_row_forgets_its_slowest_seconds_only() -> None:
    gaps_us = [2_000_000 - 500 * place for place in range(layout.STACK + 60)]
    kept, all_of_them = worst(gaps_us), tried(gaps_us)
    assert kept[59:] == all_of_them[59:]
    assert 0 < kept[0] < all_of_them[0]


def test_where_a_second_has_more_steps_than_are_remembered_none_is_judged() -> None:
    assert worst([500] * 3000) == [0] * 3000
