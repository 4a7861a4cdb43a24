"""`make verify`: every rule of the house that a machine can check, one line each, all of them even when one fails."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent

CHECKS: tuple[tuple[str, list[str]], ...] = (
    ("generated files are current", [sys.executable, "operator/dev/generate.py", "--check"]),
    ("format", [str(BIN / "ruff"), "format", "--check", "-q", "."]),
    ("lint", [str(BIN / "ruff"), "check", "-q", "."]),
    ("types", [str(BIN / "mypy"), "--no-error-summary"]),
    ("layers", [str(BIN / "lint-imports"), "--no-cache"]),
    ("dependencies are declared and used", [str(BIN / "deptry"), "operator/forebay", "replica_image/forebay_replica"]),
    ("locked versions are current", ["uv", "lock", "--check", "-q"]),
)


def changed() -> str:
    """List the files that differ from HEAD or are untracked; empty in a clean tree."""
    done = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def run(command: list[str]) -> tuple[bool, str]:
    """Run one check from the repository's root and return whether it passed, and what it printed."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode == 0, (done.stdout + done.stderr).strip()


def main() -> int:
    """Run all checks; return 0 only if every one passed and none of them changed a file."""
    before = changed()
    failed = []
    for name, command in CHECKS:
        start = time.monotonic()
        good, output = run(command)
        print(f"{'ok  ' if good else 'FAIL'} {name} ({time.monotonic() - start:.1f} s)", flush=True)
        if not good:
            failed.append(name)
            print(output, flush=True)
    if (after := changed()) != before:
        failed.append("clean tree")
        print(f"FAIL the checks changed files:\n{after}", flush=True)
    if failed:
        print(f"verify: {len(failed)} failed: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
