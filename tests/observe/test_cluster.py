"""The reflector against a real HTTP server that speaks list and watch, and fails in every way that was seen in life."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from forebay.observe import cluster
from forebay.observe.cluster import ApiServer, Change, NoApiServerError, Reflector, find_api_server, resource_path
from tests.observe.kube_api import PODS, Collection, KubeApi

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


class Seen:
    """What the reflector told, and its state."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.reflector: Reflector

    def on(self, change: Change, obj: dict[str, Any]) -> None:
        self.calls.append((change.value, obj["metadata"]["name"]))

    @property
    def names(self) -> list[str]:
        return sorted(o["metadata"]["name"] for o in self.reflector.objects.values())


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not what():  # noqa: ASYNC110 - any state can be awaited this way
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def _quick_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "BACKOFF_FIRST_S", 0.01)


@pytest.fixture
async def server() -> AsyncIterator[KubeApi]:
    server = await KubeApi(PODS).start()
    yield server
    await server.stop()


@pytest.fixture
def kube(server: KubeApi) -> Collection:
    pods = server.collections[PODS]
    pods.url = server.url
    return pods


@asynccontextmanager
async def reflecting(kube: Collection, *, silence_s: float = 60, **options: Any) -> AsyncIterator[Seen]:
    seen = Seen()
    api = ApiServer(url=kube.url, tls=None, token=lambda: "first")
    timeout = aiohttp.ClientTimeout(total=None, sock_read=silence_s)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        seen.reflector = Reflector(api, http, PODS, seen.on, **options)
        task = asyncio.create_task(seen.reflector.run())
        try:
            yield seen
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_every_page_of_the_list_is_told_before_it_counts_as_synced(kube: Collection) -> None:
    for name in "abcde":
        await kube.put(name)
    async with reflecting(kube) as seen:
        await seen.reflector.synced.wait()
        assert sorted(seen.calls) == [("CHANGED", name) for name in "abcde"]
        assert seen.names == list("abcde")


async def test_changes_and_deletions_arrive_by_the_watch(kube: Collection) -> None:
    await kube.put("a")
    async with reflecting(kube) as seen:
        await seen.reflector.synced.wait()
        await kube.put("b")
        await kube.put("a", size=2)
        await kube.delete("b")
        await until(lambda: len(seen.calls) == 4)
        assert seen.calls == [("CHANGED", "a"), ("CHANGED", "b"), ("CHANGED", "a"), ("DELETED", "b")]
        assert seen.reflector.objects["uid-a"]["spec"] == {"size": 2}


async def test_a_cut_watch_continues_from_its_place_without_a_new_list(kube: Collection) -> None:
    await kube.put("a")
    async with reflecting(kube) as seen:
        await until(lambda: bool(kube.open_watches))
        await kube.bookmark()
        await kube.cut_watches()
        await kube.put("b")
        await until(lambda: seen.names == ["a", "b"])
        assert seen.calls == [("CHANGED", "a"), ("CHANGED", "b")]
        assert sum("watch" not in r for r in kube.requests) == 1


async def test_a_deletion_missed_while_disconnected_is_found_by_the_next_list(kube: Collection) -> None:
    for name in "abc":
        await kube.put(name)
    async with reflecting(kube) as seen:
        await until(lambda: bool(kube.open_watches))
        kube.watch_faults += [503] * 3
        await kube.cut_watches()
        await kube.delete("b")
        await kube.put("c", uid="another-c")  # deleted and made again under the same name
        kube.forget_history()
        seen.calls.clear()
        await until(lambda: len(seen.calls) == 3)
        assert seen.calls == [("DELETED", "b"), ("DELETED", "c"), ("CHANGED", "c")]
        assert seen.names == ["a", "c"]


@pytest.mark.parametrize("status", [403, 404, 429, 500, 503])
async def test_a_server_that_is_still_starting_is_asked_again(kube: Collection, status: int) -> None:
    await kube.put("a")
    kube.list_faults += [status] * 3
    kube.watch_faults += [status] * 2
    async with reflecting(kube) as seen:
        await seen.reflector.synced.wait()
        await kube.put("b")
        await until(lambda: seen.names == ["a", "b"])
        await until(lambda: seen.reflector.failing_since_ms is None)


