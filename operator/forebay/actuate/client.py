"""ACT: one fenced request to the API server, through the official client, with raw JSON on both sides.

The typed client would drop what it does not know of a user's pod template and costs 0.2 ms an answer, so only its
transport, its authentication and its URL building are used.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import aiohttp
import orjson
from kubernetes.aio import client, config

from forebay.actuate.errors import NotLeaderError, UnreachableError, translate

if TYPE_CHECKING:
    from collections.abc import Callable

Object: TypeAlias = dict[str, Any]

WRITE_TIMEOUT_S = 5.0  # a write that took longer is of an older decision than the next tick's
# An answer later than this before the lease ends could not be told from one after it.
FENCE_MARGIN_S = 0.1
JSON = "application/json"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
HTTP_REDIRECTION = 300


async def open_client() -> client.ApiClient:
    """Open the client: the kubeconfig that KUBECONFIG names, else the pod's service account, else ~/.kube/config."""
    loaded = client.Configuration()
    if "KUBECONFIG" not in os.environ and "KUBERNETES_SERVICE_HOST" in os.environ:
        config.load_incluster_config(client_configuration=loaded)  # type: ignore[no-untyped-call]
    else:
        await config.load_kube_config(client_configuration=loaded)  # type: ignore[no-untyped-call]
    return client.ApiClient(configuration=loaded)


@dataclass(frozen=True, slots=True)
class Kube:
    """Sends requests.

    Parameters
    ----------
    api
        The official client.
    lease_left_s
        How much longer writing is allowed, in seconds; 0 or less: not at all. Asked right before each write.
    """

    api: client.ApiClient
    lease_left_s: Callable[[], float]

    async def read(self, path: str, query: dict[str, str] | None = None) -> Object:
        """Get one object; needs no lease.

        Raises
        ------
        ActError
            As errors.py says.
        """
        return await self._send("GET", path, query=query, timeout_s=WRITE_TIMEOUT_S)

    async def write(
        self, method: str, path: str, body: Object | None, *, query: dict[str, str] | None = None, content: str = JSON
    ) -> Object:
        """Send one write, unless the lease has ended, and give up before it ends.

        Raises
        ------
        ActError
            As errors.py says.
        """
        left_s = self.lease_left_s() - FENCE_MARGIN_S
        if left_s <= 0:
            raise NotLeaderError("the lease is not held")
        timeout_s = min(WRITE_TIMEOUT_S, left_s)
        return await self._send(method, path, query=query, body=body, content=content, timeout_s=timeout_s)

    async def _send(
        self,
        method: str,
        path: str,
        *,
        timeout_s: float,
        query: dict[str, str] | None = None,
        body: Object | None = None,
        content: str = JSON,
    ) -> Object:
        try:
            async with asyncio.timeout(timeout_s):
                request = await self.api.param_serialize(
                    method,
                    path,
                    query_params=list((query or {}).items()),
                    header_params={"Content-Type": content, "Accept": JSON},
                    body=body,
                    auth_settings=["BearerToken"],
                )
                limit = aiohttp.ClientTimeout(total=timeout_s)
                response = await self.api.call_api(*request, _request_timeout=limit)
                data: bytes = await response.read()  # type: ignore[no-untyped-call]
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise UnreachableError(f"{method} {path}: {error!r}") from error
        if response.status >= HTTP_REDIRECTION:
            raise translate(response.status, data)
        document: Object = orjson.loads(data)
        return document
