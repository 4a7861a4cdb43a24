"""TELL, to whoever reads logs: constant text plus keys, one line a record."""

from __future__ import annotations

import logging


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
