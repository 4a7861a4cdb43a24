"""The states of a replica, as its pod label spells them, and of its engine, as its supervisor reports them."""

from enum import StrEnum


class ReplicaState(StrEnum):
    """Where a replica stands in the fleet; the value of the label `forebay.dev/state`. COLD has no pod.

    STARTING: the engine loads. WARM: loaded, awake, holds its GPU, gets no traffic. SERVING: gets traffic.
    DRAINING: leaves; its streams finish first.
    """

    STARTING = "starting"
    WARM = "warm"
    SERVING = "serving"
    DRAINING = "draining"


class EnginePhase(StrEnum):
    """What the supervisor knows of its engine, in the order of a life."""

    STARTING = "starting"  # the process exists, the weights are not loaded
    READY = "ready"  # answers, and a first token has been rehearsed
    ASLEEP = "asleep"  # its GPU memory is given back
    DRAINING = "draining"  # takes nothing new, finishes what runs
    STOPPED = "stopped"  # ended as asked
    FAILED = "failed"  # ended by itself, or never became ready
