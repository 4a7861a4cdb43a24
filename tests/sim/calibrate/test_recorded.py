"""The engine model against the recorded vLLM: docs/benchmark/calibration.md holds what comes out, good or bad."""

from __future__ import annotations

from pathlib import Path

from forebay.sim.calibrate.compare import Row, calibrate
from forebay.sim.calibrate.recording import read_folder

ROOT = Path(__file__).resolve().parents[3]
RECORDINGS = ROOT / "tests" / "data" / "calibration"
DOCUMENT = ROOT / "docs" / "benchmark" / "calibration.md"


def line(row: Row) -> str:
    """One line of the document's table, up to its verdict."""
    return (
        f"| {row.load} | {row.signal} p{row.percentile} | {row.predicted_us / 1000:.1f} | {row.measured_us / 1000:.1f} "
        f"| {row.error_permille / 10:+.1f} % | {row.between_runs_permille / 10:.1f} % "
        f"| {row.allowed_permille / 10:.1f} % | {'yes' if row.within else 'no'} |"
    )


def test_the_document_shows_what_the_recordings_give() -> None:
    comparison = calibrate(read_folder(RECORDINGS))
    document = DOCUMENT.read_text(encoding="utf-8")
    assert [text for text in map(line, comparison.rows) if text not in document] == []
    for load, (predicted, measured) in comparison.preemptions.items():
        assert f"{load}: {predicted} predicted, {measured} counted" in document
