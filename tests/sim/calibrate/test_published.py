"""The published tables give the figures of docs/benchmark/calibration.md; errors are computed as they say."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest

from forebay.sim.calibrate.published import Engine, Step, form_errors, prior_errors, table_errors
from forebay.sim.calibrate.recording import RecordingError

PUBLISHED = Path(__file__).resolve().parents[2] / "data" / "published"


def test_a_straight_line_has_no_error_of_form() -> None:
    sizes = [(b, b * c, 0, 0) for b in (1, 4, 16) for c in (100, 900)] + [
        (0, 0, n, n * n) for n in (64, 512, 4096, 8192)
    ]
    steps = [Step(*size, 5 + 0.1 * size[0] + 4e-5 * size[1] + 0.02 * size[2] + 1e-6 * size[3]) for size in sizes]
    assert form_errors(steps) == pytest.approx([0] * 5, abs=1e-6)


def test_three_sizes_are_no_table() -> None:
    assert form_errors([Step(1, 100, 0, 0, 5.0)] * 3) == []


def test_a_model_that_the_product_does_not_know_has_no_prior() -> None:
    assert prior_errors(Engine("bloom-176b", "H100", 8), [Step(1, 100, 0, 0, 5.0)]) == []


def test_a_prior_is_compared_with_its_sign() -> None:
    """A decode of one sequence of Llama-3.1-8B on an H100 is assumed to take 6.96 ms and a little."""
    (error,) = prior_errors(Engine("Llama-3.1-8B", "H100", 1), [Step(1, 100, 0, 0, 10.0)])
    assert error == pytest.approx(-0.30, abs=0.01)


def test_each_table_is_there_and_tells_what_it_can() -> None:
    lines = table_errors(PUBLISHED)
    tables = {line.table for line in lines}
    assert tables == {
        "Splitwise",
        "SageServe",
        "SageServe, prompts alone",
        "aiconfigurator, kernel sums",
        "Vidur, without attention",
        "BLIS (simulated)",
    }
    assert all(line.form_median is not None or line.prior_median is not None for line in lines)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"has no splitwise-\*"):
        table_errors(tmp_path)


def test_a_table_with_other_columns_is_named(tmp_path: Path) -> None:
    for path in PUBLISHED.glob("*.gz"):
        shutil.copyfile(path, tmp_path / path.name)
    (tmp_path / "vidur-layer.csv.gz").write_bytes(gzip.compress(b"a,b\n1,2\n"))
    with pytest.raises(RecordingError, match=r"vidur-.* is not the table that it was"):
        table_errors(tmp_path)
