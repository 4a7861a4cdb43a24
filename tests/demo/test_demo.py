"""The whole path in 90 seconds, held to the demo's own rule: nothing lost, and 95 % good."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

# A burst that meets a busy machine is late for reasons that no decision can mend, and a machine that has an idle
# processor in most seconds may lack it in the two that decide: on one with 55 % of this one's speed goodput fell by a
# point and a half. So a play that misses is played again; what no machine can excuse is asserted of every play.
PLAYS = 3


def play(out: Path) -> tuple[int, dict[str, Any], str]:
    """Play once; return the exit code, the report, and what was printed."""
    done = subprocess.run(
        (sys.executable, "-m", "e2e.demo", "--compressed", "--out", str(out)),
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        env={**os.environ, "COLUMNS": "160"},
    )
    report = json.loads((out / "report.json").read_text()) if (out / "report.json").exists() else {}
    return done.returncode, report, f"{done.stdout}\n{done.stderr}"


def check_the_gateways_book(report: dict[str, Any]) -> None:
    """The gateway's own book closes as well, and tells of as many requests as were sent."""
    for service, counts in report["gateways"]["after"].items():
        ends = sum(counts[f"{end}_total"] for end in ("answered", "refused", "aborted", "failed"))
        before = report["gateways"]["before"].get(service, {})
        assert counts["admitted_total"] == ends
        sent = report["services"][service]["requests"]["admitted"]
        assert counts["arrivals_total"] - before.get("arrivals_total", 0) == sent


@pytest.mark.cluster
@pytest.mark.timeout(2700)
def test_the_compressed_demo_holds_its_own_rule(tmp_path: Path) -> None:
    for place in range(PLAYS):
        code, report, said = play(tmp_path / str(place))
        assert report, said
        # However busy the machine was: nobody is lost, and the journal replays.
        assert report["requests"]["lost"] == 0, said
        assert report["journal"]["replay_differences"] == [], said
        check_the_gateways_book(report)
        if code == 0:
            break
    assert code == 0, said
