"""The simulated loop: worlds advance, somebody judges, replicas come and go.

Many worlds run at once: each has its own services, pool and dice, and one call of the product's `step` judges them all,
because a service decides alone as it does among many. That is also what makes a long trace cheap.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from forebay.core.memory import Memory, initial_memory
from forebay.core.snapshot import State
from forebay.core.step import step
from forebay.sim.datapath import layout
from forebay.sim.datapath.layout import SECOND_US
from forebay.sim.observe import sample_of, snapshot_of
from forebay.sim.service import Wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay.core.decision import Decisions
    from forebay.core.fleet import FleetSpec
    from forebay.core.snapshot import Snapshot
    from forebay.sim.sample import Rule, Sample
    from forebay.sim.service import SimulatedService

# The gateway pushes when it begins to hold requests; a push is judged at the next quarter of a second.
EARLY_US = SECOND_US // 4
# The operator reads its replicas this long before it judges: half a second on average, a tick's gathering included.
SCRAPE_AGE_US = SECOND_US // 2
TAIL_S = 120  # after the last arrival: requests that have not ended by then never do
CLOCK_STARTS_MS = 3_600_000  # the loop's clock does not begin at zero


class Judge(Protocol):
    """Who decides."""

    hears_pushes: bool  # whether it looks early when a gateway begins to hold requests

    def judge(self, services: Sequence[SimulatedService], now_us: int) -> None:
        """Look at the services and settle them."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The GPUs that some services share."""

    rows: tuple[int, ...]  # of the services
    gpus: int


class Surroundings(Protocol):
    """What stands between a judgement and its world."""

    def clock_ms(self, now_us: int) -> int:
        """Read the loop's clock."""

    def gpus(self, pool: int, now_us: int) -> int:
        """Return how many GPUs a pool offers."""

    def writes(self, row: int, now_us: int) -> bool:
        """Say whether anything can be written for a service."""

    def seen(self, snapshot: Snapshot, now_us: int) -> Snapshot:
        """Show of what there is what can be seen."""


class _Calm:
    """Nothing goes wrong."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        self._pools = pools

    def clock_ms(self, now_us: int) -> int:
        return CLOCK_STARTS_MS + now_us // 1000

    def gpus(self, pool: int, _now_us: int) -> int:
        return self._pools[pool].gpus

    def writes(self, _row: int, _now_us: int) -> bool:
        return True

    def seen(self, snapshot: Snapshot, _now_us: int) -> Snapshot:
        return snapshot


class ForebayJudge:
    """The product's own judgement.

    Parameters
    ----------
    fleet
        All services of all worlds.
    pools
        One entry a row of `fleet.pools`.
    tell
        Called with each snapshot and its decisions: what a journal would record.
    around
        What surrounds it; None: nothing goes wrong.
    """

    hears_pushes = True

    def __init__(
        self,
        fleet: FleetSpec,
        pools: Sequence[Pool],
        tell: Callable[[Snapshot, Decisions], None] | None = None,
        around: Surroundings | None = None,
    ) -> None:
        self.fleet, self.pools, self._tell = fleet, pools, tell
        self._around = around if around is not None else _Calm(pools)
        self.memory: Memory = initial_memory(fleet, self._around.clock_ms(0))

    def judge(self, services: Sequence[SimulatedService], now_us: int) -> None:
        """Call the product's step and do what it says."""
        snapshot = self.look(services, now_us)
        self.memory, decisions = step(self.fleet, self.memory, snapshot)
        if self._tell is not None:
            self._tell(snapshot, decisions)
        self.act(services, decisions, now_us)

    def look(self, services: Sequence[SimulatedService], now_us: int) -> Snapshot:
        """Gather what the operator would have gathered."""
        around = self._around
        gpus = [around.gpus(place, now_us) for place in range(len(self.pools))]
        return around.seen(snapshot_of(services, gpus, now_us, around.clock_ms(now_us)), now_us)

    def act(self, services: Sequence[SimulatedService], decisions: Decisions, now_us: int) -> None:
        """Lead every service towards what was decided, by priority where GPUs are short."""
        victims: dict[int, list[int]] = {}
        for uid in decisions.victims:
            place, number = map(int, uid.split("-"))
            victims.setdefault(place, []).append(number)
        serving, warm, hold = (
            column.tolist() for column in (decisions.replicas_serving, decisions.replicas_warm, decisions.hold)
        )
        for place, pool in enumerate(self.pools):
            room = self._around.gpus(place, now_us) - sum(services[row].gpus for row in pool.rows)
            for row in sorted(pool.rows, key=lambda row: (-services[row].priority, row)):
                if self._around.writes(row, now_us):
                    wanted = Wanted(serving[row], warm[row], hold=hold[row], victims=tuple(victims.get(row, ())))
                    room -= services[row].settle(wanted, now_us, room)


