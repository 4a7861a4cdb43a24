"""Import image archives into a folder of containerd's, and end. Runs inside namespaces that end with it.

A plain file on the bare standard library, like node_init.py: the project's environment plays no part in here.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

_SOCKET = "/run/store.sock"
# Only what imports and unpacks; the opt plugin would make /opt/containerd.
_CONFIGURATION = """version = 2
disabled_plugins = [
  "io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp",
]
# Garbage is collected once, when all is imported: a collection of its own accord, after a start or a hundred changes,
# can take a layer of the older store away between its being found and its being built upon.
[plugins."io.containerd.gc.v1.scheduler"]
  startup_delay = "1h"
  mutation_threshold = 0
  deletion_threshold = 0
"""
_ANSWERS_WITHIN_S = 30.0


def main() -> None:
    """Import the archives (arguments from the second on) into the store (the first)."""
    root, *archives = sys.argv[1:]
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    configuration = Path("/run/store.toml")
    configuration.write_text(_CONFIGURATION)
    options = ("--config", str(configuration), "--root", root, "--state", "/run/store", "--address", _SOCKET)
    with subprocess.Popen(["containerd", "--log-level", "warn", *options]) as containerd:
        try:
            _fill(containerd, archives)
        finally:
            containerd.terminate()  # else leaving this block waits for it for ever, with the cache locked


def _fill(containerd: subprocess.Popen[bytes], archives: list[str]) -> None:
    ctr = ("ctr", "--address", _SOCKET, "--namespace=k8s.io")
    deadline = time.monotonic() + _ANSWERS_WITHIN_S
    while subprocess.run([*ctr, "version"], capture_output=True, check=False).returncode:
        if time.monotonic() > deadline or containerd.poll() is not None:
            sys.exit("containerd did not answer")
        time.sleep(0.05)
    imported = "".join(_output(*ctr, "images", "import", archive) for archive in archives)
    # The store that this one began as may hold images that are not wanted here: what the import itself did not
    # name goes.
    for name in _output(*ctr, "images", "ls", "--quiet").split():
        if f"unpacking {name} " not in imported:
            _output(*ctr, "images", "rm", name)
    # The end of a lease is the one request that returns after the garbage (layers without image) is collected.
    _output(*ctr, "leases", "create", "--id", "collect")
    _output(*ctr, "leases", "rm", "--sync", "collect")


def _output(*argv: str) -> str:
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    main()
