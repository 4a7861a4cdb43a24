"""What the demo asks of the fleet and when: three services, one burst, five minutes (or ninety seconds)."""

from __future__ import annotations

from dataclasses import dataclass, replace

# The namespace is the team's, the name is the service's; the chart's objects live in forebay-system.
CHAT, CODE, BATCH = "chat/chat-8b", "code/code-8b", "batch/batch-8b"


@dataclass(frozen=True)
class Stream:
    """One service's share of the traffic."""

    service: str  # "namespace/name"
    model: str  # what the client writes into "model"
    trace: str  # "conv" or "code"
    start_s: float  # where in the recording this stream begins
    rate: float  # mean requests a second, away from the burst
    burst_factor: int = 1  # how many such streams run at once during the burst


@dataclass(frozen=True)
class Jobs:
    """A batch: so many requests at once, a short while apart."""

    service: str
    model: str
    at_s: float
    count: int
    over_s: float


@dataclass(frozen=True)
class Plan:
    """One run of the demo."""

    name: str
    seconds: float
    burst_from_s: float
    burst_until_s: float
    cold_start_s: int
    idle_s: int  # after which the batch service goes to zero
    scale_down_delay_s: int
    streams: tuple[Stream, ...]
    jobs: tuple[Jobs, ...]
    max_model_len: int = 8192

    @property
    def services(self) -> tuple[str, ...]:
        """All services, as "namespace/name", in the order in which they are shown."""
        return tuple(dict.fromkeys([s.service for s in self.streams] + [j.service for j in self.jobs]))


_STREAMS = (
    # 1.4 conversations a second keep about one L40S with eight sequences busy; five times as many keep five.
    Stream(CHAT, "chat-8b", "conv", start_s=600, rate=1.4, burst_factor=5),
    # Seven requests in one second, then nothing for twenty: thinned, but as bursty as recorded.
    Stream(CODE, "code-8b", "code", start_s=180, rate=0.5),
)

FULL = Plan(
    name="full",
    seconds=300,
    # The pool is sized by traffic that Forebay has seen: ten seconds of it, a cold start of 90 s, and some room.
    burst_from_s=150,
    burst_until_s=215,
    cold_start_s=90,
    idle_s=30,
    scale_down_delay_s=60,
    streams=_STREAMS,
    # The second batch comes when the first has ended and its replica is gone: both start from zero.
    jobs=(Jobs(BATCH, "batch-8b", 10, 8, 4), Jobs(BATCH, "batch-8b", 190, 8, 4)),
)

COMPRESSED = replace(
    FULL,
    name="compressed",
    seconds=90,
    burst_from_s=45,
    burst_until_s=65,
    cold_start_s=20,
    idle_s=10,
    scale_down_delay_s=30,
    jobs=(Jobs(BATCH, "batch-8b", 4, 6, 2), Jobs(BATCH, "batch-8b", 62, 6, 2)),
)

INTERACTIVE = (CHAT, CODE)
