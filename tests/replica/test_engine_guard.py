"""What reaches vLLM's own server, by path, peer and token. The same is tried on real vLLM in tests/vllm."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import forebay_replica.engine_guard as guard
from forebay_replica.engine_guard import EngineGuard

REMOTE, LOCAL = ("192.0.2.7", 1), ("127.0.0.1", 1)
TOKEN = [(b"x-forebay-engine-token", b"secret")]
WRONG = [(b"x-forebay-engine-token", b"other")]

REQUESTS = {
    "a client's chat passes": ("/v1/chat/completions", REMOTE, [], True),
    "a client's completion passes": ("/v1/completions", REMOTE, [], True),
    "a list of models passes": ("/v1/models", REMOTE, [], True),
    "metrics pass": ("/metrics", REMOTE, [], True),
    "health passes": ("/health", REMOTE, [], True),
    "a client cannot put the engine to sleep": ("/sleep", REMOTE, [], False),
    "not even with the token": ("/sleep", REMOTE, TOKEN, False),
    "the supervisor can": ("/sleep", LOCAL, TOKEN, True),
    "over IPv6 too": ("/wake_up", ("::1", 1), TOKEN, True),
    "or IPv4 in IPv6": ("/wake_up", ("::ffff:127.0.0.1", 1), TOKEN, True),
    "a neighbour in IPv6 cannot": ("/wake_up", ("::ffff:192.0.2.7", 1), TOKEN, False),
    "loopback alone is not enough": ("/sleep", LOCAL, [], False),
    "nor is a wrong token": ("/sleep", LOCAL, WRONG, False),
    "nor two tokens": ("/sleep", LOCAL, [*WRONG, *TOKEN], False),
    "a peer without an address is no supervisor": ("/sleep", None, TOKEN, False),
    "nor is one whose address is a name": ("/sleep", ("unix", 0), TOKEN, False),
    "a path that only resembles an open one": ("/v1/completions/../../sleep", REMOTE, [], False),
    "a path with a double slash": ("//v1/completions", REMOTE, [], False),
    "adapters cannot be loaded by clients": ("/v1/load_lora_adapter", REMOTE, [], False),
    "what a later vLLM invents is closed": ("/v9/anything", REMOTE, [], False),
}


async def ask(kind: str, path: str, client: Any, headers: list[Any]) -> tuple[bool, list[dict[str, Any]]]:
    """Whether the request came through, and what was sent instead."""
    passed, sent = [], []

    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        passed.append(path)

    async def receive() -> dict[str, Any]:
        return {}

    async def send(message: Any) -> None:
        sent.append(message)

    await EngineGuard(app)({"type": kind, "path": path, "client": client, "headers": headers}, receive, send)
    return bool(passed), sent


@pytest.mark.parametrize(("path", "client", "headers", "passes"), REQUESTS.values(), ids=REQUESTS)
async def test_a_request(
    path: str, client: Any, headers: list[Any], passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(guard.ENV_TOKEN, "secret")
    passed, sent = await ask("http", path, client, headers)
    assert passed is passes
    assert [message.get("status") for message in sent] == ([] if passes else [404, None])


async def test_a_socket_is_closed_to_clients_even_on_an_open_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(guard.ENV_TOKEN, "secret")
    passed, sent = await ask("websocket", "/v1/completions", REMOTE, [])
    assert not passed
    assert sent == [{"type": "websocket.close", "code": 1008}]


async def test_without_a_token_in_the_environment_nobody_is_the_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(guard.ENV_TOKEN, raising=False)
    passed, _ = await ask("http", "/sleep", LOCAL, [(b"x-forebay-engine-token", b"")])
    assert not passed


async def test_the_servers_own_start_and_stop_pass() -> None:
    passed, _ = await ask("lifespan", "", None, [])
    assert passed


def test_it_needs_nothing_but_the_standard_library() -> None:
    package = Path(guard.__file__).parents[1]
    code = "import sys; sys.path.append(sys.argv[1]); import forebay_replica.engine_guard as g; print(g.MIDDLEWARE)"
    # -I and -S: no site-packages, no environment.
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, package], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "forebay_replica.engine_guard.EngineGuard"
