"""TELL's dictionary, second half: the words of every reason. Constant text; what varies is a named integer.

A message says what is, the next step says what the user can do about it; a reason that needs nothing done has none.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from forebay.core.reasons import Condition, Reason, Wording

if TYPE_CHECKING:
    from collections.abc import Mapping


def _tell(
    name: str,
    message: str,
    next_step: str = "",
    *,
    condition: Condition = Condition.NONE,
    status: bool = False,
    warning: bool = False,
) -> Wording:
    return Wording(name, condition, status, warning, message, next_step)


_C = Condition

WORDINGS: Mapping[Reason, Wording] = MappingProxyType(
    {
        Reason.NONE: _tell("Unchanged", "left as it was"),
        # --- demand
        Reason.PREFILL_DEMAND: _tell(
            "PrefillDemand",
            "the prompts keep {prefill_milli} replicas busy, the answers {decode_milli}",
        ),
        Reason.DECODE_DEMAND: _tell(
            "DecodeDemand",
            "the answers keep {decode_milli} replicas busy, the prompts {prefill_milli}",
        ),
        Reason.BATCH_OCCUPANCY: _tell(
            "BatchOccupancy",
            "{sequences_milli} requests are in the batches at once; a replica holds {batch_best}",
        ),
        Reason.BURST_DETECTED: _tell(
            "BurstDetected",
            "arrivals jumped to {arrivals_milli_per_s} requests a second",
            condition=_C.SCALING_ACTIVE,
            status=True,
        ),
        Reason.NO_DEMAND: _tell("NoDemand", "no request arrived within the stable window and none is running"),
        Reason.TTFT_QUEUEING: _tell(
            "TTFTQueueing",
            "prompts would queue past the TTFT target: they keep {prefill_milli} replicas busy",
        ),
        Reason.SLO_INFEASIBLE: _tell(
            "SLOInfeasible",
            "a single request alone misses the target: one step takes {step_us}, its prefill {prefill_us}",
            "relax the SLOPolicy, or use a faster accelerator or more tensor parallelism; replicas cannot help",
            condition=_C.SLO_MET,
            warning=True,
        ),
        # --- what is known
        Reason.METRICS_FRESH: _tell(
            "MetricsFresh", "all {serving} serving replicas were read", condition=_C.METRICS_AVAILABLE, status=True
        ),
        Reason.METRICS_PARTLY_STALE: _tell(
            "MetricsPartlyStale",
            "{fresh} of {serving} serving replicas were read; the others are unknown, so nothing is removed",
            "look at the replicas that do not answer on port 9000",
            condition=_C.METRICS_AVAILABLE,
            warning=True,
        ),
        Reason.METRICS_STALE: _tell(
            "MetricsStale",
            "none of {serving} serving replicas was read and no gateway answers; the last decision is held",
            "check the network between operator and replicas (port 9000) and gateways (port 9101)",
            condition=_C.METRICS_AVAILABLE,
            warning=True,
        ),
        Reason.GATEWAY_STALE: _tell(
            "GatewayStale",
            "{gateways_fresh} of {gateways_expected} gateways answer; engines tell the demand, nothing is removed",
            "check the gateway pods and port 9101",
            condition=_C.METRICS_AVAILABLE,
            warning=True,
        ),
        Reason.GATEWAY_DEMAND_ONLY: _tell(
            "GatewayDemandOnly",
            "none of {serving} serving replicas was read; demand is judged from the gateways, and nothing is removed",
            "look at the replicas that do not answer on port 9000",
            condition=_C.METRICS_AVAILABLE,
            warning=True,
        ),
        Reason.REPLICAS_UNREADY: _tell(
            "ReplicasUnready",
            "{unready} of {serving} serving replicas are not ready; nothing is removed",
            "look at the events of the unready pods",
            condition=_C.METRICS_AVAILABLE,
            status=True,
            warning=True,
        ),
        Reason.SETTLING: _tell(
            "Settling",
            "the windows hold less than a minute of traffic; nothing is removed before",
            condition=_C.METRICS_AVAILABLE,
            status=True,
        ),
        Reason.NOTHING_SERVES: _tell(
            "NothingServes",
            "nothing serves and no gateway answers, so there is nothing to read; {starting} replicas are starting",
            condition=_C.METRICS_AVAILABLE,
        ),
        Reason.REPLICA_SUSPECT: _tell(
            "ReplicaSuspect",
            "{suspect} replicas hold requests and have made no token for three minutes; they are replaced",
            "look at the logs of the engine",
            condition=_C.METRICS_AVAILABLE,
            status=True,
            warning=True,
        ),
        # --- backlog, headroom, warm pool
        Reason.BACKLOG: _tell(
            "Backlog",
            "{waiting} requests wait in engines, {held} at gateways, with {pending_prompt_tokens} prompt tokens",
        ),
        Reason.BACKLOG_CAPACITY_STARTING: _tell(
            "BacklogCapacityStarting",
            "{waiting} requests wait, {held} are held; {starting} replicas already start, so no more are ordered",
        ),
        Reason.HEADROOM: _tell("Headroom", "the policy keeps {headroom_milli} of the need above it"),
        Reason.SMALL_FLEET_MARGIN: _tell(
            "SmallFleetMargin",
            "few requests at once vary much: {margin_milli} replicas are kept free, more than the headroom",
        ),
        Reason.WARM_POOL_MEASURED: _tell(
            "WarmPoolMeasured",
            "the need rose by up to {rise} replicas within a cold start ({lead_cold_ms}), in {epochs} periods",
            condition=_C.WARM_POOL_READY,
            status=True,
        ),
        Reason.WARM_POOL_POLICY_BURST: _tell(
            "WarmPoolPolicyBurst",
            "history is short; the policy expects bursts of {multiplier_milli} times: {burst_replicas} replicas in all",
            condition=_C.WARM_POOL_READY,
            status=True,
        ),
        Reason.WARM_POOL_LIMITED: _tell(
            "WarmPoolLimited",
            "{warm_wanted} warm replicas are wanted; maxIdleGPUs or maxReplicas allow {warm}",
            "raise maxIdleGPUs in the SLOPolicy or maxReplicas of the service if bursts must be met in full",
            condition=_C.SCALING_LIMITED,
            status=True,
        ),
        Reason.WARM_POOL_DRAWN: _tell("WarmPoolDrawn", "the burst that the pool was kept for is being served"),
        Reason.WARM_SERVES: _tell("WarmServes", "traffic keeps {need_milli} of {held} busy: more than {needed} serve"),
        # --- consolidation
        Reason.SHRINK_WAITS: _tell(
            "ShrinkWaits", "fewer would do, {keep} by now, since {waited_ms}; {delay_ms} are to pass before any goes"
        ),
        Reason.SHRINK_WOULD_MISS_SLO: _tell(
            "ShrinkWouldMissSLO",
            "with fewer than {keep} replicas utilisation, ITL or TTFT would pass 80 % of its target",
        ),
        Reason.SHRINK_WAS_REGRETTED: _tell(
            "ShrinkWasRegretted",
            "a recent removal had to be taken back under the same load; it is not tried again for 30 minutes",
        ),
        Reason.SHRINK: _tell("Shrink", "{to} replicas have sufficed for {delay_ms}"),
        Reason.IDLE: _tell("Idle", "no request for {idle_ms}: a Batch service goes to zero"),
        # --- bounds and modes
        Reason.MIN_REPLICAS: _tell(
            "MinReplicas", "lifted to minReplicas {replicas_min}", condition=_C.SCALING_LIMITED, status=True
        ),
        Reason.MAX_REPLICAS: _tell(
            "MaxReplicas",
            "{wanted} replicas are needed, maxReplicas is {replicas_max}",
            "raise scaling.maxReplicas",
            condition=_C.SCALING_LIMITED,
            status=True,
            warning=True,
        ),
        Reason.MANUAL: _tell(
            "Manual", "mode Manual: spec.replicas asks for {replicas_manual}", condition=_C.SCALING_ACTIVE
        ),
        Reason.PAUSED: _tell(
            "Paused",
            "mode Paused: what is there stays",
            "set scaling.mode to Auto to go on",
            condition=_C.SCALING_ACTIVE,
        ),
        Reason.BLOCKED: _tell(
            "Blocked",
            "the service cannot run as specified; what is there stays and nothing is started",
            "see the condition Ready for what to change",
            condition=_C.SCALING_ACTIVE,
            warning=True,
        ),
        Reason.ACTIVATED: _tell(
            "Activated", "{held} requests are held and nothing serves", condition=_C.SCALING_ACTIVE, status=True
        ),
        # --- GPU budget and disruption
        Reason.GPU_CAPACITY: _tell(
            "GPUCapacity",
            "{gpus_wanted} GPUs are wanted, {gpus_granted} can be had; the pool has {gpus_available}, {gpus_used} used",
            "add GPUs to the pool, raise maxGPUs, or give this service's policy a higher priority",
            condition=_C.GPU_CAPACITY,
            warning=True,
        ),
        Reason.GPU_NODES_UNREADABLE: _tell(
            "GPUNodesUnreadable",
            "the nodes of the pool could not be read; nothing new is started",
            "check the operator's permission to list nodes and the pool's nodeSelector",
            condition=_C.GPU_CAPACITY,
            warning=True,
        ),
        Reason.UNSCHEDULABLE: _tell(
            "Unschedulable",
            "no node can take {unschedulable} replicas; they are withdrawn and tried again in {retry_ms}",
            "look for taints, memory requests or GPUs held by pods that are not Forebay's",
            condition=_C.GPU_CAPACITY,
            warning=True,
        ),
        Reason.ONE_REMOVAL_AT_A_TIME: _tell("OneRemovalAtATime", "at most one serving replica is taken out in a tick"),
        # --- told by resolve
        Reason.POLICY_NOT_FOUND: _tell(
            "PolicyNotFound",
            "the SLOPolicy that sloPolicyRef names does not exist",
            "create it, or name one that `kubectl get slopolicies` lists",
            condition=_C.READY,
            warning=True,
        ),
        Reason.POLICY_NOT_ALLOWED: _tell(
            "PolicyNotAllowed",
            "the SLOPolicy does not allow this namespace",
            "ask the platform team to add the namespace to allowedNamespaces",
            condition=_C.READY,
            warning=True,
        ),
        Reason.POOL_NOT_FOUND: _tell(
            "PoolNotFound",
            "the GPUPool that gpuPoolRef names does not exist",
            "create it, or remove gpuPoolRef to use the resource's implicit pool",
            condition=_C.READY,
            warning=True,
        ),
        Reason.MODEL_DOES_NOT_FIT: _tell(
            "ModelDoesNotFit",
            "weights and one request need {bytes_needed_mib} MiB a GPU, {bytes_available_mib} MiB are there",
            "raise parallelism.tensor, lower maxModelLen, or choose an accelerator with more memory",
            condition=_C.READY,
            warning=True,
        ),
        Reason.NAME_CONFLICT: _tell(
            "NameConflict",
            "an older service already answers to this served name",
            "choose another model.servedName or alias",
            condition=_C.READY,
            warning=True,
        ),
        Reason.INVALID_SPEC: _tell(
            "InvalidSpec",
            "the specification cannot be used as it is",
            "apply it again with the installed CRDs; the API server says which field is wrong",
            condition=_C.READY,
            warning=True,
        ),
        # --- told by observe and actuate
        Reason.IMAGE_PULL_FAILED: _tell(
            "ImagePullFailed",
            "the image of {replicas} replicas cannot be pulled",
            "check engine.image and its pull secret",
            condition=_C.READY,
            warning=True,
        ),
        Reason.ENGINE_FAILED: _tell(
            "EngineFailed",
            "the engine of {replicas} replicas ended by itself",
            "look at the log of the replica; out of memory and a wrong model path are the usual causes",
            condition=_C.READY,
            warning=True,
        ),
        Reason.ENGINE_NEVER_READY: _tell(
            "EngineNeverReady",
            "the engine of {replicas} replicas did not become ready in time",
            "look at the log of the replica; a slow model download needs a longer start deadline or a local copy",
            condition=_C.READY,
            warning=True,
        ),
        Reason.METRICS_GARBAGE: _tell(
            "MetricsGarbage",
            "what {replicas} replicas report cannot be read; they count as unknown",
            "check that the image is a supported engine version",
            condition=_C.METRICS_AVAILABLE,
            warning=True,
        ),
        Reason.SERVED_NAME_MISMATCH: _tell(
            "ServedNameMismatch",
            "the metrics of {replicas} replicas bear another served name than the service",
            "make model.servedName and the engine's --served-model-name agree",
            condition=_C.METRICS_AVAILABLE,
            warning=True,
        ),
        Reason.REPLICAS_STARTING: _tell(
            "ReplicasStarting", "{starting} replicas are starting", condition=_C.PROGRESSING, status=True
        ),
        Reason.REPLICAS_READY: _tell(
            "ReplicasReady", "{ready} of {wanted} replicas serve", condition=_C.READY, status=True
        ),
        Reason.ROLLING_OUT: _tell(
            "RollingOut",
            "{outdated} replicas run an older revision and are replaced",
            condition=_C.PROGRESSING,
            status=True,
        ),
        Reason.PROMOTED: _tell("Promoted", "{replicas} warm replicas now serve"),
        Reason.DEMOTED: _tell("Demoted", "{replicas} serving replicas are now warm"),
        Reason.REPLICA_STARTED: _tell("ReplicaStarted", "{replicas} replicas are being started"),
        Reason.REPLICA_DRAINING: _tell("ReplicaDraining", "{replicas} replicas finish their requests and leave"),
        Reason.REPLICA_REPLACED: _tell("ReplicaReplaced", "{replicas} replicas failed and are replaced", warning=True),
        Reason.WRITE_REFUSED: _tell(
            "WriteRefused",
            "the API server refused {writes} writes; they are tried again",
            "check quotas, admission webhooks and the operator's permissions",
            condition=_C.ABLE_TO_SCALE,
            warning=True,
        ),
        Reason.NO_CAPACITY_FREE: _tell(
            "NoCapacityFree",
            "old replicas hold the GPUs that {replicas} new ones need; they are replaced one at a time",
        ),
        Reason.NO_REPLICAS_READY: _tell(
            "NoReplicasReady", "none of {wanted} replicas serves", "look at the pods of the service", condition=_C.READY
        ),
        Reason.SOME_REPLICAS_READY: _tell(
            "SomeReplicasReady", "{ready} of {wanted} replicas serve", condition=_C.READY, status=True
        ),
        Reason.WARM_POOL_FULL: _tell(
            "WarmPoolFull", "{warm} of {wanted} warm replicas are ready", condition=_C.WARM_POOL_READY, status=True
        ),
        Reason.WARM_POOL_STARTING: _tell(
            "WarmPoolStarting", "{warm} of {wanted} warm replicas are ready", condition=_C.WARM_POOL_READY
        ),
        # --- told by control
        Reason.FOREIGN_AUTOSCALER: _tell(
            "ForeignAutoscaler",
            "another autoscaler targets this service; Forebay has stopped scaling it",
            "remove the HorizontalPodAutoscaler or ScaledObject, or set scaling.mode to Manual",
            condition=_C.SCALING_ACTIVE,
            warning=True,
        ),
        Reason.SECOND_OPERATOR: _tell(
            "SecondOperator",
            "another Forebay with an overlapping scope drives this service",
            "keep one release, or give each its own watched namespaces",
            condition=_C.SCALING_ACTIVE,
            warning=True,
        ),
        Reason.PAUSED_BY_USER: _tell(
            "PausedByUser",
            "the annotation forebay.dev/paused stops scaling",
            "remove the annotation to go on",
            condition=_C.SCALING_ACTIVE,
        ),
        Reason.MEMORY_UNREADABLE: _tell(
            "MemoryUnreadable",
            "the stored memory could not be read; what runs is kept and learning starts anew",
            condition=_C.ABLE_TO_SCALE,
            status=True,
            warning=True,
        ),
        Reason.AUTOSCALING: _tell(
            "Autoscaling", "Forebay drives this service", condition=_C.SCALING_ACTIVE, status=True
        ),
        # --- told by report
        Reason.SLO_MET: _tell(
            "SLOMet",
            "{attained_permille} of the requests were good, {attainment_permille} are asked",
            condition=_C.SLO_MET,
            status=True,
        ),
        Reason.SLO_MISSED: _tell(
            "SLOMissed",
            "{attained_permille} of the requests were good, {attainment_permille} are asked",
            "run `forebay explain` for the cause; maxReplicas, maxGPUs or maxIdleGPUs may be too low",
            condition=_C.SLO_MET,
            warning=True,
        ),
        Reason.SLO_UNMEASURED: _tell("SLOUnmeasured", "no request ended recently", condition=_C.SLO_MET, status=True),
        Reason.AS_EXPECTED: _tell("AsExpected", "nothing stands in the way"),
    }
)


def wording(reason: int) -> Wording:
    """Look up how a reason's number is told."""
    return WORDINGS[Reason(reason)]
