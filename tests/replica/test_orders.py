"""Who may order a replica about. The API server is a small TLS server that answers TokenReviews as Kubernetes does; the
real one is met in the cluster tests.
"""

from __future__ import annotations

import shutil
import ssl
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from forebay_replica.token_review import (
    REMEMBER_MS,
    REMEMBERED,
    ApiServer,
    ReviewUnavailableError,
    TokenJudge,
    Verdict,
)

sys.path.insert(0, str(Path(__file__).parent))
from replica import OPERATOR, free_port, replica

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

OWN_TOKEN = "the pod's own"
AUDIENCE = ["forebay-replica"]
STATUSES: dict[str, dict[str, Any]] = {
    "operator": {"authenticated": True, "audiences": AUDIENCE, "user": {"username": OPERATOR}},
    "neighbour": {"authenticated": True, "audiences": AUDIENCE, "user": {"username": "system:serviceaccount:a:b"}},
    "for anybody": {"authenticated": True, "user": {"username": OPERATOR}},
    "for others": {"authenticated": True, "audiences": ["vault"], "user": {"username": OPERATOR}},
    "no user": {"authenticated": True, "audiences": AUDIENCE},
    "forged": {"authenticated": False, "error": "invalid bearer token"},
}


class Reviews:
    """What the API server was asked, and whether it works."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer: bytes | None = None
        self.http = 201


def make_account(folder: Path) -> None:
    """Make what the kubelet mounts into a pod, and the API server's key."""
    openssl = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl += ["-days", "2", "-subj", "/CN=api", "-addext", "subjectAltName=IP:127.0.0.1"]
    openssl += ["-addext", "keyUsage=critical,digitalSignature,keyCertSign"]
    subprocess.run([*openssl, "-keyout", folder / "key", "-out", folder / "ca.crt"], check=True, capture_output=True)
    (folder / "token").write_text(OWN_TOKEN + "\n")


@asynccontextmanager
async def api_server(folder: Path) -> AsyncIterator[tuple[str, Reviews]]:
    make_account(folder)
    reviews = Reviews()

    async def review(request: web.Request) -> web.Response:
        body = await request.json()
        assert request.headers["Authorization"] == f"Bearer {OWN_TOKEN}"
        assert (body["kind"], body["spec"]["audiences"]) == ("TokenReview", AUDIENCE)
        token = body["spec"]["token"]
        reviews.asked.append(token)
        if reviews.answer is not None:
            return web.Response(status=reviews.http, body=reviews.answer)
        return web.json_response({**body, "status": STATUSES.get(token, STATUSES["forged"])}, status=reviews.http)

    application = web.Application()
    application.router.add_post("/apis/authentication.k8s.io/v1/tokenreviews", review)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "ca.crt", folder / "key")
    runner = web.AppRunner(application)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
    try:
        yield f"https://127.0.0.1:{port}", reviews
    finally:
        await runner.cleanup()


class Clock:
    now = 0

    def __call__(self) -> int:
        return self.now


def judge_of(folder: Path, url: str, clock: Clock | None = None) -> TokenJudge:
    return TokenJudge(ApiServer(url, folder / "token", folder / "ca.crt"), OPERATOR, clock or Clock())


VERDICTS = {
    "the operator's token is good": ("operator", Verdict.ALLOWED),
    "another account's token is not": ("neighbour", Verdict.OTHER_USER),
    "a token without an audience could be meant for anybody": ("for anybody", Verdict.NOT_AUTHENTICATED),
    "a token for another audience is worth nothing here": ("for others", Verdict.NOT_AUTHENTICATED),
    "a user without a name is nobody": ("no user", Verdict.OTHER_USER),
    "a forged token is refused": ("anything else", Verdict.NOT_AUTHENTICATED),
}


async def test_verdicts(tmp_path: Path) -> None:
    async with api_server(tmp_path) as (url, _):
        for why, (token, verdict) in VERDICTS.items():
            assert await judge_of(tmp_path, url).judge(token) is verdict, why


async def test_a_missing_or_endless_token_is_not_even_asked_for(tmp_path: Path) -> None:
    async with api_server(tmp_path) as (url, reviews):
        assert await judge_of(tmp_path, url).judge("") is Verdict.NOT_AUTHENTICATED
        assert await judge_of(tmp_path, url).judge("x" * 9000) is Verdict.NOT_AUTHENTICATED
        assert reviews.asked == []


async def test_a_verdict_is_remembered_for_a_minute(tmp_path: Path) -> None:
    clock = Clock()
    async with api_server(tmp_path) as (url, reviews):
        judge = judge_of(tmp_path, url, clock)
        for clock.now in (0, 1, REMEMBER_MS - 1):
            assert await judge.judge("operator") is Verdict.ALLOWED
        assert reviews.asked == ["operator"]
        clock.now = REMEMBER_MS
        assert await judge.judge("operator") is Verdict.ALLOWED
        assert reviews.asked == ["operator", "operator"]


