"""The other side of keeper.py: start a keeper, ask it, and know whether one lives."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from typing import IO, TYPE_CHECKING, Any, cast

from e2e.cluster import cgroups
from e2e.cluster.errors import ClusterError
from e2e.cluster.keeper import LOCK, SOCKET, sweep
from e2e.cluster.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.cluster.layout import Layout


class KeeperClient:
    """One request at a time to the keeper of a cluster."""

    def __init__(
        self, layout: Layout, lifeline: int | None = None, process: subprocess.Popen[bytes] | None = None
    ) -> None:
        self._layout = layout
        self._process = process
        # While this end of the pipe is open, the keeper knows that its owner lives.
        self._lifeline = lifeline

    def ask(self, do: str, **arguments: Any) -> Any:
        """Send one request and return its result; raise ClusterError when the keeper could not do it."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            folder = os.open(self._layout.folder, os.O_PATH)
            try:
                connection.connect(f"/proc/self/fd/{folder}/{SOCKET}")
            finally:
                os.close(folder)
            connection.sendall(json.dumps({"do": do, **arguments}).encode() + b"\n")
            with connection.makefile("rb") as answers:
                line = answers.readline()
        if not line:
            raise ClusterError(f"the keeper of cluster {self._layout.name} ended; see {self._layout.logs}")
        answer = json.loads(line)
        if "error" in answer:
            raise ClusterError(f"{do}: {answer['error']}")
        return answer["result"]

    def detach(self) -> None:
        """Let the cluster outlive this process."""
        self.ask("detach")
        self._drop_lifeline()

    def down(self, *, keep_logs: bool) -> None:
        """Take the cluster down and return when nothing of it is left."""
        lock = (self._layout.folder / LOCK).open()
        with lock:
            try:
                self.ask("down", keep_logs=keep_logs)
            except (ClusterError, OSError):
                # Not listening yet, or already going; a signal is the same request.
                _terminate(lock.read())
            fcntl.flock(lock, fcntl.LOCK_EX)
        if self._process is not None:
            self._process.wait()
        self._drop_lifeline()

    def _drop_lifeline(self) -> None:
        if self._process is not None and self._process.poll() is None:
            # Detached: it is meant to outlive us, so nobody shall warn that it still runs.
            self._process.returncode = 0
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None


def _terminate(pid: str) -> None:
    # The lock is held, so this process lives and the number is its own.
    if pid:
        os.kill(int(pid), signal.SIGTERM)


def stands(layout: Layout) -> bool:
    """Whether a keeper holds this cluster."""
    try:
        with (layout.folder / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def clear(layout: Layout) -> None:
    """Remove what a cluster left whose keeper was killed; the kernel has ended its processes already."""
    cgroups.remove(layout.identity)
    if layout.folder.exists():
        sweep(layout, keep_logs=False)


def start(layout: Layout) -> KeeperClient:
    """Start a keeper whose life hangs on ours."""
    layout.logs.mkdir(parents=True)
    read_end, write_end = os.pipe()
    log = layout.logs / "keeper.log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "e2e.cluster.keeper", layout.name],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=read_end,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )
    os.close(read_end)
    _await_first_line(process, log)
    return KeeperClient(layout, write_end, process)


def _await_first_line(process: subprocess.Popen[bytes], log: Path) -> None:
    with cast("IO[bytes]", process.stdout) as stdout:
        if not stdout.readline():
            raise ClusterError(f"the keeper did not start: {log.read_text()}")
