"""Just enough of a Kubernetes client to wait for a cluster: GET, and nothing for what cannot be answered.

Waiting by kubectl would start a program of 144 MB ten times a second.
"""

from __future__ import annotations

import http.client
import json
import ssl
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_TIMEOUT_S = 5.0


class Api:
    """Reads from the API server through a port of the machine."""

    def __init__(self, port: int, token: str, authority: Path) -> None:
        self._port = port
        self._headers = {"Authorization": f"Bearer {token}"}
        self._tls = ssl.create_default_context(cafile=str(authority))

    def get(self, path: str) -> Any:
        """Return the JSON at this path, text where it is none, or None when there is no (good) answer."""
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, context=self._tls, timeout=_TIMEOUT_S)
        try:
            connection.request("GET", path, headers=self._headers)
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        if response.status != http.client.OK:
            return None
        is_json = (response.headers.get("Content-Type") or "").startswith("application/json")
        return json.loads(body) if is_json else body.decode()

    def ready(self) -> bool:
        """Whether the API server itself says so."""
        return bool(self.get("/readyz"))

    def node_ready(self, name: str) -> bool:
        """Whether the node's Ready condition is true."""
        node = self.get(f"/api/v1/nodes/{name}") or {}
        conditions = node.get("status", {}).get("conditions", [])
        return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

    def gpus(self, name: str) -> int:
        """How many GPUs the node offers to pods."""
        node = self.get(f"/api/v1/nodes/{name}") or {}
        return int(node.get("status", {}).get("allocatable", {}).get("nvidia.com/gpu", -1))
