"""The first process of a node's namespaces: it prepares them, starts daemons when told to, and reaps the dead.

Everything of the node lives in namespaces that end with this process, so one SIGKILL removes processes, mounts,
network and firewall rules. It runs as a plain file on the bare standard library, because it starts in every node
and 20 ms is better than 200.

It is told what to do by lines of JSON on standard input, and tells on standard output:

    {"spawn": NAME, "argv": [...], "env": {...}, "log": PATH}   ->  {"spawned": NAME, "pid": N}
    {"signal": NAME, "number": N}
    a daemon ended                                              ->  {"exited": NAME, "status": N}

`{"ready": true}` comes first. End of input means that the keeper is gone, and everything goes with it.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

# The kubelet insists on these and would write them to the machine. It reads them first, so it is shown files with
# the values that it wants, and the machine keeps its own.
_SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
}


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def _prepare_mounts(keep: list[str], binds: dict[str, str]) -> None:
    """Give the node places of its own for what kubelet, containerd and CNI write to fixed paths.

    /run and /var/log are empty and private. /var/lib shows the machine's files, and keeps changes to itself. Folders
    in `keep` (this checkout, the cache) stay shared with the machine wherever they lie.
    """
    _mount("--make-rprivate", "/")
    kept = {path: os.open(path, os.O_PATH) for path in keep if path.startswith(("/run/", "/var/lib/", "/var/log/"))}
    _mount("-t", "tmpfs", "tmpfs", "/run")
    _mount("-t", "tmpfs", "tmpfs", "/var/log")
    for folder in ("/run/node/upper", "/run/node/work", "/run/netns", "/run/containerd", "/run/lock"):
        Path(folder).mkdir(parents=True, exist_ok=True)
    layers = "lowerdir=/var/lib,upperdir=/run/node/upper,workdir=/run/node/work"
    _mount("-t", "overlay", "overlay", "-o", layers, "/var/lib")
    for path, handle in kept.items():
        Path(path).mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "--rbind", f"/proc/self/fd/{handle}", path], check=True, pass_fds=(handle,))
        os.close(handle)
    for path, source in binds.items():
        Path(path).mkdir(parents=True, exist_ok=True)
        _mount("--bind", source, path)
    for name, value in _SYSCTLS.items():
        shown = Path("/run/node") / name.replace("/", ".")
        shown.write_text(value + "\n")
        _mount("--bind", str(shown), f"/proc/sys/{name}")
    # containerd and kubelet pass mounts on to containers, so mounts here must be shared.
    _mount("--make-rshared", "/")


class _Daemons:
    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._pids: dict[str, int] = {}

    def spawn(self, order: dict[str, Any]) -> None:
        name = order["spawn"]
        files = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        argv = order["argv"]
        env = {**os.environ, **order["env"]}
        # posix_spawnp would look along our own PATH, not along the one that the daemon gets.
        program = shutil.which(argv[0], path=env["PATH"]) or argv[0]
        pid = os.posix_spawn(program, argv, env, file_actions=files, setsid=True, setsigmask=())
        self._names[pid], self._pids[name] = name, pid
        _tell({"spawned": name, "pid": pid})

    def signal(self, name: str, number: int) -> None:
        with suppress(KeyError, ProcessLookupError):
            os.kill(self._pids[name], number)

    def reap(self) -> None:
        """Collect every dead child: our daemons, and the orphans of containers that the kernel gives to us."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                name = self._names.pop(pid, None)
                if name is not None:
                    if self._pids.get(name) == pid:
                        del self._pids[name]
                    _tell({"exited": name, "status": os.waitstatus_to_exitcode(status)})


def _tell(message: dict[str, Any]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def _serve(daemons: _Daemons) -> None:
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    buffer = b""
    while True:
        ready, _, _ = select.select([0, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            daemons.reap()
        if 0 in ready:
            chunk = os.read(0, 65536)
            if not chunk:
                return
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                _obey(daemons, json.loads(line))


def _obey(daemons: _Daemons, order: dict[str, Any]) -> None:
    try:
        if "spawn" in order:
            daemons.spawn(order)
        else:
            daemons.signal(order["signal"], order["number"])
    except OSError as error:
        _tell({"failed": order.get("spawn") or order.get("signal"), "error": str(error)})


def main() -> None:
    """Read the settings from the one argument, prepare, then serve until the keeper goes."""
    settings = json.loads(sys.argv[1])
    for entrance in settings["cgroups"]:
        Path(entrance).write_text("0")
    _prepare_mounts(settings["keep"], settings["binds"])
    subprocess.run(["hostname", settings["hostname"]], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    _tell({"ready": True})
    _serve(_Daemons())


if __name__ == "__main__":
    main()
