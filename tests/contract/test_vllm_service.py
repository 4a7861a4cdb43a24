"""The InferenceService of the real engine: accepted by the API, and a pod that has what vLLM needs."""

from __future__ import annotations

from pathlib import Path

from e2e.vllm.environment import VllmEnvironment
from e2e.vllm.service import inference_service
from forebay.api.inference_service import InferenceService

ENVIRONMENT = VllmEnvironment(Path("/cache/vllm"), Path("/cache/vllm/libraries"), Path("/usr/bin/python3.11"))


def test_it_is_an_inference_service_whose_arguments_arrive() -> None:
    read = InferenceService.model_validate(inference_service("chat", "tiny", ENVIRONMENT, Path("/cache/model")))
    assert read.spec.engine.type.value == "VLLM"
    assert "--enforce-eager" in read.spec.engine.extra_args
    assert read.spec.model.uri == "file:///opt/tiny-model"
