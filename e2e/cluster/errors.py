"""What can go wrong with a local cluster, in one small tree.

The tree:

    ClusterError
     +-- MachineUnfit      this machine cannot carry a cluster at all
     +-- CommandFailed     a program that we need ended with an error
     +-- NeverReady        something did not reach the state that was waited for
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class ClusterError(Exception):
    """Something about the local cluster failed; the message is for people."""


class MachineUnfit(ClusterError):  # noqa: N818 - the names are sentences
    """The machine cannot carry a local cluster; the message says why and what to do instead."""


class CommandFailed(ClusterError):  # noqa: N818
    """A program ended with an error."""

    def __init__(self, argv: Sequence[str], code: int, output: str) -> None:
        """Keep the end of the output, where the reason usually stands."""
        super().__init__(f"{' '.join(argv)}\nended with {code}:\n{output[-4000:]}")
        self.code = code
        self.output = output


class NeverReady(ClusterError):  # noqa: N818
    """A state did not come about in time."""

    def __init__(self, what: str, seconds: float, logs: Path | None = None) -> None:
        """Point at the logs, since the reason stands there and not here."""
        super().__init__(f"{what}: not reached in {seconds:g} s" + (f"; logs are in {logs}" if logs else ""))
