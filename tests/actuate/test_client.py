"""The fenced client and the actuator against a small HTTP server: what is sent, what is not, what becomes of errors."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from kubernetes.aio import client

from forebay.actuate.apply import Actuator
from forebay.actuate.client import FENCE_MARGIN_S, Kube
from forebay.actuate.diff import Action, Create, Delete, SetState
from forebay.actuate.errors import (
    ActError,
    AlreadyThereError,
    ConflictError,
    GoneError,
    NotLeaderError,
    RefusedError,
    UnreachableError,
    translate,
)
from forebay.wire.lifecycle import ReplicaState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PODS = "/api/v1/namespaces/ns/pods"


class Server:
    """Answers as told and remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.answers: dict[str, tuple[int, dict[str, Any]]] = {}  # method to status and body
        self.released = asyncio.Event()
        self.hang = False
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else None
        self.asked.append((request.method, request.path, body))
        if self.hang:
            await self.released.wait()
        status, answer = self.answers.get(request.method, (200, {"kind": "Pod", "metadata": {"uid": "u"}}))
        return web.json_response(answer, status=status)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    made.released.set()
    await runner.cleanup()


@pytest.fixture
async def api(server: Server) -> AsyncIterator[client.ApiClient]:
    async with client.ApiClient(configuration=client.Configuration(host=server.url)) as opened:
        yield opened


def kube(api: client.ApiClient, left_s: float = 60.0) -> Kube:
    return Kube(api, lambda: left_s)


async def test_without_a_lease_nothing_is_sent(server: Server, api: client.ApiClient) -> None:
    for left_s in (-1.0, 0.0, FENCE_MARGIN_S):
        with pytest.raises(NotLeaderError):
            await kube(api, left_s).write("POST", PODS, {})
    assert server.asked == []


async def test_a_write_gives_up_before_the_lease_ends(server: Server, api: client.ApiClient) -> None:
    server.hang = True
    loop = asyncio.get_running_loop()
    started = loop.time()
    with pytest.raises(UnreachableError):
        await kube(api, FENCE_MARGIN_S + 0.2).write("POST", PODS, {})
    assert loop.time() - started < 3


async def test_reading_needs_no_lease(server: Server, api: client.ApiClient) -> None:
    await kube(api, -1.0).read(PODS, {"limit": "5"})
    assert server.asked == [("GET", PODS, None)]


async def test_a_server_that_is_not_there_is_unreachable(api: client.ApiClient, server: Server) -> None:
    api.configuration.host = "http://127.0.0.1:9"
    with pytest.raises(UnreachableError):
        await kube(api).write("POST", PODS, {})
    assert server.asked == []


ANSWERS: dict[str, tuple[int, bytes, type[ActError]]] = {
    "a name that exists": (409, b'{"reason":"AlreadyExists"}', AlreadyThereError),
    "another version": (409, b'{"reason":"Conflict"}', ConflictError),
    "nothing there": (404, b'{"reason":"NotFound"}', GoneError),
    "too much asked": (429, b"", UnreachableError),
    "starting up": (503, b"not json", UnreachableError),
    "no right": (403, b'{"reason":"Forbidden","message":"no"}', RefusedError),
    "not valid": (422, b'{"reason":"Invalid"}', RefusedError),
    "a body that is no object": (400, b"[]", RefusedError),
}


@pytest.mark.parametrize("sentence", ANSWERS)
def test_an_answer_becomes_an_error_of_the_tree(sentence: str) -> None:
    status, body, expected = ANSWERS[sentence]
    assert type(translate(status, body)) is expected


# --- the actuator ----------------------------------------------------------------------------------------------------

PROMOTE = SetState("ns/a", "a-1", "u1", "7", ReplicaState.WARM, ReplicaState.SERVING)
DRAIN = SetState("ns/a", "a-2", "u2", "8", ReplicaState.SERVING, ReplicaState.DRAINING)
DELETE = Delete("ns/a", "a-2", "u2")
CREATE = Create("ns/a", "a-3", "rev")


async def carry_out(api: client.ApiClient, *actions: Action) -> list[tuple[str, str]]:
    results = await Actuator(kube(api)).carry_out(actions, lambda create: {"metadata": {"name": create.name}})
    return [(type(r.action).__name__, type(r.error).__name__ if r.error else "done") for r in results]


async def test_a_label_carries_the_pod_that_was_judged(server: Server, api: client.ApiClient) -> None:
    assert await carry_out(api, PROMOTE) == [("SetState", "done")]
    metadata = {"uid": "u1", "resourceVersion": "7", "labels": {"forebay.dev/state": "serving"}}
    assert server.asked == [("PATCH", f"{PODS}/a-1", {"metadata": metadata})]


async def test_a_delete_carries_the_uid_and_comes_after_its_label(server: Server, api: client.ApiClient) -> None:
    await carry_out(api, DRAIN, DELETE)
    assert [(method, path) for method, path, _ in server.asked] == [
        ("PATCH", f"{PODS}/a-2"), ("DELETE", f"{PODS}/a-2"),
    ]  # fmt: skip
    assert server.asked[1][2]["preconditions"] == {"uid": "u2"}


async def test_a_pod_whose_label_could_not_be_written_is_not_deleted(server: Server, api: client.ApiClient) -> None:
    server.answers["PATCH"] = (409, {"reason": "Conflict"})
    assert await carry_out(api, DRAIN, DELETE) == [("SetState", "ConflictError")]
    assert [method for method, *_ in server.asked] == ["PATCH"]


async def test_nobody_leaves_while_a_successor_could_not_be_promoted(server: Server, api: client.ApiClient) -> None:
    server.answers["PATCH"] = (409, {"reason": "Conflict"})
    assert await carry_out(api, PROMOTE, DRAIN, DELETE, CREATE) == [("SetState", "ConflictError"), ("Create", "done")]


async def test_a_pod_that_was_made_already_is_as_good_as_made(server: Server, api: client.ApiClient) -> None:
    server.answers["POST"] = (409, {"reason": "AlreadyExists"})
    assert await carry_out(api, CREATE) == [("Create", "done")]


@pytest.mark.parametrize("answer", [(404, {}), (409, {"reason": "Conflict"})])
async def test_a_pod_that_is_gone_or_another_one_need_not_be_deleted(
    server: Server, api: client.ApiClient, answer: tuple[int, dict[str, Any]]
) -> None:
    server.answers["DELETE"] = answer
    assert await carry_out(api, DELETE) == [("Delete", "done")]


async def test_a_refusal_is_told_and_others_go_on(server: Server, api: client.ApiClient) -> None:
    server.answers["POST"] = (403, {"reason": "Forbidden", "message": "quota"})
    assert await carry_out(api, CREATE, DELETE) == [("Create", "RefusedError"), ("Delete", "done")]
