"""The compressed demo on a real Kubernetes: ninety seconds, a fivefold burst, and the demo's own exit rule."""

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.cluster
@pytest.mark.timeout(1200)
def test_the_compressed_demo_keeps_its_promise_and_its_journal_replays(tmp_path: Path) -> None:
    argv = (sys.executable, "-m", "e2e.demo", "--compressed", "--out", str(tmp_path / "out"))
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6000:] + done.stdout
    report = orjson.loads((tmp_path / "out" / "report.json").read_bytes())
    assert report["requests"]["lost"] == 0
    assert report["journal"]["replay_differences"] == []
    for service, counts in report["gateways"]["after"].items():
        # The gateway's own book closes as well, and tells of as many requests as were sent.
        ends = sum(counts[f"{end}_total"] for end in ("answered", "refused", "aborted", "failed"))
        before = report["gateways"]["before"].get(service, {})
        assert counts["admitted_total"] == ends
        sent = report["services"][service]["requests"]["admitted"]
        assert counts["arrivals_total"] - before.get("arrivals_total", 0) == sent
