"""containerd's storage with images already in it, made once, so that a node starts with them instead of unpacking.

Unpacking the three images costs a node 15 s; a copy of hard links costs 0.4 s. The files are safe to share: blobs and
unpacked layers are never written again, and the databases, which are, get copied for real.

Run as a program, this file is what fills a store, inside namespaces that end with it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_SOCKET = "/run/store.sock"
# Only what imports and unpacks; the opt plugin would make /opt/containerd.
_CONFIGURATION = """version = 2
disabled_plugins = [
  "io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp",
]
"""
_STORES_KEPT = 3
_ANSWERS_WITHIN_S = 30.0


def filled(archives: Sequence[Path]) -> Path:
    """A store that holds these images; fill one unless the cache has it."""
    from e2e.cluster.paths import cache, digest, locked

    stores = cache() / "image-stores"
    stores.mkdir(exist_ok=True)
    states = [(archive.name, archive.stat()) for archive in archives]
    store = stores / digest((), *(f"{name} {state.st_size} {state.st_ino}" for name, state in states))
    with locked("image-stores"):
        if not store.is_dir():
            _fill(store, archives)
        store.touch()
        for old in _newest_first(stores)[_STORES_KEPT:]:
            shutil.rmtree(old)
    return store


def copy(store: Path, target: Path) -> None:
    """Give a node its own copy; hard links where both lie on one file system."""
    target.parent.mkdir(parents=True, exist_ok=True)
    how = "--link" if store.stat().st_dev == target.parent.stat().st_dev else "--reflink=auto"
    subprocess.run(["cp", "--archive", how, "--no-target-directory", store, target], check=True)
    for database in store.rglob("*.db"):
        private = target / database.relative_to(store)
        private.unlink()
        shutil.copy2(database, private)


def _newest_first(stores: Path) -> list[Path]:
    found = [path for path in stores.iterdir() if not path.name.startswith(".")]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)


def _fill(store: Path, archives: Sequence[Path]) -> None:
    from e2e.cluster.command import CONTAINED, run
    from e2e.cluster.progress import say

    say(f"Unpacking images: {', '.join(archive.stem for archive in archives)}")
    with tempfile.TemporaryDirectory(dir=store.parent, prefix=".filling-") as folder:
        root = Path(folder) / "root"
        # The layers of the last store are mostly those of the next: after a change of code all but one.
        for last in _newest_first(store.parent)[:1]:
            copy(last, root)
        run([*CONTAINED, sys.executable, "-S", "-E", __file__, str(root), *map(str, archives)])
        root.rename(store)


def main() -> None:
    """Import the archives (arguments from the second on) into the store (the first)."""
    root, *archives = sys.argv[1:]
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    configuration = Path("/run/store.toml")
    configuration.write_text(_CONFIGURATION)
    options = ("--config", str(configuration), "--root", root, "--state", "/run/store", "--address", _SOCKET)
    with subprocess.Popen(["containerd", "--log-level", "warn", *options]) as containerd:
        ctr = ("ctr", "--address", _SOCKET, "--namespace=k8s.io")
        deadline = time.monotonic() + _ANSWERS_WITHIN_S
        while subprocess.run([*ctr, "version"], capture_output=True, check=False).returncode:
            if time.monotonic() > deadline or containerd.poll() is not None:
                sys.exit("containerd did not answer")
            time.sleep(0.05)
        imported = "".join(_output(*ctr, "images", "import", archive) for archive in archives)
        # The store that this one began as may hold images that are not wanted here. What the import itself did not
        # name goes; layers without an image are collected when containerd starts next.
        for name in _output(*ctr, "images", "ls", "--quiet").split():
            if f"unpacking {name} " not in imported:
                _output(*ctr, "images", "rm", name)
        containerd.terminate()


def _output(*argv: str) -> str:
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
