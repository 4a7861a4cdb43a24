"""The cluster's own part of the machine's control groups, for the old hierarchies (v1) and the unified one (v2)."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_GONE_WITHIN_S = 10.0


def _hierarchies() -> list[Path]:
    if (_ROOT / "cgroup.controllers").exists():
        return [_ROOT]
    return [path for path in _ROOT.iterdir() if (path / "cgroup.procs").exists() and not path.is_symlink()]


def _make(group: Path) -> None:
    group.mkdir(exist_ok=True)
    # v1: a fresh cpuset holds no processor and no memory node, and a process cannot enter it.
    for name in ("cpuset.cpus", "cpuset.mems"):
        file = group / name
        if (group / "cpuset.cpu_exclusive").exists() and not file.read_text().strip():
            file.write_text((group.parent / name).read_text())
    # v2: children get the controllers that their parent hands down.
    control = group.parent / "cgroup.subtree_control"
    if control.exists():
        for controller in (group.parent / "cgroup.controllers").read_text().split():
            with suppress(OSError):
                control.write_text(f"+{controller}")


def create(identity: str, node: str) -> None:
    """Make the node's group (the kubelet's root) and `system` below it, where the node's own daemons live."""
    for hierarchy in _hierarchies():
        for group in (hierarchy / identity, hierarchy / identity / node, hierarchy / identity / node / "system"):
            _make(group)


def entrances(identity: str, node: str) -> list[str]:
    """List the files into which a process writes 0 to become a daemon of the node."""
    return [str(hierarchy / identity / node / "system" / "cgroup.procs") for hierarchy in _hierarchies()]


def remove(identity: str) -> list[Path]:
    """Remove all groups of the cluster, whose processes are dead or dying; return what could not be removed."""
    deadline = time.monotonic() + _GONE_WITHIN_S
    while True:
        left = [hierarchy / identity for hierarchy in _hierarchies() if (hierarchy / identity).exists()]
        for top in left:
            for group in sorted((path for path in top.rglob("*") if path.is_dir()), reverse=True):
                with suppress(OSError):
                    group.rmdir()
            with suppress(OSError):
                top.rmdir()
        left = [top for top in left if top.exists()]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)
