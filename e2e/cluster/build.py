"""Build Kubernetes, CoreDNS and helm from the Go module proxy, once, into the user's cache.

Each module folder gives one folder of programs, named after everything that went in: sources, go.sum, the Go
version and the flags. Another input means another folder, so two checkouts share what is equal and disturb nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.command import DIES_WITH_US, run
from e2e.cluster.errors import CommandFailed, MachineUnfit
from e2e.cluster.paths import SOURCES, cache, digest, locked
from e2e.cluster.progress import bar, say

# One set of flags for all modules: Go's build cache is keyed by them, and another set compiles 2,800 packages again.
# Without cgo the programs are static and no C compiler is needed.
_FLAGS = ("-trimpath", "-buildvcs=false")
_ENV = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"}

_VERSION = "v1.36.3"
_STAMPS = {
    "k8s.io/component-base/version.gitVersion": _VERSION,
    "k8s.io/component-base/version.gitMajor": "1",
    "k8s.io/component-base/version.gitMinor": "36",
    "k8s.io/component-base/version.gitTreeState": "clean",
    "k8s.io/client-go/pkg/version.gitVersion": _VERSION,
    "k8s.io/client-go/pkg/version.gitMajor": "1",
    "k8s.io/client-go/pkg/version.gitMinor": "36",
}


@dataclass(frozen=True)
class Module:
    """A folder with a go.mod, and the names under which its main program answers."""

    folder: str
    title: str
    names: tuple[str, ...] = ()


KUBERNETES = Module(
    "kubernetes",
    f"Kubernetes {_VERSION}",
    ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl"),
)
COREDNS = Module("coredns", "CoreDNS")
HELM = Module("helm", "helm")
MODULES = (KUBERNETES, COREDNS, HELM)


@dataclass(frozen=True)
class Programs:
    """The folders with everything that a cluster runs."""

    kubernetes: Path
    coredns: Path
    helm: Path

    @property
    def path(self) -> str:
        """What to put in front of PATH."""
        return f"{self.kubernetes}:{self.coredns}:{self.helm}"


def programs() -> Programs:
    """Build whatever the cache does not hold yet."""
    return Programs(*(_built(module) for module in MODULES))


def _built(module: Module) -> Path:
    if not shutil.which("go"):
        raise MachineUnfit("Go is needed to build Kubernetes and was not found on PATH (https://go.dev/dl).")
    sources = SOURCES / module.folder
    inputs = [file for file in sources.rglob("*") if file.suffix in {".go", ".mod", ".sum"}]
    version = run(["go", "env", "GOVERSION", "GOARCH"], cwd=sources)
    key = digest(inputs, version, *_FLAGS, *(f"{name}={value}" for name, value in (*_ENV.items(), *_STAMPS.items())))
    target = cache() / "bin" / f"{module.folder}-{key}"
    if target.is_dir():
        return target
    # One build at a time on the whole machine: both would want every core and most of the same packages.
    with locked("go-build"):
        if not target.is_dir():
            _build(module, sources, target)
    return target


def _build(module: Module, sources: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".building-") as folder:
        out = Path(folder) / "out"
        out.mkdir()
        stamps = " ".join(f"-X {name}={value}" for name, value in _STAMPS.items())
        link = ("-ldflags", f"-s -w {stamps}", "-o", f"{out}/")
        _compile(module, sources, ["go", "build", "-v", *_FLAGS, *link, "./..."])
        for name in module.names:
            (out / name).symlink_to(module.folder)
        out.rename(target)


def _compile(module: Module, sources: Path, argv: list[str]) -> None:
    env = {**os.environ, **_ENV}
    say(f"Building {module.title} from its Go modules: minutes the first time, then never again")
    packages = len(run(["go", "list", "-deps", "./..."], cwd=sources, env=_ENV).splitlines())
    command = [*DIES_WITH_US, "nice", "-n", "5", *argv]
    lines: list[str] = []
    with (
        bar(f"Building {module.title}", packages) as progress,
        subprocess.Popen(command, cwd=sources, env=env, stderr=subprocess.PIPE, text=True) as process,
    ):
        for line in process.stderr or ():
            lines.append(line)
            progress.show(len(lines), line.strip())
        # Packages that Go's own cache held were not compiled, so the count alone may end early.
        progress.show(packages, "done")
    if process.returncode:
        raise CommandFailed(argv, process.returncode, "".join(lines))
