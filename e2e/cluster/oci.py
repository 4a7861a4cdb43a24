"""Write the one image that no Dockerfile makes: a single static program, for the sandbox of every pod."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import tarfile
from typing import TYPE_CHECKING

from e2e.cluster.config import PAUSE_IMAGE
from e2e.cluster.paths import cache, digest

if TYPE_CHECKING:
    from pathlib import Path

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def pause_archive(programs: Path) -> Path:
    """Return the sandbox's image, written on first use."""
    program = programs / "pause"
    archive = cache() / "images" / f"pause-{digest([program])}.tar"
    if not archive.exists():
        archive.parent.mkdir(exist_ok=True)
        unfinished = archive.with_suffix(f".{os.getpid()}")
        write(unfinished, PAUSE_IMAGE, program)
        unfinished.rename(archive)
    return archive


def write(archive: Path, name: str, program: Path) -> None:
    """Write an OCI archive with `program` as its only file and entry point."""
    layer = _tar({program.name: program.read_bytes()}, mode=0o755)
    config = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    config_bytes = json.dumps(config).encode()
    kind = "application/vnd.oci.image."
    manifest = {
        "schemaVersion": 2,
        "mediaType": kind + "manifest.v1+json",
        "config": _blob(kind + "config.v1+json", config_bytes),
        "layers": [_blob(kind + "layer.v1.tar", layer)],
    }
    manifest_bytes = json.dumps(manifest).encode()
    entry = _blob(kind + "manifest.v1+json", manifest_bytes)
    index = {"schemaVersion": 2, "manifests": [{**entry, "annotations": {"io.containerd.image.name": name}}]}
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps(index).encode()}
    for blob in (layer, config_bytes, manifest_bytes):
        files[f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}"] = blob
    archive.write_bytes(_tar(files, mode=0o644))


def _digest(blob: bytes) -> str:
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def _blob(kind: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": kind, "digest": _digest(blob), "size": len(blob)}


def _tar(files: dict[str, bytes], mode: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()
