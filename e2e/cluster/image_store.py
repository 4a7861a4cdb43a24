"""containerd's storage with images already in it, made once, so that a node starts with them instead of unpacking.

Unpacking the three images costs a node 15 s; a copy of hard links costs 0.4 s. The files are safe to share: blobs and
unpacked layers are never written again, and the databases, which are, get copied for real.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from e2e.cluster.command import CONTAINED, DIES_WITH_US, run
from e2e.cluster.paths import SOURCES, cache, digest, locked
from e2e.cluster.progress import say

if TYPE_CHECKING:
    from collections.abc import Sequence

_STORES_KEPT = 3


def filled(archives: Sequence[Path]) -> Path:
    """Return a store that holds these images; fill one unless the cache has it."""
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
    run([*DIES_WITH_US, "cp", "--archive", how, "--no-target-directory", str(store), str(target)])
    for database in store.glob("*/*.db"):
        private = target / database.relative_to(store)
        private.unlink()
        shutil.copy2(database, private)


def _newest_first(stores: Path) -> list[Path]:
    found = [path for path in stores.iterdir() if not path.name.startswith(".")]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)


def _layers(store: Path) -> int:
    return sum(1 for _ in store.glob("*/snapshots/*"))


def _fill(store: Path, archives: Sequence[Path]) -> None:
    say(f"Unpacking images: {', '.join(archive.stem for archive in archives)}")
    with tempfile.TemporaryDirectory(dir=store.parent, prefix=".filling-") as folder:
        root = Path(folder) / "root"
        if len(archives) > 1:
            # The layers of the fullest store are mostly those of the next: after a change of code all but one.
            for fullest in sorted(_newest_first(store.parent), key=_layers, reverse=True)[:1]:
                copy(fullest, root)
        filler = (sys.executable, "-S", "-E", str(SOURCES / "image_store_filler.py"))
        run([*CONTAINED, *filler, str(root), *map(str, archives)])
        root.rename(store)
