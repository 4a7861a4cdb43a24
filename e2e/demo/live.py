"""The last seconds of the traffic, by service, for the live view."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from e2e.demo.machine import percentile

if TYPE_CHECKING:
    from e2e.demo.records import Outcome, Record

WINDOW_S = 15
ARRIVALS_WINDOW_S = 5


class LiveService:
    """One service's counters and its last `WINDOW_S` seconds."""

    def __init__(self) -> None:
        self.sent = 0
        self.outcomes: Counter[Outcome] = Counter()
        self._arrivals: deque[int] = deque([0], maxlen=ARRIVALS_WINDOW_S)
        self._ttft: deque[list[int]] = deque([[]], maxlen=WINDOW_S)
        self._itl: deque[list[int]] = deque([[]], maxlen=WINDOW_S)

    def on_sent(self) -> None:
        """Count a request that left."""
        self.sent += 1
        self._arrivals[-1] += 1

    def on_token(self, record: Record) -> None:
        """Take the record's last token."""
        times = record.token_ms
        if len(times) == 1:
            self._ttft[-1].append(times[0])
        else:
            self._itl[-1].append(times[-1] - times[-2])

    def turn(self) -> dict[str, Any]:
        """Tell the window and begin its next second."""
        ttft = [value for second in self._ttft for value in second]
        itl = [value for second in self._itl for value in second]
        told = {
            "sent": self.sent,
            "in_flight": self.sent - self.outcomes.total(),
            "outcomes": {outcome.value: count for outcome, count in self.outcomes.items()},
            "arrivals_per_s": round(sum(self._arrivals) / len(self._arrivals), 1),
            # None where nothing came: an absent latency is not a latency of zero.
            "ttft_p95_ms": int(percentile(ttft, 95)) if ttft else None,
            "itl_p95_ms": int(percentile(itl, 95)) if itl else None,
        }
        self._arrivals.append(0)
        self._ttft.append([])
        self._itl.append([])
        return told