@pytest.mark.parametrize("code", [410, 500])
async def test_an_error_in_the_stream_leads_to_a_new_list(kube: Collection, code: int) -> None:
    await kube.put("a")
    async with reflecting(kube) as seen:
        await until(lambda: bool(kube.open_watches))
        kube.put_unseen("b")
        await kube.error(code)
        await until(lambda: seen.names == ["a", "b"])


async def test_a_line_that_is_no_json_costs_one_reconnect(kube: Collection) -> None:
    await kube.put("a")
    async with reflecting(kube) as seen:
        await until(lambda: bool(kube.open_watches))
        await kube.garbage()
        await kube.put("b")
        await until(lambda: seen.names == ["a", "b"])


async def test_a_connection_that_says_nothing_is_given_up(kube: Collection) -> None:
    await kube.put("a")
    async with reflecting(kube, silence_s=0.3) as seen:
        await until(lambda: bool(kube.open_watches))
        kube.mute = True
        await kube.put("b")
        await until(lambda: seen.reflector.failing_since_ms is not None)
        kube.mute = False
        await until(lambda: seen.names == ["a", "b"])


async def test_a_position_that_the_server_never_reaches_is_dropped(kube: Collection) -> None:
    await kube.put("a")
    async with reflecting(kube) as seen:
        await until(lambda: bool(kube.open_watches))
        kube.watch_faults += [504] * 5
        await kube.cut_watches()
        await until(lambda: sum("watch" not in r for r in kube.requests) == 2)
        assert seen.names == ["a"]


async def test_the_selector_and_the_token_go_with_every_request(kube: Collection) -> None:
    async with reflecting(kube, label_selector="app=x") as seen:
        await seen.reflector.synced.wait()
        await until(lambda: bool(kube.open_watches))
    assert [r["labelSelector"] for r in kube.requests] == ["app=x", "app=x"]
    assert set(kube.tokens) == {"Bearer first"}


async def test_one_unreadable_object_does_not_stop_the_others(
    kube: Collection, caplog: pytest.LogCaptureFixture
) -> None:
    def prune(raw: dict[str, Any]) -> dict[str, Any]:
        return {"metadata": raw["metadata"], "size": raw["spec"]["size"]}

    await kube.put("a", size=1)
    await kube.put("broken")
    async with reflecting(kube, prune=prune) as seen:
        await seen.reflector.synced.wait()
        assert seen.names == ["a"]
        await kube.put("a")  # loses its size: the last good form stays
        await kube.put("b", size=2)
        await until(lambda: seen.names == ["a", "b"])
        assert seen.reflector.objects["uid-a"]["size"] == 1
        await kube.delete("a")
        await until(lambda: seen.names == ["b"])
    assert "an object could not be read" in caplog.text


async def test_a_callback_that_raises_is_logged_and_the_mirror_goes_on(
    kube: Collection, caplog: pytest.LogCaptureFixture
) -> None:
    await kube.put("a")
    async with reflecting(kube) as seen:
        await seen.reflector.synced.wait()
        seen.reflector._on = lambda _change, _obj: (_ for _ in ()).throw(RuntimeError("no"))
        await kube.put("b")
        await until(lambda: seen.names == ["a", "b"])
    assert "a change was not taken" in caplog.text


def test_paths_of_resources() -> None:
    assert resource_path("", "v1", "pods") == "/api/v1/pods"
    assert resource_path("", "v1", "pods", "chat") == "/api/v1/namespaces/chat/pods"
    assert resource_path("forebay.dev", "v1alpha1", "slopolicies") == "/apis/forebay.dev/v1alpha1/slopolicies"


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1/prefix"}}]
users: [{name: u, user: {token: secret}}]
"""


async def test_a_kubeconfig_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(KUBECONFIG)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    api = await find_api_server()
    assert (api.url, api.tls) == ("http://127.0.0.1:1/prefix", None)
    assert api.headers() == {"Authorization": "Bearer secret"}


async def test_without_any_server_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    with pytest.raises(NoApiServerError, match="set KUBECONFIG"):
        await find_api_server()
