"""Histograms that forget by halving."""

from __future__ import annotations

import numpy as np
import pytest

from forebay.core import histogram


def test_an_observation_counts_in_its_bin_and_beyond_the_ends_in_the_last_one() -> None:
    counts = np.zeros((4, 3), np.int64)
    where = np.array([True, True, True, False])
    after = histogram.add(counts, where, np.array([1, -5, 99, 0]), limit=10)
    assert after.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 0]]
    assert counts.sum() == 0


def test_a_full_histogram_is_halved() -> None:
    after = histogram.add(np.array([[8, 2], [1, 1]]), np.array([True, True]), np.array([0, 0]), limit=10)
    assert after.tolist() == [[4, 1], [2, 1]]


@pytest.mark.parametrize(
    ("counts", "permille", "expected"),
    [
        pytest.param([0, 0, 0], 750, 0, id="an empty histogram says the first bin"),
        pytest.param([1, 1, 2], 500, 1, id="half of four lies at or below the second bin"),
        pytest.param([1, 1, 2], 501, 2, id="a little more than half does not"),
        pytest.param([99, 1, 0], 990, 0, id="99 of 100 are 99 per cent"),
        pytest.param([98, 1, 1], 990, 1, id="98 of 100 are not"),
        pytest.param([0, 0, 5], 0, 0, id="nothing of it lies below the first bin"),
    ],
)
def test_quantiles(counts: list[int], permille: int, expected: int) -> None:
    assert histogram.quantile(np.array([counts]), permille).tolist() == [expected]
