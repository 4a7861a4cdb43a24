"""The engine's processes: started as one group, watched, and never left behind.

A supervisor is PID 1 of its container, so every orphan becomes its child and has to be reaped; elsewhere it asks the
kernel for the same. Measured with vLLM 0.32: a killed API server leaves its EngineCore alive, holding the GPU's memory,
so whatever ends an engine ends with SIGKILL for the group.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay_replica.engine_vllm import EngineCommand

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_GONE_POLL_S = 0.02
_GONE_PATIENCE_S = 10.0  # a process in the kernel's hands (freeing GPU memory) dies late


class ProcessGroup:
    """One engine's processes. Lives in a running event loop, and owns SIGCHLD there."""

    def __init__(self, command: EngineCommand) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int] = self._loop.create_future()  # exit code of the first process, -n for signal n

    def start(self) -> None:
        """Start the engine as the leader of a session and group of its own.

        Raises
        ------
        OSError
            When there is no such program, or it may not be run.
        """
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap)
        self._process = subprocess.Popen(  # noqa: S603 - starting the configured engine is what this is for
            self._command.argv, env=self._command.environment, stdin=subprocess.DEVNULL, start_new_session=True
        )

    def terminate(self) -> None:
        """Ask the first process to end; the others are its own affair."""
        if self._process is not None and not self.exited.done():
            os.kill(self._process.pid, signal.SIGTERM)

    async def kill(self) -> None:
        """End whatever is left of the group and wait until it is gone."""
        if self._process is None:
            return
        deadline = self._loop.time() + _GONE_PATIENCE_S
        # The kernel tells of no end of a group, so it is looked for.
        while self._send_group(signal.SIGKILL) and self._loop.time() < deadline:  # noqa: ASYNC110 - see above
            await asyncio.sleep(_GONE_POLL_S)

    def _send_group(self, number: signal.Signals) -> bool:
        """Send a signal to all; False when nobody is left."""
        assert self._process is not None  # noqa: S101 - kill() looked
        self._reap()
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return False
        return True

    def _reap(self) -> None:
        """Collect every child that ended, orphans of the engine included."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self._process is not None and pid == self._process.pid:
                code = os.waitstatus_to_exitcode(status)
                self._process.returncode = code
                self.exited.set_result(code)
