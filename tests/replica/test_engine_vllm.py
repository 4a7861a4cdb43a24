"""The command line and environment of vLLM. That vLLM accepts them is seen in tests/vllm."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from forebay.wire.replica_config import ENV_CONFIG, Emulation, ReplicaConfig, ReplicaConfigError
from forebay_replica.engine_vllm import EngineCommand, vllm_command
from forebay_replica.program import engine_command, main

CONFIG = ReplicaConfig("VLLM", "hf://meta-llama/Llama-3.1-8B-Instruct", ("llama", "alias"))


def command(config: ReplicaConfig, environment: dict[str, str] | None = None, gpu: bool = True) -> EngineCommand:
    return vllm_command(config, 8000, "secret", Path("/guard"), environment or {}, gpu=gpu)


def words(config: ReplicaConfig, gpu: bool = True) -> list[str]:
    return list(command(config, gpu=gpu).argv)


def value(config: ReplicaConfig, flag: str) -> str:
    arguments = words(config)
    return arguments[arguments.index(flag) + 1]


def test_every_setting_has_its_flag() -> None:
    config = replace(
        CONFIG,
        dtype="bfloat16",
        kv_cache_dtype="fp8",
        max_model_len=4096,
        max_num_seqs=64,
        max_num_batched_tokens=1024,
        gpu_memory_utilization_permille=850,
        tensor_parallel=4,
    )
    wanted = {
        "--dtype": "bfloat16",
        "--kv-cache-dtype": "fp8",
        "--max-model-len": "4096",
        "--max-num-seqs": "64",
        "--max-num-batched-tokens": "1024",
        "--gpu-memory-utilization": "0.85",
        "--tensor-parallel-size": "4",
        "--port": "8000",
        "--shutdown-timeout": "10",
        "--middleware": "forebay_replica.engine_guard.EngineGuard",
    }
    assert {flag: value(config, flag) for flag in wanted} == wanted
    arguments = words(config)
    at = arguments.index("--served-model-name")
    assert arguments[at + 1 : at + 3] == ["llama", "alias"]
    switches = {"--enable-prefix-caching", "--enable-prompt-tokens-details", "--enable-sleep-mode"}
    assert switches | {"--disable-uvicorn-access-log"} <= set(arguments)


def test_prefix_caching_can_be_off() -> None:
    assert "--no-enable-prefix-caching" in words(replace(CONFIG, prefix_caching=False))


def test_without_a_gpu_there_is_no_sleep_mode() -> None:
    assert "--enable-sleep-mode" not in words(CONFIG, gpu=False)


def test_the_users_arguments_override_settings_but_not_what_the_pod_depends_on() -> None:
    arguments = words(replace(CONFIG, extra_args=("--max-num-seqs", "8", "--port", "1")))
    assert [arguments[i + 1] for i, word in enumerate(arguments) if word == "--max-num-seqs"] == ["256", "8"]
    assert [arguments[i + 1] for i, word in enumerate(arguments) if word == "--port"] == ["1", "8000"]


MODELS = {
    "hf://org/name": ["--model", "org/name"],
    "hf://org/name@v1": ["--model", "org/name", "--revision", "v1"],
    "file:///models/tiny": ["--model", "/models/tiny"],
    "pvc://weights/llama/8b": ["--model", "/models/llama/8b"],
    "pvc://weights": ["--model", "/models"],
    "s3://bucket/llama": ["--model", "s3://bucket/llama", "--load-format", "runai_streamer"],
}


@pytest.mark.parametrize(("uri", "arguments"), MODELS.items(), ids=MODELS)
def test_a_model_uri(uri: str, arguments: list[str]) -> None:
    made = words(replace(CONFIG, model_uri=uri))
    assert made[3 : 3 + len(arguments)] == arguments


@pytest.mark.parametrize("uri", ["gs://bucket/llama", "/models/tiny", ""])
def test_a_model_that_vllm_cannot_load_is_refused(uri: str) -> None:
    with pytest.raises(ReplicaConfigError, match="hf://"):
        words(replace(CONFIG, model_uri=uri))


def test_the_images_python_runs_it_unless_another_is_named() -> None:
    assert command(CONFIG).argv[:3] == ("python3", "-m", "vllm.entrypoints.openai.api_server")
    assert command(CONFIG, {"FOREBAY_VLLM_PYTHON": "/opt/py"}).argv[0] == "/opt/py"


def test_the_guard_is_found_last_and_the_rest_of_the_environment_stays() -> None:
    made = command(CONFIG, {"FOREBAY_VLLM_PYTHONPATH": "/vllm", "PYTHONPATH": "/mine", "HF_TOKEN": "t"}).environment
    assert made["PYTHONPATH"] == "/vllm:/mine:/guard"
    assert (made["HF_TOKEN"], made["VLLM_SERVER_DEV_MODE"], made["FOREBAY_ENGINE_TOKEN"]) == ("t", "1", "secret")
    assert command(CONFIG).environment["PYTHONPATH"] == "/guard"


def test_the_guards_folder_shows_this_package_and_no_other(tmp_path: Path) -> None:
    engine_command(CONFIG, 8000, "secret", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["forebay_replica"]
    assert (tmp_path / "forebay_replica" / "engine_guard.py").exists()


def test_the_emulated_engine_runs_in_the_supervisors_python(tmp_path: Path) -> None:
    config = replace(CONFIG, engine="Emulated", emulation=Emulation(*range(11)))
    made = engine_command(config, 8000, "secret", tmp_path)
    assert made.argv[:3] == (sys.executable, "-m", "forebay_replica.engine_emulated")
    assert made.argv[3:] == ("--host", "0.0.0.0", "--port", "8000")


def test_an_unknown_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReplicaConfigError, match="VLLM and Emulated"):
        engine_command(replace(CONFIG, engine="TGI"), 8000, "secret", tmp_path)


def test_a_replica_without_a_configuration_says_so_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_CONFIG, raising=False)
    assert main([]) == 2
