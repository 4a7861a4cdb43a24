"""One simulated service: its data path, its replicas from their birth to their end, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from forebay.core.snapshot import State
from forebay.core.units import UNKNOWN
from forebay.engine_model.bank import (
    BLOCK_TOKENS,
    BLOCKS,
    BLOCKS_FREE,
    COUNTS,
    ID_BLOCKS,
    PREEMPTIONS,
    ROW_BLOCKS,
    ROW_FIELDS,
    RUNNING,
    WAITING,
    Bank,
    new_bank,
)
from forebay.routing.rules import ALLOWANCE_SHARE
from forebay.routing.rules import UNKNOWN as UNSAID
from forebay.sim import compiled, datapath
from forebay.sim.datapath import (
    CLOCKS,
    ENDS,
    ITL_BINS_10TH_MS,
    LANE_FIELDS,
    NEVER_US,
    POLL_US,
    SCORES,
    SECOND_US,
    STACK,
    TTFT_BINS_MS,
    DataPath,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.core.fleet import FleetSpec
    from forebay.core.goodness import Targets
    from forebay.core.units import I64
    from forebay.sim.trace import Trace
    from forebay.sim.world import World

EMPTY = -1  # beside core.snapshot.State: a lane without a replica
MODEL_LEN_MAX = 131_072  # Llama 3.1's and Qwen3's (with YaRN) longest context
# The gateway's defaults (gateway.settings).
QUEUE_REQUESTS_MAX, START_WAIT_US, BUSY_WAIT_US = 1_000, 300 * SECOND_US, 60 * SECOND_US


@dataclass(frozen=True, slots=True)
class Scrape:
    """What was read of all replicas at one instant."""

    at_us: int
    lane: I64  # [lanes, LANE_FIELDS]
    counts: I64  # [lanes, COUNTS] of the bank


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
        self.path = _path(trace, fleet, row, classes=classes, noise_milli=world.noise_milli, lanes=lanes)
        self.state = np.full(lanes, EMPTY)
        self.created_us = np.zeros(lanes, np.int64)
        self.ready_us = np.zeros(lanes, np.int64)
        self.start_us = np.zeros(lanes, np.int64)
        self.number = np.zeros(lanes, np.int64)  # of the replica in the lane, counted from the beginning
        self.replicas_made = 0
        self.gpu_us = dict.fromkeys(State, 0)
        self.actions = 0
        self._costed_us = 0
        self.last_scrape = self.scrape()

    # --- time -------------------------------------------------------------------------------------------------------

    def advance(self, until_us: int) -> None:
        """Let it run, replicas become ready, and drained ones go."""
        compiled.advance(self.path, until_us)
        self._cost(until_us)
        ready = (self.state == State.STARTING) & (self.ready_us <= until_us)
        self.state[ready] = State.WARM
        counts = np.asarray(self.path.bank.counts).reshape(-1, COUNTS)
        idle = counts[:, RUNNING] + counts[:, WAITING] == 0
        self.state[(self.state == State.DRAINING) & idle] = EMPTY

    def _cost(self, until_us: int) -> None:
        """Account the GPUs since the last look; nothing after the trace's end is anybody's fault."""
        until_us = min(until_us, self.trace.duration_us)
        passed = until_us - self._costed_us
        if passed <= 0:
            return
        for state in State:
            self.gpu_us[state] += passed * self.gpus_each * int((self.state == state).sum())
        self._costed_us = until_us

    def scrape(self) -> Scrape:
        """Read every replica's metrics."""
        lane = self.path.lane.reshape(-1, LANE_FIELDS).copy()
        counts = np.asarray(self.path.bank.counts).reshape(-1, COUNTS).copy()
        self.last_scrape = Scrape(int(self.path.clock[datapath.NOW_US]), lane, counts)
        return self.last_scrape

    # --- replicas ---------------------------------------------------------------------------------------------------

    def count(self, *states: State) -> int:
        """Count the replicas in any of these states."""
        return int(np.isin(self.state, states).sum())

    def start(self, count: int, now_us: int, *, ready: bool = False) -> int:
        """Create replicas as far as lanes are free; return how many."""
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
        fields[:] = 0
        fields[datapath.ROUTABLE_US] = fields[datapath.STEP_END_US] = NEVER_US
        fields[datapath.DICE] = dice
        fields[datapath.RATE] = fields[datapath.REPORT_KV_USED] = UNSAID
        path.bank.counts[lane * COUNTS + PREEMPTIONS] = 0
        self.state[lane] = State.WARM if ready else State.STARTING
        self.created_us[lane], self.number[lane] = now_us, number
        self.start_us[lane] = cold_us
        self.ready_us[lane] = now_us + (0 if ready else cold_us)

    def promote(self, lanes: Sequence[int], now_us: int) -> None:
        """Let warm replicas serve."""
        for lane in lanes:
            self.state[lane] = State.SERVING
            base = lane * LANE_FIELDS
            self.path.lane[base + datapath.ROUTABLE_US] = now_us + self.world.promote_ms * 1000
            # The gateway polls warm replicas too: what it knows is a second old at most.
            self.path.lane[base + datapath.REPORT_US] = now_us - POLL_US // 2
        self.actions += len(lanes)

    def withdraw(self, lanes: Sequence[int], state: State) -> None:
        """Route nothing more to these: they become warm again, or drain and go."""
        for lane in lanes:
            self.path.lane[lane * LANE_FIELDS + datapath.ROUTABLE_US] = NEVER_US
            self.state[lane] = EMPTY if self.state[lane] == State.STARTING else state
        self.actions += len(lanes)

    def kill(self, lane: int) -> None:
        """Let a replica die with all that it serves."""
        compiled.kill_lane(self.path, lane)
        self.state[lane] = EMPTY

    def settle(self, serving: int, warm: int, now_us: int, room: int, victims: Sequence[int] = ()) -> int:
        """Lead what exists towards what is wanted, as `actuate.diff` would: labels first, then farewells, then creates.

        Parameters
        ----------
        serving, warm
            Wanted.
        room
            GPUs that are free for new replicas.
        victims
            Numbers of replicas, best victim first; those not named come after, youngest first.

        Returns
        -------
        int
            GPUs that new replicas have taken.
        """
        rank = {number: place for place, number in enumerate(victims)}

        def by_harm(lane: int) -> tuple[int, int]:
            return rank.get(int(self.number[lane]), len(rank)), -int(self.number[lane])

        lanes_in = {state: [int(lane) for lane in np.flatnonzero(self.state == state)] for state in State}
        active, idle, coming = lanes_in[State.SERVING], lanes_in[State.WARM], lanes_in[State.STARTING]
        self.promote(idle[: max(0, serving - len(active))], now_us)
        surplus = sorted(active, key=by_harm)[: max(0, len(active) - serving)]
        self.withdraw(surplus, State.WARM)
        excess = max(0, len(active) + len(idle) + len(coming) - serving - warm)
        leave = sorted(coming, key=by_harm)[:excess]
        parked = surplus + idle[max(0, serving - len(active)) :]
        leave += sorted(parked, key=by_harm)[: excess - len(leave)]
        self.withdraw(leave, State.DRAINING)
        missing = serving + warm - len(active) - len(idle) - len(coming)
        wanted = max(0, min(missing, room // self.gpus_each))
        made = self.start(wanted, now_us) if wanted else 0
        self.actions += made
        return made * self.gpus_each

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
        now_us = int(self.path.clock[datapath.NOW_US])
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
            "prompt_tokens_total": known(lane[:, datapath.PROMPT_TOTAL]),
            "generation_tokens_total": known(lane[:, datapath.GENERATION_TOTAL]),
            "prefix_query_tokens_total": known(lane[:, datapath.QUERY_TOTAL]),
            "prefix_hit_tokens_total": known(lane[:, datapath.HIT_TOTAL]),
            "preemptions_total": known(counts[:, PREEMPTIONS]),
            "requests_finished_total": known(lane[:, datapath.FINISHED_TOTAL]),
            "ttft_sum_ms": known(lane[:, datapath.TTFT_SUM_US] // 1000),
            "itl_sum_ms": known(lane[:, datapath.ITL_SUM_US] // 1000),
            "ttft_count": known(lane[:, datapath.TTFT_COUNT]),
            "itl_count": known(lane[:, datapath.ITL_COUNT]),
        }


def _path(
    trace: Trace, fleet: FleetSpec, row: int, *, classes: Sequence[Targets], noise_milli: int, lanes: int
) -> DataPath:
    """Lay out the arrays: memory by what can live at once, and the trace itself."""
    seqs, kv_tokens = int(fleet.batch_max[row]), int(fleet.kv_tokens_prior[row])
    caching = trace.prefix_ids is not None
    bank = new_bank(
        lanes=lanes,
        seqs_max=seqs,
        step_tokens_max=int(fleet.step_tokens_max[row]),
        blocks=kv_tokens // BLOCK_TOKENS,
        row_blocks=-(-_longest(trace, kv_tokens) // BLOCK_TOKENS),
        caching=caching,
    )
    rows = lanes * (seqs + max(1, seqs // ALLOWANCE_SHARE)) + QUEUE_REQUESTS_MAX + 1
    arrays = _numpy_bank(bank, lanes + rows, trace)
    places = lanes + rows

    def ints(count: int) -> I64:
        return np.zeros(count, np.int64)

    clock = ints(CLOCKS)
    clock[datapath.NEXT_POLL_US] = POLL_US
    clock[datapath.ROWS_FREE] = rows
    clock[datapath.QUEUE_MAX] = QUEUE_REQUESTS_MAX
    clock[datapath.START_WAIT_US], clock[datapath.BUSY_WAIT_US] = START_WAIT_US, BUSY_WAIT_US
    clock[datapath.MODEL_LEN_MAX] = _longest(trace, kv_tokens)
    clock[datapath.NOISE_MILLI] = noise_milli
    lane = ints(lanes * LANE_FIELDS)
    for number in range(lanes):
        lane[number * LANE_FIELDS + datapath.ROUTABLE_US] = NEVER_US
        lane[number * LANE_FIELDS + datapath.STEP_END_US] = NEVER_US
    seconds = trace.duration_us // SECOND_US + 1
    offsets = trace.prefix_offsets if trace.prefix_offsets is not None else ints(len(trace) + 1)
    return DataPath(
        bank=arrays,
        clock=clock,
        lane=lane,
        times=ints(lanes * 5),
        ends=ints(lanes * ENDS),
        stack_step=ints(lanes * STACK),
        stack_gap=ints(lanes * STACK),
        **{name: ints(places) for name in _ROW_FIELDS},
        rows=np.arange(places - 1, lanes - 1, -1),
        hold_before=ints(places),
        hold_after=ints(places),
        sent_before=np.arange(places),
        sent_after=np.arange(places),
        trace_us=trace.arrival_us,
        trace_prompt=trace.prompt_tokens,
        trace_output=trace.output_tokens,
        trace_id_at=offsets,
        targets=np.array(
            [
                value
                for target in classes
                for value in (
                    target.ttft_ms,
                    target.ttft_per_1k_prompt_tokens_ms,
                    target.itl_mean_ms,
                    target.itl_worst_second_ms,
                )
            ]
        ),
        score=ints(len(classes) * SCORES),
        ttft_ms=ints(TTFT_BINS_MS),
        itl_10th_ms=ints(ITL_BINS_10TH_MS),
        second_arrived=ints(seconds),
        second_good=ints(seconds),
    )


def _longest(trace: Trace, kv_tokens: int) -> int:
    """Return the longest sequence that an engine takes: the model's, as far as the KV cache and the trace need it."""
    return min(MODEL_LEN_MAX, kv_tokens, int((trace.prompt_tokens + trace.output_tokens).max()))


_ROW_FIELDS = ("arrived", "sent", "request", "pending", "first", "last", "join", "worst", "start_limit", "busy_limit")


def _numpy_bank(bank: Bank, places: int, trace: Trace) -> Bank:
    """Turn a bank of lists into one of int64 arrays with all its rows."""
    size = np.array(bank.size)
    size[ID_BLOCKS] = max(1, trace.prefix_block_tokens // BLOCK_TOKENS)
    rows = {name: np.zeros(places, np.int64) for name in ROW_FIELDS}
    ring = np.arange(places)
    others = {
        name: np.array(getattr(bank, name), np.int64)
        for name in bank._fields
        if name not in {*ROW_FIELDS, "size", "before", "after", "table", "ids"}
    }
    ids = trace.prefix_ids if trace.prefix_ids is not None else np.zeros(0, np.int64)
    return Bank(
        size=size,
        before=ring.copy(),
        after=ring.copy(),
        table=np.zeros(places * bank.size[ROW_BLOCKS], np.int64),
        ids=ids,
        **rows,
        **others,
    )
