"""An InferenceService that runs the real vLLM of this machine's cache in a pod, on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from e2e.vllm.environment import FAST_ON_CPU, FAST_ON_CPU_ARGUMENTS, LIBRARIES

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.vllm.environment import VllmEnvironment

# Where the pod sees the two folders; both are read-only.
PACKAGES_AT = "/opt/vllm"
MODEL_AT = "/opt/tiny-model"


def inference_service(namespace: str, name: str, environment: VllmEnvironment, model: Path) -> dict[str, Any]:
    """Make the manifest. The replica's image needs Debian 12's python3 and the supervisor, no vLLM and no compiler.

    One replica takes 1.6 GB of memory, and 15 s of two idle cores to start.
    """
    variables = FAST_ON_CPU | {
        "FOREBAY_VLLM_PYTHONPATH": PACKAGES_AT,
        "LD_LIBRARY_PATH": f"{PACKAGES_AT}/{LIBRARIES}",
    }
    return {
        "apiVersion": "forebay.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "model": {"uri": f"file://{MODEL_AT}"},
            "engine": {
                "type": "VLLM",
                "maxModelLen": 2048,
                "maxNumSeqs": 16,
                "maxNumBatchedTokens": 256,
                "startDeadlineSeconds": 600,
                "extraArgs": list(FAST_ON_CPU_ARGUMENTS),
            },
            "accelerators": [{"name": "cpu", "type": "CPU"}],
            "scaling": {"minReplicas": 1, "maxReplicas": 2},
            "drain": {"deadlineSeconds": 60},
            "template": {
                "spec": {
                    "containers": [
                        {
                            "name": "engine",
                            "env": [{"name": key, "value": value} for key, value in variables.items()],
                            "resources": {"requests": {"cpu": "500m", "memory": "2Gi"}, "limits": {"memory": "4Gi"}},
                            "volumeMounts": [
                                {"name": "vllm", "mountPath": PACKAGES_AT, "readOnly": True},
                                {"name": "tiny-model", "mountPath": MODEL_AT, "readOnly": True},
                            ],
                        }
                    ],
                    "volumes": [
                        {"name": "vllm", "hostPath": {"path": str(environment.packages), "type": "Directory"}},
                        {"name": "tiny-model", "hostPath": {"path": str(model), "type": "Directory"}},
                    ],
                }
            },
        },
    }
