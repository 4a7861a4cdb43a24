"""`forebay run` as a process of this machine in the cluster's network: the working tree's code, without an image."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from e2e.cluster.cluster import Cluster

ROOT = Path(__file__).parents[2]
REPLICA_IMAGE = "docker.io/forebay/replica:dev"


class OperatorProcess:
    """One operator; start it with `with`, or start and end it yourself."""

    def __init__(
        self, cluster: Cluster, folder: Path, *, namespace: str, watch: str, port: int, identity: str = "one"
    ) -> None:
        self.journal = folder / f"journal-{identity}"
        self._log = folder / f"operator-{identity}.log"
        self._cluster, self._port = cluster, port
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "KUBE"))},
            "KUBECONFIG": str(cluster.kubeconfig),
            "FOREBAY_OPERATOR_NAMESPACE": namespace,
            "FOREBAY_WATCH_NAMESPACE": watch,
            "FOREBAY_IDENTITY": identity,
            "FOREBAY_VLLM_IMAGE": REPLICA_IMAGE,
            "FOREBAY_EMULATED_IMAGE": REPLICA_IMAGE,
            "FOREBAY_LISTEN_PORT": str(port),
            "FOREBAY_JOURNAL_DIR": str(self.journal),
            # Long enough for an API server that shares two cores with everything else.
            "FOREBAY_LEASE_DURATION_MS": "12000",
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._relay = cluster.relay("127.0.0.1", port)

    def start(self) -> None:
        """Start it; it leads when it leads."""
        argv = [*self._cluster.enter_prefix(network_only=True), sys.executable, "-m", "tests.e2e.run_operator"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(argv, env=self._environment, stdout=log, stderr=log, cwd=ROOT)

    @property
    def pid(self) -> int:
        """Its process while it runs."""
        assert self._process is not None
        return self._process.pid

    def kill(self, how: int = signal.SIGKILL) -> int:
        """End it and return its exit status."""
        assert self._process is not None
        self._process.send_signal(how)
        status = self._process.wait(timeout=30)
        self._process = None
        return status

    def signal(self, how: int) -> None:
        """Send a signal and do not wait."""
        assert self._process is not None
        self._process.send_signal(how)

    def stop(self) -> None:
        """End it in order, if it still runs."""
        if self._process is not None:
            self.kill(signal.SIGTERM)

    def get(self, path: str) -> tuple[int, str]:
        """Ask it over HTTP; (0, reason) where nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._relay}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, repr(error)

    def metric(self, name: str, **labels: str) -> float:
        """Sum a metric over all series that bear these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        total = 0.0
        for line in self.get("/metrics")[1].splitlines():
            series, _, value = line.rpartition(" ")
            if series.partition("{")[0] == name and all(label in series for label in wanted):
                total += float(value)
        return total

    def log(self) -> str:
        """Return what it wrote."""
        return self._log.read_text()
