"""Logs: one line an event, constant text first, then its keys."""

from __future__ import annotations

import logging

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "keys"}


def configure_logs() -> None:
    """Send everything from INFO on to standard error."""
    handler = logging.StreamHandler()
    handler.addFilter(_spell_keys)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s%(keys)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def _spell_keys(record: logging.LogRecord) -> bool:
    """Write what was passed as `extra` as key=value."""
    record.keys = "".join(f" {key}={value}" for key, value in vars(record).items() if key not in _STANDARD)
    return True
