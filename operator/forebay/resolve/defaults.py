"""What holds where a user says nothing: policies by class, images by engine, lead times before any was measured."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from forebay.api.engine import EngineType
from forebay.api.inference_service import ServiceClass
from forebay.api.slo_policy import ITL, TTFT, Burst, SLOPolicySpec

if TYPE_CHECKING:
    from collections.abc import Mapping

# The same as policies/interactive-chat.yaml and policies/batch.yaml (a test compares them).
POLICY_BY_CLASS: Mapping[ServiceClass, SLOPolicySpec] = MappingProxyType(
    {
        ServiceClass.INTERACTIVE: SLOPolicySpec(
            ttft=TTFT(target_milliseconds=500, per_thousand_prompt_tokens_milliseconds=150),
            itl=ITL(mean_milliseconds=50, worst_second_milliseconds=200),
            attainment_permille=990,
            burst=Burst(multiplier=3, within_seconds=30),
            headroom_percent=15,
            max_idle_gpus=8,
            priority=100,
        ),
        ServiceClass.BATCH: SLOPolicySpec(
            ttft=TTFT(target_milliseconds=60_000, per_thousand_prompt_tokens_milliseconds=1000),
            itl=ITL(mean_milliseconds=200, worst_second_milliseconds=2000),
            attainment_permille=900,
            burst=Burst(multiplier=1, within_seconds=600),
            headroom_percent=0,
            max_idle_gpus=0,
            priority=10,
        ),
    }
)

# One API write, the watch at the gateway and Envoy's reload were 0.1 to 0.3 s on the local cluster.
LEAD_PROMOTE_MS = 300
# 8B to 32B models on H100 and A100 took 90 to 130 s from pod to first answer; half of it is the engine's own CPU work.
LEAD_COLD_VLLM_MS = 110_000
# Schedule, pull nothing, start the container and pass the probes: 1.8 to 3.1 s on the local cluster.
LEAD_POD_MS = 3_000


@dataclass(frozen=True, slots=True)
class ReplicaDefaults:
    """What the installation gives every replica."""

    vllm_image: str
    emulated_image: str
    operator_username: str  # "system:serviceaccount:NAMESPACE:NAME", who may call a supervisor

    def image(self, engine: EngineType) -> str:
        """Return the image of an engine."""
        match engine:
            case EngineType.VLLM:
                return self.vllm_image
            case EngineType.EMULATED:
                return self.emulated_image
