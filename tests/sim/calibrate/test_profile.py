"""A profile file is what the constants are handed on in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay.sim.calibrate.compare import Comparison, Row
from forebay.sim.calibrate.fit import Fit
from forebay.sim.calibrate.profile import Profile, ProfileError, read, write
from tests.sim.calibrate.engines import FACTS, TIMES

if TYPE_CHECKING:
    from pathlib import Path

FIT = Fit(TIMES, front_us=3_000, noise_permille=20, errors_permille={"c0": 1}, rows=9, rows_left_out=0)
ROW = Row("mixed", "TTFT", 99, predicted_us=90, measured_us=100, error_permille=-100, between_runs_permille=10)
PROFILE = Profile.of(FACTS, Comparison(FIT, (ROW,), {}))


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "profile.json"
    write(PROFILE, path)
    assert read(path) == PROFILE
    assert read(path).times == TIMES
    assert '"c0Ps": 12000000000' in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("forebay-engine-profile/1", "other/1", "format"),
        ('"c0Ps": 12000000000', '"c0Ps": "fast"', "stepTimes.c0Ps"),
        ('"frontUs"', '"backUs"', "frontUs"),
        ("{", "", "the file"),
    ],
)
def test_a_file_that_is_no_profile_is_named_with_its_fault(old: str, new: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    write(PROFILE, path)
    path.write_text(path.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ProfileError, match=f"profile.json is no profile of an engine: {said}"):
        read(path)


def test_a_missing_file_says_what_writes_one(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="forebay calibrate"):
        read(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("percentile", "error", "between", "within"),
    [(50, 50, 0, True), (50, -51, 0, False), (50, -60, 40, True), (99, 100, 0, True), (99, 151, 100, False)],
)
def test_a_prediction_may_be_off_by_the_aim_or_half_as_much_again_as_the_engine_from_itself(
    percentile: int, error: int, between: int, within: bool
) -> None:
    assert Row("l", "ITL", percentile, 1, 1, error, between).within is within
