"""`forebay run`: settings, logs, signals, and then the operator."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

from forebay.control.settings import Settings
from forebay.control.wiring import Operator


class KeyValues(logging.Formatter):
    """Constant text, then the record's own keys: what a person greps and a machine parses."""

    _usual = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}

    def format(self, record: logging.LogRecord) -> str:  # type: ignore[explicit-override] # override needs Python 3.12
        """Render one line."""
        text = super().format(record)
        keys = {key: value for key, value in record.__dict__.items() if key not in self._usual}
        return text + "".join(f" {key}={value!r}" for key, value in sorted(keys.items()))


def configure_logs(level: str) -> None:
    """Send everything to standard error, one line a record."""
    handler = logging.StreamHandler()
    handler.setFormatter(KeyValues("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # httpx logs each of the thousand requests a second.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("httpcore").setLevel(logging.WARNING)


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
