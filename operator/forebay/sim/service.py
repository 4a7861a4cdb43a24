"""One simulated service: its data path, its replicas from their birth to their end, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from forebay.core.snapshot import State
from forebay.core.units import UNKNOWN
from forebay.engine_model.bank import BLOCK_TOKENS, BLOCKS, BLOCKS_FREE, COUNTS, PREEMPTIONS, RUNNING, WAITING
from forebay.routing.rules import UNKNOWN as UNSAID
from forebay.sim import compiled
from forebay.sim.arrays import new_path
from forebay.sim.datapath import layout
from forebay.sim.datapath.layout import LANE_FIELDS, NEVER_US, POLL_US

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.core.fleet import FleetSpec
    from forebay.core.goodness import Targets
    from forebay.core.units import I64
    from forebay.sim.trace import Trace
    from forebay.sim.world import World

EMPTY = -1  # beside core.snapshot.State: a lane without a replica
# As plain integers: in Python 3.11 a member of an enumeration takes longer to name than to compare.
_STARTING, _WARM, _SERVING, _DRAINING = (int(state) for state in State)


@dataclass(frozen=True, slots=True)
class Scrape:
    """What was read of all replicas at one instant."""

    at_us: int
    lane: I64  # [lanes, LANE_FIELDS]
    counts: I64  # [lanes, COUNTS] of the bank
    past: I64  # [LANE_FIELDS] summed over replicas whose lane another one has now


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was decided of one service."""

    serving: int
    warm: int
    hold: bool = False  # nothing may be removed
    victims: tuple[int, ...] | None = None  # numbers of those that may go, best first; None: all, the youngest first


