"""Run programs: loudly when they fail, and never longer than we live."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from e2e.cluster.errors import CommandFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# The kernel kills the program when the process that started it dies, however it dies.
DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")

# Mounts made by the program vanish with it, and so does every process that it leaves behind.
_OWN_VIEW = ("--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private")
CONTAINED = (*DIES_WITH_US, "unshare", *_OWN_VIEW)


def run(
    argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None, stdin: str | None = None
) -> str:
    """Run to the end and return what was printed; raise CommandFailed with both streams when it fails."""
    done = subprocess.run(
        argv,
        env={**os.environ, **(env or {})},
        cwd=cwd,
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CommandFailed(argv, done.returncode, done.stdout + done.stderr)
    return done.stdout
