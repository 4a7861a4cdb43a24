"""How vLLM's OpenAI server is started for a ReplicaConfig: a command line, an environment, and nothing that runs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from forebay.wire.replica_config import MODEL_MOUNT, ReplicaConfigError
from forebay_replica.engine_guard import ENV_TOKEN, MIDDLEWARE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from forebay.wire.replica_config import ReplicaConfig

ENV_PYTHON = "FOREBAY_VLLM_PYTHON"  # the interpreter that has vLLM; default: `python3` of the image
ENV_PYTHONPATH = "FOREBAY_VLLM_PYTHONPATH"  # vLLM's packages, where that interpreter does not find them by itself

# What vLLM itself grants streams after SIGTERM. The supervisor sends it only when nothing runs any more, so this covers
# a request that slipped in between; with vLLM's own default of 0 that one would be cut off.
SHUTDOWN_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """What to start as the engine."""

    argv: tuple[str, ...]
    environment: dict[str, str]


def vllm_command(
    config: ReplicaConfig, port: int, token: str, guard: Path, environment: Mapping[str, str], *, gpu: bool
) -> EngineCommand:
    """Return the command for vLLM's OpenAI server.

    Parameters
    ----------
    guard
        A folder from which `forebay_replica.engine_guard` can be imported, and nothing else of the supervisor's
        packages: those would shadow vLLM's own versions of them.
    gpu
        Whether there is a GPU. Without one vLLM refuses to start with --enable-sleep-mode.

    Raises
    ------
    ReplicaConfigError
        When vLLM cannot load from such a model URI.
    """
    arguments = [
        *_model(config.model_uri),
        *("--served-model-name", *config.served_names),
        *("--dtype", config.dtype),
        *("--kv-cache-dtype", config.kv_cache_dtype),
        *("--max-model-len", str(config.max_model_len)),
        *("--max-num-seqs", str(config.max_num_seqs)),
        *("--max-num-batched-tokens", str(config.max_num_batched_tokens)),
        *("--gpu-memory-utilization", str(config.gpu_memory_utilization_permille / 1000)),
        *("--tensor-parallel-size", str(config.tensor_parallel)),
        "--enable-prefix-caching" if config.prefix_caching else "--no-enable-prefix-caching",
        "--enable-prompt-tokens-details",
        "--disable-uvicorn-access-log",  # the supervisor alone would write a line a second
        *(["--enable-sleep-mode"] if gpu else []),
        # The user's arguments override those above: of an argument given twice the last one counts. They do not
        # override those below, on which the pod's ports, its drain and its guard depend.
        *config.extra_args,
        *("--host", "0.0.0.0"),  # noqa: S104 - Envoy comes from other pods
        *("--port", str(port)),
        *("--shutdown-timeout", str(SHUTDOWN_TIMEOUT_S)),
        *("--middleware", MIDDLEWARE),
    ]
    python = environment.get(ENV_PYTHON) or "python3"
    paths = [environment.get(ENV_PYTHONPATH), environment.get("PYTHONPATH"), str(guard)]
    added = {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "VLLM_SERVER_DEV_MODE": "1",  # /sleep and /wake_up exist only then; the guard keeps them from the network
        ENV_TOKEN: token,
    }
    return EngineCommand((python, "-m", "vllm.entrypoints.openai.api_server", *arguments), {**environment, **added})


def _model(uri: str) -> list[str]:
    parts = urlsplit(uri)
    match parts.scheme:
        case "hf":
            return _hugging_face(parts)
        case "file":
            return ["--model", parts.path]
        case "pvc":  # the operator mounts the claim; what follows its name is a path in it
            return ["--model", MODEL_MOUNT + parts.path.rstrip("/")]
        case "s3":
            return ["--model", uri, "--load-format", "runai_streamer"]
        case _:
            raise ReplicaConfigError(f"vLLM cannot load {uri!r}; use hf://, pvc://, s3:// or file://")


def _hugging_face(parts: SplitResult) -> list[str]:
    name, _, revision = (parts.netloc + parts.path).partition("@")
    return ["--model", name, *(["--revision", revision] if revision else [])]
