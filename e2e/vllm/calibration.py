"""Record the real vLLM for the calibration of the engine model: one core for its engine, the other for all the rest.

The model has random weights that are never read from a file, and is large enough that a step takes more than ten
milliseconds: below that the scheduler's own Python is most of a step, which says nothing of a GPU.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from e2e.cluster.paths import cache, digest, locked
from e2e.cluster.progress import say
from e2e.vllm.environment import FAST_ON_CPU, EnvironmentUnfitError, VllmEnvironment, provision
from e2e.vllm.tiny_model import tiny_model

if TYPE_CHECKING:
    from collections.abc import Iterator

# 38 M parameters in bf16: a core reads 77 MB in every step, 15 ms in all.
SHAPE = {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
MAX_MODEL_LEN = 1024
MAX_NUM_SEQS = 16
MAX_NUM_BATCHED_TOKENS = 256
# 2 x 6 layers x 4 heads x 64 x 2 bytes = 6 KiB a token: some 3,000 tokens, so that sixteen requests do not fit.
KV_CACHE = "18M"
ENGINE_CORE, OTHER_CORE = 0, 1
START_S = 300
PORT = 8011


def model() -> Path:
    """Return the folder of the model's configuration and tokenizer, made when it is missing."""
    tiny = tiny_model()
    folder = cache() / f"calibration-llama-{digest([Path(__file__)], tiny.name)}"
    with locked(folder.name):
        if not folder.is_dir():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            shutil.copytree(tiny, partial, ignore=shutil.ignore_patterns("*.safetensors"))
            config = json.loads((partial / "config.json").read_text(encoding="utf-8"))
            (partial / "config.json").write_text(json.dumps(config | SHAPE, indent=1), encoding="utf-8")
            partial.rename(folder)
    return folder


@contextmanager
def running() -> Iterator[str]:
    """Run vLLM and yield its URL.

    Raises
    ------
    EnvironmentUnfitError
        On a machine with one core, or when vLLM does not start.
    """
    if len(os.sched_getaffinity(0)) <= OTHER_CORE:
        raise EnvironmentUnfitError("calibration needs two cores: one for the engine, one for its clients")
    log = cache() / "calibration-vllm.log"
    with log.open("wb") as out:
        # Its own session: a signal must reach the engine's process as well, which outlives its server otherwise.
        server = subprocess.Popen(
            _command(), env=_environment(provision()), stdout=out, stderr=out, start_new_session=True
        )
    try:
        _wait(server, log)
        _pin(server.pid)
        yield f"http://127.0.0.1:{PORT}"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def record(folder: Path, seconds: int, runs: int) -> int:
    """Run `forebay calibrate engine` against vLLM; its exit status."""
    with running() as url:
        say(f"vLLM is up, its engine alone on core {ENGINE_CORE}")
        limits = ["--max-num-seqs", str(MAX_NUM_SEQS), "--max-num-batched-tokens", str(MAX_NUM_BATCHED_TOKENS)]
        times = ["--seconds", str(seconds), "--runs", str(runs)]
        forebay = Path(sys.executable).with_name("forebay")
        command = [str(forebay), "calibrate", "engine", "--url", url, "--recordings", str(folder), *limits, *times]
        return subprocess.run(["taskset", "-c", str(OTHER_CORE), *command], check=False).returncode


def _command() -> list[str]:
    return [
        str(provision().python),
        *("-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model()), "--load-format", "dummy", "--served-model-name", "random-38m"),
        *("--host", "127.0.0.1", "--port", str(PORT), "--disable-uvicorn-access-log"),
        *("--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", str(MAX_NUM_SEQS)),
        *("--max-num-batched-tokens", str(MAX_NUM_BATCHED_TOKENS)),
        *("--kv-cache-memory-bytes", KV_CACHE, "--block-size", "32"),
        *("--enforce-eager", "--distributed-executor-backend", "uni"),
    ]


def _environment(vllm: VllmEnvironment) -> dict[str, str]:
    return os.environ | FAST_ON_CPU | {"PYTHONPATH": str(vllm.packages), "LD_LIBRARY_PATH": str(vllm.libraries)}


def _wait(server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=2):
                return
        except (OSError, urllib.error.URLError):
            time.sleep(0.5)
    raise EnvironmentUnfitError(f"vLLM did not start:\n{log.read_text(encoding='utf-8')[-2000:]}")


def _pin(server: int) -> None:
    """Give the engine's process a core of its own, and the server the one that its clients run on."""
    for process in _session(server):
        name = Path(f"/proc/{process}/cmdline").read_bytes()
        core = ENGINE_CORE if b"EngineCore" in name else OTHER_CORE
        for thread in Path(f"/proc/{process}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {core})


def _session(leader: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if os.getsid(int(folder.name)) == leader:
                    found.append(int(folder.name))
            except ProcessLookupError:
                continue
    return found
