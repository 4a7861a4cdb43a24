"""Where things lie: what is built once in the user's cache, what one cluster writes below build/cluster."""

from __future__ import annotations

import fcntl
import hashlib
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).resolve().parents[2]
SOURCES = Path(__file__).resolve().parent
CLUSTERS = ROOT / "build" / "cluster"


def cache() -> Path:
    """Return the user's cache folder for Forebay, making it when it is missing."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    path = Path(base) / "forebay"
    path.mkdir(parents=True, exist_ok=True)
    return path


def digest(files: Iterable[Path], *words: str) -> str:
    """Name the content of files and words, shortly: the key under which a result is cached.

    The names of the files count as well as their bytes, so that renaming one is a change.
    """
    state = hashlib.sha256()
    for word in words:
        state.update(word.encode() + b"\0")
    for file in sorted(files):
        state.update(file.name.encode() + b"\0")
        state.update(hashlib.sha256(file.read_bytes()).digest())
    return state.hexdigest()[:16]


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold a lock of the cache, so that two runs side by side build a thing once.

    The kernel releases it when the holder dies, so a crash never leaves it taken.
    """
    locks = cache() / "locks"
    locks.mkdir(exist_ok=True)
    with (locks / name).open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
