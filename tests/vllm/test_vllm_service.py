"""A real vLLM behind the whole path: API server, operator, replica, gateway, and the openai client as a user has it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

import pytest
from openai import AsyncOpenAI

from e2e.vllm.environment import provision
from e2e.vllm.service import inference_service
from e2e.vllm.tiny_model import tiny_model
from tests.e2e.release import Release, installed, no_pool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster.cluster import Cluster

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900, func_only=True)]

SERVICE = "tiny"
# Imports take 15 s on two idle cores and some minutes when both are busy.
STARTED_S = 420
BATCH = 4


@pytest.fixture(scope="module")
def release(cluster: Cluster) -> Iterator[Release]:
    manifest = inference_service("", SERVICE, provision(), tiny_model())
    with installed(cluster, "vllm") as forebay:
        manifest["metadata"]["namespace"] = forebay.served
        manifest["spec"]["model"]["servedName"] = forebay.served
        manifest["spec"]["engine"]["maxNumSeqs"] = BATCH  # so few that a handful of clients fill it
        manifest["spec"]["scaling"] |= {"scaleDownDelaySeconds": 10}
        policy = no_pool(forebay)
        manifest["spec"]["sloPolicyRef"] = {"name": policy["metadata"]["name"]}
        forebay.apply(policy, manifest)
        forebay.until_ready(SERVICE, STARTED_S)
        yield forebay


class Clients:
    """Streams through the gateway, each to its last token."""

    def __init__(self, release: Release) -> None:
        self.model = release.served
        self.openai = AsyncOpenAI(base_url=f"{release.url}/v1", api_key="none", timeout=600, max_retries=0)
        self.ends: list[str | None] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.openai.close()

    async def stream(self, tokens: int) -> int:
        """Ask for `tokens` tokens, note how the stream ended, return how many chunks carried text."""
        said, end = 0, None
        answer = await self.openai.chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": "Tell me of the sea."}],
            max_tokens=tokens,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        async for chunk in answer:
            for choice in chunk.choices:
                said += bool(choice.delta.content)
                end = choice.finish_reason or end
        self.ends.append(end)
        return said

    async def keep_busy(self, stop: asyncio.Event) -> None:
        """Be one client that asks again as soon as it is answered."""
        while not stop.is_set():
            await self.stream(200)


async def test_it_streams_to_the_openai_client(release: Release) -> None:
    async with Clients(release) as clients:
        assert [model.id async for model in clients.openai.models.list()] == [release.served]
        assert await clients.stream(20) >= 5  # in pieces; the busier the machine, the more tokens come in one
    assert clients.ends == ["length"]


async def test_load_on_its_own_metrics_brings_a_second_replica_and_no_stream_is_cut_when_it_goes(
    release: Release,
) -> None:
    assert len(await asyncio.to_thread(release.pods)) == 1
    stop = asyncio.Event()
    async with Clients(release) as clients, asyncio.TaskGroup() as running:
        for _ in range(3 * BATCH):
            running.create_task(clients.keep_busy(stop))
        await asyncio.to_thread(release.until_states, STARTED_S, serving=2)
        stop.set()
        # These run while the fleet shrinks again: whichever replica goes finishes what it has.
        for _ in range(2):
            running.create_task(clients.stream(1500))
        await asyncio.to_thread(release.until_states, STARTED_S, serving=1)
    assert set(clients.ends) == {"length"}
    assert len(clients.ends) > 3 * BATCH