class RuleJudge:
    """A rival's rule for each service; acts at its own pace on samples as old as its own metrics are.

    Parameters
    ----------
    rules
        One a service.
    fleet
        For the bounds.
    pools
        As for ForebayJudge.
    """

    hears_pushes = False

    def __init__(self, rules: Sequence[Rule], fleet: FleetSpec, pools: Sequence[Pool]) -> None:
        self.rules, self.fleet, self.pools = rules, fleet, pools
        self._samples: list[deque[Sample]] = [deque() for _ in rules]
        self._due_us = [0] * len(rules)
        self._wanted = [0] * len(rules)

    def judge(self, services: Sequence[SimulatedService], now_us: int) -> None:
        """Ask every rule whose interval is over."""
        for row, (service, rule) in enumerate(zip(services, self.rules, strict=True)):
            samples = self._samples[row]
            samples.append(sample_of(service))
            if now_us < self._due_us[row]:
                continue
            while len(samples) > 1 and samples[1].at_ms * 1000 <= now_us - rule.delay_ms * 1000:
                samples.popleft()
            self._due_us[row] = now_us + rule.interval_ms * 1000
            if samples[0].at_ms * 1000 <= now_us - rule.delay_ms * 1000:
                self._wanted[row] = rule.decide(samples[0])
            else:
                self._wanted[row] = service.count(State.SERVING, State.STARTING)
        for pool in self.pools:
            room = pool.gpus - sum(services[row].gpus for row in pool.rows)
            for row in pool.rows:
                low, high = int(self.fleet.replicas_min[row]), int(self.fleet.replicas_max[row])
                warm = self.rules[row].warm_replicas
                wanted = Wanted(min(high, max(low, self._wanted[row])), warm)
                room -= services[row].settle(wanted, now_us, room)


def run(
    services: Sequence[SimulatedService],
    judge: Judge,
    initial: Sequence[int],
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Play all traces to their end.

    Parameters
    ----------
    services
        Of all worlds, in the order of the fleet's rows.
    judge
        Who decides.
    initial
        Replicas of each service that serve from the beginning.
    progress
        Told the second that was played, and how many there are.
    """
    for service, count in zip(services, initial, strict=True):
        service.begin(count)
    seconds = max(service.trace.duration_us for service in services) // SECOND_US + TAIL_S
    pace_us = EARLY_US if judge.hears_pushes else SCRAPE_AGE_US
    for second in range(1, seconds + 1):
        end_us = second * SECOND_US
        for now_us in range(end_us - SECOND_US + pace_us, end_us + 1, pace_us):
            holds = _advance(services, now_us)
            if now_us == end_us - SCRAPE_AGE_US:
                for service in services:
                    service.scrape()
            if now_us == end_us or (holds and judge.hears_pushes):
                judge.judge(services, now_us)
        if progress is not None:
            progress(second, seconds)


def _advance(services: Sequence[SimulatedService], now_us: int) -> bool:
    """Let all worlds run until now; say whether a gateway has begun to hold requests."""
    begun = False
    for service in services:
        held = service.path.clock[layout.HELD]
        service.advance(now_us)
        begun |= held == 0 and service.path.clock[layout.HELD] > 0
    return begun
