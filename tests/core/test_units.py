"""Exact integer arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest

from forebay.core.units import UNKNOWN, ceil_div, isqrt, known, or_else, segment_sum


@pytest.mark.parametrize("value", [0, 1, 2, 3, 4, 8, 9, 15, 16, 24, 25, 10**6, 10**12 - 1, 10**12, 2**53 + 1, 2**62])
def test_the_square_root_is_exact(value: int) -> None:
    assert isqrt(np.array([value, 0, 7])).tolist() == [math.isqrt(value), 0, 2]


def test_the_square_root_of_nothing_is_nothing() -> None:
    assert isqrt(np.array([], np.int64)).tolist() == []


def test_division_rounds_up() -> None:
    assert ceil_div(np.array([0, 1, 999, 1000, 1001]), 1000).tolist() == [0, 1, 1, 1, 2]


def test_unknown_is_not_zero() -> None:
    column = np.array([0, UNKNOWN, 5])
    assert known(column).tolist() == [True, False, True]
    assert or_else(column, 9).tolist() == [0, 9, 5]


def test_segments_are_summed_whatever_their_order() -> None:
    assert segment_sum(np.array([1, 2, 3, 4]), np.array([2, 0, 2, 0]), 4).tolist() == [6, 0, 4, 0]