class SimulatedService:
    """One service of a simulated fleet.

    Parameters
    ----------
    trace
        What it is asked.
    fleet, row
        What it is told to be: priors, sizes and bounds.
    classes
        Targets to score by; the first one is the service's own.
    world
        What is true.
    lanes
        Most replicas that may exist at once, draining ones included.
    """

    def __init__(
        self, trace: Trace, fleet: FleetSpec, row: int, *, classes: Sequence[Targets], world: World, lanes: int
    ) -> None:
        self.trace, self.row, self.world = trace, row, world
        self.gpus_each = int(fleet.gpus_per_replica[row])
        self.priority = int(fleet.priority[row])
        names = ("step_c0_ps", "step_c1_ps", "step_c2_ps", "step_p1_ps", "step_p2_fs")
        self.prior = np.array([getattr(fleet, name)[row] for name in names])
        self.kv_tokens = int(fleet.kv_tokens_prior[row])
        self.path = new_path(trace, fleet, row, classes=classes, noise_milli=world.noise_milli, lanes=lanes)
        self._arrays = compiled.Arrays(self.path)
        self._past = np.zeros(LANE_FIELDS, np.int64)
        self.state = np.full(lanes, EMPTY)
        self.created_us = np.zeros(lanes, np.int64)
        self.ready_us = np.zeros(lanes, np.int64)
        self.start_us = np.zeros(lanes, np.int64)
        self.number = np.zeros(lanes, np.int64)  # of the replica in the lane, counted from the beginning
        self.replicas_made = 0
        self.gpu_us = dict.fromkeys(State, 0)
        self.actions = 0
        self.start_times = 1  # how many times as long as usual whatever starts now takes
        self._costed_us = 0
        self.last_scrape = self.scrape()

    # --- time -------------------------------------------------------------------------------------------------------

    def advance(self, until_us: int) -> None:
        """Let it run, replicas become ready, and drained ones go."""
        compiled.advance(self._arrays, until_us)
        self._cost(until_us)
        ready = (self.state == _STARTING) & (self.ready_us <= until_us)
        self.state[ready] = _WARM
        counts = np.asarray(self.path.bank.counts).reshape(-1, COUNTS)
        idle = counts[:, RUNNING] + counts[:, WAITING] == 0
        self.state[(self.state == _DRAINING) & idle] = EMPTY

    def _cost(self, until_us: int) -> None:
        """Account the GPUs since the last look; nothing after the trace's end is anybody's fault."""
        until_us = min(until_us, self.trace.duration_us)
        passed = until_us - self._costed_us
        if passed <= 0:
            return
        counts = np.bincount(self.state - EMPTY, minlength=len(State) - EMPTY)[1:].tolist()
        for state, count in zip(State, counts, strict=True):
            self.gpu_us[state] += passed * self.gpus_each * count
        self._costed_us = until_us

    def scrape(self) -> Scrape:
        """Read every replica's metrics."""
        lane = self.path.lane.reshape(-1, LANE_FIELDS).copy()
        counts = np.asarray(self.path.bank.counts).reshape(-1, COUNTS).copy()
        self.last_scrape = Scrape(int(self.path.clock[layout.NOW_US]), lane, counts, self._past.copy())
        return self.last_scrape

    # --- replicas ---------------------------------------------------------------------------------------------------

    def count(self, *states: State) -> int:
        """Count the replicas in any of these states."""
        return int(np.isin(self.state, states).sum())

    def begin(self, count: int) -> None:
        """Let so many replicas serve from the first instant; nobody's action."""
        self.promote(range(self.start(count, 0, ready=True)), -self.world.promote_ms * 1000)
        self.actions = 0

    def start(self, count: int, now_us: int, *, ready: bool = False) -> int:
        """Create replicas as far as lanes are free, cold or loaded already; return how many."""
        lanes = np.flatnonzero(self.state == EMPTY)[:count]
        for lane in lanes:
            self._start(int(lane), now_us, ready=ready)
        return len(lanes)

    def _start(self, lane: int, now_us: int, *, ready: bool) -> None:
        path, number = self.path, self.replicas_made
        self.replicas_made += 1
        times, cold_us, dice = self.world.replica(self.prior, self.row, number)
        path.times[5 * lane : 5 * lane + 5] = times
        fields = path.lane[lane * LANE_FIELDS : (lane + 1) * LANE_FIELDS]
        self._past += fields
        fields[:] = 0
        path.step_end[lane] = path.routable[lane] = NEVER_US
        fields[layout.DICE] = dice
        fields[layout.RATE] = fields[layout.PACE] = fields[layout.REPORT_KV_USED] = UNSAID
        path.bank.counts[lane * COUNTS + PREEMPTIONS] = 0
        compiled.clear_lane(self._arrays, lane)
        self.state[lane] = State.WARM if ready else State.STARTING
        self.created_us[lane], self.number[lane] = now_us, number
        cold_us *= self.start_times
        self.start_us[lane] = cold_us
        self.ready_us[lane] = now_us + (0 if ready else cold_us)

    def promote(self, lanes: Sequence[int], now_us: int) -> None:
        """Let warm replicas serve."""
        clock = self.path.clock
        for lane in lanes:
            self.state[lane] = State.SERVING
            open_us = now_us + self.world.promote_ms * 1000
            self.path.routable[lane] = open_us
            clock[layout.NEXT_OPEN_US] = min(int(clock[layout.NEXT_OPEN_US]), open_us)
            # The gateway polls warm replicas too: what it knows is a second old at most.
            self.path.lane[lane * LANE_FIELDS + layout.REPORT_US] = now_us - POLL_US // 2
        self.actions += len(lanes)

    def withdraw(self, lanes: Sequence[int], state: State) -> None:
        """Route nothing more to these: they become warm again, or drain and go."""
        for lane in lanes:
            self.path.routable[lane] = NEVER_US
            self.state[lane] = EMPTY if self.state[lane] == State.STARTING else state
        self.actions += len(lanes)

    def kill(self, lane: int) -> None:
        """Let a replica die with all that it serves."""
        compiled.kill_lane(self._arrays, lane)
        self.state[lane] = EMPTY

    def settle(self, wanted: Wanted, now_us: int, room: int) -> int:
        """Lead what exists towards what is wanted, as `actuate.diff` would: labels first, then farewells, then creates.

        Parameters
        ----------
        wanted
            What was decided.
        now_us
            The present.
        room
            GPUs that are free for new replicas.

        Returns
        -------
        int
            GPUs that new replicas have taken.
        """
        serving, warm, hold, victims = wanted.serving, wanted.warm, wanted.hold, wanted.victims
        lanes = self.present()
        if len(lanes) == serving + warm and int((self.state[lanes] == _SERVING).sum()) == serving:
            return 0
        rank = {number: place for place, number in enumerate(victims or ())}
        state = dict(zip(lanes, self.state[lanes].tolist(), strict=True))
        number = dict(zip(lanes, self.number[lanes].tolist(), strict=True))

        def harm(lane: int) -> tuple[int, int, int]:
            return state[lane], rank.get(number[lane], len(rank)), -number[lane]

        excess = 0 if hold else max(0, len(lanes) - serving - warm)
        may_go = [lane for lane in lanes if victims is None or number[lane] in rank]
        leave = sorted(may_go, key=harm)[:excess]
        active = [lane for lane in lanes if state[lane] == _SERVING and lane not in leave]
        idle = [lane for lane in lanes if state[lane] == _WARM and lane not in leave]
        self.promote(idle[: max(0, serving - len(active))], now_us)
        if not hold:
            self.withdraw(sorted(active, key=harm)[: max(0, len(active) - serving)], State.WARM)
        self.withdraw(leave, State.DRAINING)
        missing = max(0, serving + warm - len(lanes) + len(leave))
        if self.gpus_each:
            missing = min(missing, max(0, room) // self.gpus_each)
        made = self.start(missing, now_us) if missing else 0
        self.actions += made
        return made * self.gpus_each

    def present(self) -> list[int]:
        """List the lanes of the replicas that are here to stay, the oldest first."""
        lanes = np.flatnonzero((self.state != EMPTY) & (self.state != _DRAINING))
        ordered: list[int] = lanes[np.argsort(self.number[lanes], kind="stable")].tolist()
        return ordered

    def total(self, field: int) -> int:
        """Sum one of the lanes' counters over all replicas that ever were."""
        return int(self.path.lane.reshape(-1, LANE_FIELDS)[:, field].sum() + self._past[field])

    def kv_used_milli(self, scrape: Scrape) -> I64:
        """Return each lane's KV usage in thousandths."""
        blocks: int = self.path.bank.size[BLOCKS]
        return 1000 * (blocks - scrape.counts[:, BLOCKS_FREE]) // blocks

    @property
    def gpus(self) -> int:
        """GPUs that are held now."""
        return int((self.state != EMPTY).sum()) * self.gpus_each

    def columns(self) -> dict[str, I64]:
        """Return the last scrape in the terms of `core.snapshot.ReplicaRows`, one row a replica in order of birth."""
        lanes = np.flatnonzero(self.state != EMPTY)
        lanes = lanes[np.argsort(self.number[lanes], kind="stable")]
        now_us = int(self.path.clock[layout.NOW_US])
        lane, counts = self.last_scrape.lane[lanes], self.last_scrape.counts[lanes]
        state = self.state[lanes]
        ready = state != State.STARTING
        seen = ready & (self.ready_us[lanes] <= self.last_scrape.at_us)
        kv_used = (self.path.bank.size[BLOCKS] - counts[:, BLOCKS_FREE]) * BLOCK_TOKENS

        def known(column: I64) -> I64:
            return np.where(seen, column, UNKNOWN)

        return {
            "number": self.number[lanes],
            "service": np.full(len(lanes), self.row),
            "state": state,
            "age_ms": known(np.full(len(lanes), (now_us - self.last_scrape.at_us) // 1000)),
            "since_created_ms": (now_us - self.created_us[lanes]) // 1000,
            "ready": ready,
            "gpus": np.full(len(lanes), self.gpus_each),
            "start_ms": np.where(ready, self.start_us[lanes] // 1000, UNKNOWN),
            "requests_running": known(counts[:, RUNNING]),
            "requests_waiting": known(counts[:, WAITING]),
            "kv_tokens_total": known(np.full(len(lanes), self.kv_tokens)),
            "kv_tokens_used": known(kv_used),
            "prompt_tokens_total": known(lane[:, layout.PROMPT_TOTAL]),
            "generation_tokens_total": known(lane[:, layout.GENERATION_TOTAL]),
            "prefix_query_tokens_total": known(lane[:, layout.QUERY_TOTAL]),
            "prefix_hit_tokens_total": known(lane[:, layout.HIT_TOTAL]),
            "preemptions_total": known(counts[:, PREEMPTIONS]),
            "requests_finished_total": known(lane[:, layout.FINISHED_TOTAL]),
            "ttft_sum_ms": known(lane[:, layout.TTFT_SUM_US] // 1000),
            "itl_sum_ms": known(lane[:, layout.ITL_SUM_US] // 1000),
            "ttft_count": known(lane[:, layout.TTFT_COUNT]),
            "itl_count": known(lane[:, layout.ITL_COUNT]),
        }
