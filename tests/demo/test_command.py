"""The command as a whole, where it cannot play: it says why at once and has its own exit code."""

import subprocess
import sys
from pathlib import Path

from e2e.demo.__main__ import NO_SCORE

ROOT = Path(__file__).resolve().parents[2]


def demo(*arguments: str, path: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "e2e.demo", *arguments]
    return subprocess.run(argv, cwd=ROOT, env={"PATH": path}, capture_output=True, text=True, check=False)


def test_without_kubectl_there_is_no_current_cluster(tmp_path: Path) -> None:
    done = demo("--cluster", "current", "--out", str(tmp_path / "out"), path=str(tmp_path))
    assert done.returncode == NO_SCORE
    assert done.stderr.strip() == "The demo could not be played: CLUSTER=current needs kubectl in PATH."


def test_a_cluster_that_does_not_answer_is_no_score(tmp_path: Path) -> None:
    for name in ("kubectl", "helm"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\necho 'error: current-context is not set' >&2\nexit 1\n")
        program.chmod(0o755)
    done = demo("--cluster", "current", "--out", str(tmp_path / "out"), path=f"{tmp_path}:/bin:/usr/bin")
    assert done.returncode == NO_SCORE
    assert "current-context is not set" in done.stderr
    assert "Traceback" not in done.stderr
