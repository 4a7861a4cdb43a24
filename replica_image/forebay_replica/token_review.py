"""Who may order a replica about: asked of the API server, remembered for a moment, refused when it cannot be asked.

A caller shows a projected service-account token with the audience `forebay-replica`, which is worth nothing
elsewhere. The API server alone can tell whether it is genuine (TokenReview), so the pod's own service account needs
the permission to create tokenreviews.authentication.k8s.io.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import ssl
from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson

from forebay.wire.names import REPLICA_TOKEN_AUDIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REVIEW_PATH = "/apis/authentication.k8s.io/v1/tokenreviews"
REVIEW_TIMEOUT_S = 3.0
# A token that was revoked works for this long; the operator calls a few times a minute, so one review in a while
# suffices.
REMEMBER_MS = 60_000
REMEMBERED = 64  # one operator with a token renewed each hour; the rest is room for mistakes
MAX_TOKEN_BYTES = 8192  # a service-account token has about 1 kB


class Verdict(StrEnum):
    """What a token is good for."""

    ALLOWED = "allowed"
    NOT_AUTHENTICATED = "not authenticated"  # no token, a forged or expired one, or one for another audience
    OTHER_USER = "other user"  # genuine, but not the operator's


class ReviewUnavailableError(Exception):
    """The API server could not be asked, so nobody is let in; the message says why."""


@dataclass(frozen=True, slots=True)
class ApiServer:
    """Where the API server is, and how this pod shows itself to it."""

    url: str
    token_file: Path
    ca_file: Path

    @classmethod
    def of_pod(cls, environment: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> ApiServer | None:
        """Return the API server of the cluster that we run in; None outside of a cluster."""
        host = environment.get("KUBERNETES_SERVICE_HOST")
        if not host:
            return None
        port = environment.get("KUBERNETES_SERVICE_PORT", "443")
        address = f"[{host}]" if ":" in host else host
        return cls(f"https://{address}:{port}", account / "token", account / "ca.crt")

    async def review(self, token: str) -> dict[str, Any]:
        """Return the status of a TokenReview.

        Raises
        ------
        ReviewUnavailableError
            When there is no answer, or one that is no TokenReview.
        """
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [REPLICA_TOKEN_AUDIENCE]},
        }
        try:
            # Both files are renewed by the kubelet while we run, so they are read each time: that is once a minute.
            trust = ssl.create_default_context(cafile=str(self.ca_file))
            own_token = self.token_file.read_text(encoding="ascii").strip()
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=REVIEW_TIMEOUT_S)) as session,
                session.post(
                    self.url + REVIEW_PATH, json=body, ssl=trust, headers={"Authorization": f"Bearer {own_token}"}
                ) as response,
            ):
                answer = await response.read()
                status = response.status
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise ReviewUnavailableError(f"the API server cannot be asked: {type(error).__name__}") from error
        if status not in (HTTPStatus.OK, HTTPStatus.CREATED):
            raise ReviewUnavailableError(f"the API server answers a TokenReview with HTTP {status}")
        return _status(answer)


def _status(answer: bytes) -> dict[str, Any]:
    try:
        status = orjson.loads(answer)["status"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise ReviewUnavailableError("the API server's answer is no TokenReview") from error
    if not isinstance(status, dict):
        raise ReviewUnavailableError("the API server's answer is no TokenReview")
    return status


class TokenJudge:
    """Judges tokens for one user name. Verdicts are remembered by the token's hash, never the token itself."""

    def __init__(self, api: ApiServer | None, username: str, now_ms: Callable[[], int]) -> None:
        self._api = api
        self._username = username
        self._now_ms = now_ms
        self._remembered: OrderedDict[bytes, tuple[Verdict, int]] = OrderedDict()
        self._one_at_a_time = asyncio.Lock()  # whoever floods us with tokens does not flood the API server

    async def judge(self, token: str) -> Verdict:
        """Say what a token is good for.

        Raises
        ------
        ReviewUnavailableError
            When that cannot be known: outside of a cluster, without an operator to admit, or without an API server.
        """
        if not token or len(token) > MAX_TOKEN_BYTES:
            return Verdict.NOT_AUTHENTICATED
        if not self._username:
            raise ReviewUnavailableError("no operator is configured")
        if self._api is None:
            raise ReviewUnavailableError("not in a cluster")
        key = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        async with self._one_at_a_time:
            verdict = self._recall(key)
            if verdict is None:
                verdict = self._decide(await self._api.review(token))
                self._remember(key, verdict)
        return verdict

    def _decide(self, status: dict[str, Any]) -> Verdict:
        # A server that ignores audiences answers without them: the token could then be meant for anybody.
        if status.get("authenticated") is not True or REPLICA_TOKEN_AUDIENCE not in (status.get("audiences") or []):
            return Verdict.NOT_AUTHENTICATED
        username = (status.get("user") or {}).get("username")
        if username == self._username:
            return Verdict.ALLOWED
        log.warning("order refused", extra={"username": username})
        return Verdict.OTHER_USER

    def _recall(self, key: bytes) -> Verdict | None:
        verdict, until_ms = self._remembered.get(key, (None, 0))
        return verdict if self._now_ms() < until_ms else None

    def _remember(self, key: bytes, verdict: Verdict) -> None:
        self._remembered[key] = (verdict, self._now_ms() + REMEMBER_MS)
        self._remembered.move_to_end(key)
        while len(self._remembered) > REMEMBERED:
            self._remembered.popitem(last=False)
