"""May this machine carry a cluster? Say no at once, with the reason, instead of failing half-way."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess

from e2e.cluster.errors import MachineUnfit

_INSTEAD = (
    "To use the cluster of your present kubeconfig instead (kind, k3d, minikube, a real one), set CLUSTER=current."
)
_NAMESPACES = ("--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc")


def obstacle() -> str | None:
    """Why no cluster can run here, or None when one can."""
    if platform.system() != "Linux":
        return f"it needs Linux, and this is {platform.system()}"
    if os.geteuid() != 0:
        return "it needs root, for namespaces, mounts and cgroups"
    for program in ("unshare", "nsenter", "setpriv", "ip", "apt-get"):
        if not shutil.which(program):
            return f"the program {program} is missing"
    probe = subprocess.run(["unshare", *_NAMESPACES, "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        return f"this machine refuses new namespaces ({probe.stderr.strip()})"
    return None


def check() -> None:
    """Raise MachineUnfit where a local cluster cannot run."""
    reason = obstacle()
    if reason:
        raise MachineUnfit(f"No local Kubernetes on this machine: {reason}.\n{_INSTEAD}")
