"""The base of all local images: a small Debian with Python 3.11, made by debootstrap from Debian's archive."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from e2e.cluster.buildah import buildah, exists
from e2e.cluster.command import CONTAINED, run
from e2e.cluster.paths import cache, digest
from e2e.cluster.progress import say

# The Debian release whose Python is 3.11, the oldest that Forebay supports.
_SUITE = "bookworm"
_PACKAGES = ("python3", "python3-venv", "ca-certificates")
# 275 MB become 132 MB: what apt keeps to install more, and what people read.
_NEEDLESS = (
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/log",
    *(f"usr/share/{name}" for name in ("doc", "info", "lintian", "locale", "man")),
)


def base_image() -> str:
    """Return the name of the base image in buildah's storage, making it when it is missing."""
    name = f"localhost/forebay-base:{digest((), _SUITE, *_PACKAGES, *_NEEDLESS)}"
    if not exists(name):
        say(f"Making the base image: Debian {_SUITE} with {', '.join(_PACKAGES)} (about 40 s)")
        _make(name)
    return name


def _make(name: str) -> None:
    with tempfile.TemporaryDirectory(dir=cache() / "buildah", prefix="base-") as folder:
        root, archive = Path(folder) / "root", Path(folder) / "root.tar"
        include = f"--include={','.join(_PACKAGES)}"
        run([*CONTAINED, "nice", "-n", "5", "debootstrap", "--variant=minbase", include, _SUITE, str(root), *_mirror()])
        for path in _NEEDLESS:
            shutil.rmtree(root / path, ignore_errors=True)
            (root / path).mkdir(parents=True)
        owner = ("--sort=name", "--owner=0", "--group=0", "--numeric-owner")
        run(["tar", f"--directory={root}", *owner, "--create", f"--file={archive}", "."])
        container = buildah("from", "scratch").strip()
        buildah("add", "--quiet", container, str(archive), "/")
        buildah("commit", "--quiet", "--rm", container, name)


def _mirror() -> list[str]:
    """Where this machine's own apt gets the release from; nothing, for debootstrap's default, when it does not."""
    listed = run(["apt-get", "indextargets", "--format", "$(REPO_URI)", f"Codename: {_SUITE}"]).split()
    return listed[:1]
