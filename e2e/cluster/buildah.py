"""buildah, kept to the cache folder: its storage, its temporary files and its mounts.

It runs in mount and process namespaces of its own, so that an interrupted build leaves no mount and no process.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import cache as once
from pathlib import Path
from typing import TYPE_CHECKING

from e2e.cluster.command import CONTAINED, run
from e2e.cluster.paths import cache

if TYPE_CHECKING:
    from collections.abc import Sequence

# What a build may need from the machine to reach package indexes as the machine's own pip does.
_CLIENT_SETTINGS = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
# buildah keeps notes below /var/lib/containers, whatever it is told. It sees a /var/lib whose changes go to the cache.
# Where that mount is refused (a cache on overlayfs), the notes are harmless and stay.
_HIDE = 'mount -t overlay overlay -o "lowerdir=/var/lib,upperdir=$0/upper,workdir=$0/work" /var/lib; exec "$@"'


def _home() -> Path:
    return cache() / "buildah"


@once
def _driver() -> str:
    """Overlay, which is twice as fast and half as large; vfs where the cache's file system refuses overlay mounts."""
    probe = _home() / "probe"
    for name in ("lower", "upper", "work", "merged"):
        (probe / name).mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={probe}/lower,upperdir={probe}/upper,workdir={probe}/work"
    mount = ["mount", "-t", "overlay", "overlay", "-o", options, str(probe / "merged")]
    works = subprocess.run([*CONTAINED, *mount], capture_output=True, check=False).returncode == 0
    shutil.rmtree(probe, ignore_errors=True)
    return "overlay" if works else "vfs"


def buildah(*arguments: str) -> str:
    """Run one buildah command and return what it prints."""
    home = _home()
    (home / "tmp").mkdir(parents=True, exist_ok=True)
    storage = (f"--storage-driver={_driver()}", f"--root={home}/storage", f"--runroot={home}/run")
    command = ["nice", "-n", "5", "buildah", *storage, *arguments]
    env = {"TMPDIR": str(home / "tmp")}
    with tempfile.TemporaryDirectory(dir=home, prefix="var-lib-") as notes:
        for name in ("upper", "work"):
            (Path(notes) / name).mkdir()
        hide = [] if notes.startswith("/var/lib/") else ["sh", "-c", _HIDE, notes]
        return run([*CONTAINED, *hide, *command], env=env)


def exists(image: str) -> bool:
    """Whether the storage holds this image."""
    return bool(buildah("images", "--quiet", "--filter", f"reference={image}").strip())


def build(dockerfile: Path, context: Path, tag: str, base: str) -> None:
    """Build a Dockerfile on the given base, with pip reaching what the machine's pip reaches."""
    mounts = [f"--volume={path}:{path}:ro" for path in _client_settings()]
    options = ("--isolation=chroot", "--network=host", "--layers", f"--build-arg=BASE={base}", f"--tag={tag}")
    buildah("build", *options, *mounts, f"--file={dockerfile}", str(context))


def _client_settings() -> Sequence[str]:
    return [path for path in _CLIENT_SETTINGS if Path(path).exists()]