async def test_what_is_remembered_is_bounded_and_holds_no_token(tmp_path: Path) -> None:
    async with api_server(tmp_path) as (url, _):
        judge = judge_of(tmp_path, url)
        for number in range(REMEMBERED + 5):
            await judge.judge(f"token {number}")
        assert len(judge._remembered) == REMEMBERED
        assert all(len(key) == 32 and b"token" not in key for key in judge._remembered)


BROKEN = {
    "an error": (500, None),
    "the pod's own account may not review": (403, None),
    "an answer that is no JSON": (201, b"<html>"),
    "an answer without a status": (201, b"{}"),
    "a status that is no object": (201, b'{"status": 1}'),
}


@pytest.mark.parametrize(("http", "answer"), BROKEN.values(), ids=BROKEN)
async def test_without_a_proper_answer_nobody_is_let_in_and_nothing_remembered(
    tmp_path: Path, http: int, answer: bytes | None
) -> None:
    async with api_server(tmp_path) as (url, reviews):
        judge = judge_of(tmp_path, url)
        reviews.http, reviews.answer = http, answer
        with pytest.raises(ReviewUnavailableError):
            await judge.judge("operator")
        reviews.http, reviews.answer = 201, None
        assert await judge.judge("operator") is Verdict.ALLOWED


async def test_an_api_server_with_another_authority_is_not_believed(tmp_path: Path) -> None:
    async with api_server(tmp_path) as (url, reviews):
        (tmp_path / "other").mkdir()
        async with api_server(tmp_path / "other"):
            pass
        shutil.copy(tmp_path / "other" / "ca.crt", tmp_path / "ca.crt")
        with pytest.raises(ReviewUnavailableError):
            await judge_of(tmp_path, url).judge("operator")
        assert reviews.asked == []


@pytest.mark.parametrize("missing", ["token", "ca.crt"])
async def test_without_the_pods_own_account_nobody_is_let_in(tmp_path: Path, missing: str) -> None:
    async with api_server(tmp_path) as (url, _):
        (tmp_path / missing).unlink()
        with pytest.raises(ReviewUnavailableError):
            await judge_of(tmp_path, url).judge("operator")


async def test_without_a_cluster_or_an_operator_nobody_is_let_in(tmp_path: Path) -> None:
    with pytest.raises(ReviewUnavailableError, match="not in a cluster"):
        await TokenJudge(None, OPERATOR, Clock()).judge("operator")
    with pytest.raises(ReviewUnavailableError, match="no operator"):
        await TokenJudge(ApiServer("https://127.0.0.1:1", tmp_path, tmp_path), "", Clock()).judge("operator")


def test_a_pod_finds_its_api_server() -> None:
    account = Path("/account")
    ipv4 = ApiServer.of_pod({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}, account)
    assert ipv4 == ApiServer("https://10.0.0.1:6443", account / "token", account / "ca.crt")
    ipv6 = ApiServer.of_pod({"KUBERNETES_SERVICE_HOST": "fd00::1"}, account)
    assert ipv6 == ApiServer("https://[fd00::1]:443", account / "token", account / "ca.crt")
    assert ApiServer.of_pod({}, account) is None


async def test_a_replica_sleeps_wakes_and_drains_for_its_operator_alone(tmp_path: Path) -> None:
    async with api_server(tmp_path) as (url, _), replica(tmp_path, url) as it:
        await it.until_ready()
        assert await it.status("/v1/wake", "POST", "operator") == 409
        for path in ("/v1/sleep", "/v1/wake", "/v1/drain"):
            assert await it.status(path, "POST") == 401
            assert await it.status(path, "POST", "neighbour") == 403
            assert await it.status(path, "GET", "operator") == 405
        assert await it.status("/readyz") == 200
        assert await it.status("/v1/sleep", "POST", "operator") == 200
        assert it.lines("orders") == ["/sleep?level=1", "engine-token"]
        assert ((await it.state()).phase, await it.status("/readyz")) == ("asleep", 503)
        assert await it.status("/v1/sleep", "POST", "operator") == 409
        assert await it.status("/v1/wake", "POST", "operator") == 200
        assert ((await it.state()).phase, await it.status("/readyz")) == ("ready", 200)
        assert len(it.lines("rehearsals")) == 2
        assert await it.status("/v1/drain", "POST", "operator") == 200
        assert ((await it.state()).phase, await it.status("/readyz")) == ("draining", 503)
        it.process.terminate()
        assert await it.ended() == 0


async def test_an_engine_that_only_says_that_it_sleeps_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "lies").touch()
    async with api_server(tmp_path) as (url, _), replica(tmp_path, url) as it:
        await it.until_ready()
        assert await it.status("/v1/sleep", "POST", "operator") == 502
        await it.until_ready()
        assert len(it.lines("rehearsals")) == 2


async def test_outside_of_a_cluster_nobody_can_order(tmp_path: Path) -> None:
    async with replica(tmp_path) as it:
        await it.until_ready()
        assert await it.status("/v1/drain", "POST", "operator") == 503
        assert await it.status("/readyz") == 200
