"""`forebay run`: settings, logs, signals, and then the operator."""

from __future__ import annotations

import asyncio
import os
import signal

from forebay.control.settings import Settings
from forebay.control.wiring import Operator
from forebay.report.logs import configure_logs


def run() -> None:
    """Run the operator until SIGTERM or SIGINT.

    Raises
    ------
    SettingsError
        When a setting is missing or out of bounds.
    """
    settings = Settings.from_environment(os.environ)
    configure_logs(settings.log_level)
    asyncio.run(_until_told(settings))


async def _until_told(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    await Operator(settings).run(stop)
