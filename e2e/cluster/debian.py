"""The Debian packages that a cluster needs: say which are missing, install those, start nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

from e2e.cluster.command import DIES_WITH_US, run
from e2e.cluster.errors import CommandFailed
from e2e.cluster.paths import locked
from e2e.cluster.progress import say

NODE = (
    "containerd",
    "runc",
    "containernetworking-plugins",
    "conntrack",
    "iptables",
    "nftables",
    "iproute2",
    "openssl",
    "util-linux",
    "mount",
)
IMAGES = ("buildah", "debootstrap")

SYSTEMD = Path("/run/systemd")


def missing(packages: tuple[str, ...]) -> list[str]:
    """Those of the packages that are not installed."""
    query = ["dpkg-query", "--show", "--showformat", "${Package} ${db:Status-Status}\n", *packages]
    shown = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    installed = {line.split()[0] for line in shown.splitlines() if line.endswith(" installed")}
    return [package for package in packages if package not in installed]


def ensure(packages: tuple[str, ...]) -> None:
    """Install what is missing, after saying so."""
    if not missing(packages):
        return
    with locked("apt"):
        wanted = missing(packages)
        if not wanted:
            return
        say(f"Installing Debian packages: {' '.join(wanted)}")
        try:
            _install(wanted)
        except CommandFailed:
            # Lists that are absent or old: fetch them once and try again.
            say("Updating the package lists")
            run([*DIES_WITH_US, "apt-get", "update", "-q"])
            _install(wanted)


def _install(packages: list[str]) -> None:
    options = ["--yes", "--quiet", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120"]
    install = ["apt-get", "install", *options, *packages]
    # containerd's package would start a daemon of its own. The package scripts start nothing where they see no
    # systemd, so they get to see none: in a private view of the mounts, the machine's own stays as it is.
    if SYSTEMD.is_dir():
        hide = f'mount -t tmpfs tmpfs {SYSTEMD} && exec "$@"'
        install = ["unshare", "--mount", "--propagation", "private", "sh", "-c", hide, "sh", *install]
    run([*DIES_WITH_US, *install], env={"DEBIAN_FRONTEND": "noninteractive"})
