"""The quick benchmark's scorecards: a change of decisions shows in review as a diff of numbers.

Rewrite them with `FOREBAY_GOLDEN=1 python -m pytest tests/sim/bench/test_quick.py` after looking at what changed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from forebay.sim.bench import drive, report
from forebay.sim.bench.case import Inputs
from forebay.sim.bench.cells import all_cells
from forebay.sim.bench.entries import QUICK
from forebay.sim.bench.tables import joined

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests" / "golden" / "scorecards.json"
JUDGES = ("forebay", "keda", "knative-kpa")


@pytest.mark.timeout(900)
def test_the_scorecards_are_the_ones_that_were_reviewed(tmp_path: Path) -> None:
    inputs = Inputs(ROOT / "tests" / "data" / "traces", ROOT / "policies")
    cells = all_cells(QUICK, JUDGES)
    results = drive.run_all(cells, tmp_path / "cells", inputs, processes=2, console=Console(quiet=True))

    cards = {
        f"{row['workload']}, {row['world']}, {row['judge']}": {
            "goodput_permille": round(row["goodput"] * 1000),
            "gpu_minutes": round(row["gpu_hours"] * 60),
            "regret_percent": round(row["regret"] * 100),
            "ttft_ms_p99": row["ttft_ms_p99"],
            "recovery_s": row["recovery_s"],
        }
        for row in joined(results)
    }
    if os.environ.get("FOREBAY_GOLDEN"):
        GOLDEN.write_text(json.dumps(cards, indent=1) + "\n")
    assert cards == json.loads(GOLDEN.read_text())

    report.write(tmp_path / "out", results, report.Origin("forebay bench --quick", "-", "-"))
    assert "| W1 |" in (tmp_path / "out" / "README.md").read_text()
