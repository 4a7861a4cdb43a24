"""The command `forebay-replica`. As PID 1 it has no default for SIGTERM, so it decides on one before anything else."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from types import FrameType


def run() -> NoReturn:
    """Run until the engine has ended."""
    # The imports below take half a second. The kernel drops a SIGTERM for a PID 1 without a handler, and the kubelet
    # sends only one: the pod would then hang until its whole grace period is over.
    signal.signal(signal.SIGTERM, _leave)
    from forebay_replica.program import main  # noqa: PLC0415 - see above

    sys.exit(main())


def _leave(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    run()
