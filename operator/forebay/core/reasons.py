"""TELL's dictionary: the one catalogue of reasons, behind conditions, events, `explain` and the dashboard.

A reason is a number in the columns and a CamelCase name everywhere else; `wordings` has its words: constant text with
named integer inputs, so that equal verdicts give equal words and events can be deduplicated by name. A number is never
used twice: journals and status documents outlive a release.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from forebay.core.units import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping


class Condition(IntEnum):
    """The condition of an InferenceService that a reason feeds; `.name` in CamelCase is `wording.condition_type`."""

    NONE = 0  # an explanation only
    READY = 1
    METRICS_AVAILABLE = 2
    SCALING_ACTIVE = 3
    ABLE_TO_SCALE = 4
    SCALING_LIMITED = 5
    WARM_POOL_READY = 6
    GPU_CAPACITY = 7
    SLO_MET = 8
    PROGRESSING = 9


# Spelled out, because GPU and SLO are not what a title-case of the name gives.
CONDITION_TYPES: Mapping[Condition, str] = MappingProxyType(
    {
        Condition.NONE: "",
        Condition.READY: "Ready",
        Condition.METRICS_AVAILABLE: "MetricsAvailable",
        Condition.SCALING_ACTIVE: "ScalingActive",
        Condition.ABLE_TO_SCALE: "AbleToScale",
        Condition.SCALING_LIMITED: "ScalingLimited",
        Condition.WARM_POOL_READY: "WarmPoolReady",
        Condition.GPU_CAPACITY: "GPUCapacity",
        Condition.SLO_MET: "SLOMet",
        Condition.PROGRESSING: "Progressing",
    }
)


class Reason(IntEnum):
    """Why a stage, or a shell, says what it says. 1-99: verdicts of core; 100 and up: what only the shells can see."""

    NONE = 0

    # --- demand
    PREFILL_DEMAND = 1
    DECODE_DEMAND = 2
    BATCH_OCCUPANCY = 3
    BURST_DETECTED = 4
    NO_DEMAND = 5
    TTFT_QUEUEING = 6
    SLO_INFEASIBLE = 7

    # --- what is known
    METRICS_FRESH = 10
    METRICS_PARTLY_STALE = 11
    METRICS_STALE = 12
    GATEWAY_STALE = 13
    GATEWAY_DEMAND_ONLY = 14
    REPLICAS_UNREADY = 15
    SETTLING = 16
    REPLICA_SUSPECT = 17
    NOTHING_SERVES = 18

    # --- backlog, headroom, warm pool
    BACKLOG = 20
    BACKLOG_CAPACITY_STARTING = 21
    HEADROOM = 22
    SMALL_FLEET_MARGIN = 23
    WARM_POOL_MEASURED = 24
    WARM_POOL_POLICY_BURST = 25
    WARM_POOL_LIMITED = 26
    WARM_POOL_DRAWN = 27
    WARM_SERVES = 28

    # --- consolidation
    SHRINK_WAITS = 30
    SHRINK_WOULD_MISS_SLO = 31
    SHRINK_WAS_REGRETTED = 32
    SHRINK = 33
    IDLE = 34

    # --- bounds and modes
    MIN_REPLICAS = 40
    MAX_REPLICAS = 41
    MANUAL = 42
    PAUSED = 43
    BLOCKED = 44
    ACTIVATED = 45

    # --- GPU budget and disruption
    GPU_CAPACITY = 50
    GPU_NODES_UNREADABLE = 51
    UNSCHEDULABLE = 52
    ONE_REMOVAL_AT_A_TIME = 53

    # --- told by resolve: the specification
    POLICY_NOT_FOUND = 100
    POLICY_NOT_ALLOWED = 101
    POOL_NOT_FOUND = 102
    MODEL_DOES_NOT_FIT = 103
    NAME_CONFLICT = 104
    INVALID_SPEC = 105

    # --- told by observe and actuate: the replicas
    IMAGE_PULL_FAILED = 110
    ENGINE_FAILED = 111
    ENGINE_NEVER_READY = 112
    METRICS_GARBAGE = 113
    SERVED_NAME_MISMATCH = 114
    REPLICAS_STARTING = 115
    REPLICAS_READY = 116
    ROLLING_OUT = 117
    PROMOTED = 118
    DEMOTED = 119
    REPLICA_STARTED = 120
    REPLICA_DRAINING = 121
    REPLICA_REPLACED = 122
    WRITE_REFUSED = 123
    NO_CAPACITY_FREE = 124
    NO_REPLICAS_READY = 125
    SOME_REPLICAS_READY = 126
    WARM_POOL_FULL = 127
    WARM_POOL_STARTING = 128

    # --- told by control: who drives
    FOREIGN_AUTOSCALER = 130
    SECOND_OPERATOR = 131
    PAUSED_BY_USER = 132
    MEMORY_UNREADABLE = 133
    AUTOSCALING = 134

    # --- told by report: the SLO
    SLO_MET = 140
    SLO_MISSED = 141
    SLO_UNMEASURED = 142
    AS_EXPECTED = 143


def spell(name: str, value: int) -> str:
    """Write an input as people read it: the unit at the end of its name says how. Thousandths become a fraction."""
    if value == UNKNOWN:
        return "unknown"
    if name.endswith(("_milli", "_milli_per_s")):
        return f"{value // 1000}.{value % 1000 // 10:02}"
    if name.endswith("_permille"):
        return f"{value // 10}.{value % 10} %"
    if name.endswith("_us"):
        return f"{value // 1000}.{value % 1000 // 100} ms"
    if name.endswith("_ms"):
        return f"{value // 1000}.{value % 1000 // 100} s"
    return str(value)


@dataclass(frozen=True, slots=True)
class Wording:
    """How a reason is told."""

    name: str  # CamelCase, the `reason` of a condition and of an event
    condition: Condition
    status: bool  # what the condition becomes: True or False; of no meaning where condition is NONE
    warning: bool  # an event of type Warning rather than Normal
    message: str  # constant text; {named} inputs are integers
    next_step: str  # what the user can do; empty where nothing needs doing

    @property
    def condition_type(self) -> str:
        """Spell the condition as the API does; empty where the reason feeds none."""
        return CONDITION_TYPES[self.condition]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the integers that the message wants."""
        return tuple(part.partition("}")[0] for part in self.message.split("{")[1:])

    def say(self, inputs: Mapping[str, int]) -> str:
        """Fill in the message; an input that is absent or UNKNOWN is said to be unknown, never left out."""
        return self.message.format_map({name: spell(name, inputs.get(name, UNKNOWN)) for name in self.inputs})
