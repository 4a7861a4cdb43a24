"""The generator over real HTTP: every way in which a request can end is written down as exactly that."""

import asyncio
import signal
import sys
from pathlib import Path

import aiohttp
import orjson
import pytest

from e2e.demo import records
from e2e.demo.client import body, send
from e2e.demo.load import MACHINE, RECORDS, Generator
from e2e.demo.records import Outcome, Record
from e2e.demo.traffic import Request
from tests.demo.sse import serving

ROOT = Path(__file__).resolve().parents[2]


def request(model: str, number: int = 0, at_ms: int = 0) -> Request:
    return Request(number, at_ms, "chat/chat-8b", model, prompt_tokens=20, output_tokens=5)


def record_of(one: Request) -> Record:
    return Record(one.number, one.service, one.at_ms, one.at_ms, one.prompt_tokens, one.output_tokens)


ENDS = {
    "a whole answer": ("chat-8b", Outcome.ANSWERED, 200, 5),
    "429 is a refusal": ("full", Outcome.REFUSED, 429, 0),
    "503 is a refusal": ("down", Outcome.REFUSED, 503, 0),
    "another status is a failure": ("unknown", Outcome.FAILED, 404, 0),
    "a stream that breaks is a failure and keeps its tokens": ("cut", Outcome.FAILED, 200, 2),
    "an error in the stream is a failure": ("error", Outcome.FAILED, 200, 5),
    "a stream without its end mark is a failure": ("endless", Outcome.FAILED, 200, 5),
    "a client that loses patience has aborted": ("stuck", Outcome.ABORTED, 200, 0),
}


@pytest.mark.parametrize(("model", "outcome", "status", "tokens"), ENDS.values(), ids=ENDS)
async def test_ends(model: str, outcome: Outcome, status: int, tokens: int) -> None:
    one = request(model)
    record = record_of(one)
    patience = aiohttp.ClientTimeout(total=0.3 if model == "stuck" else 20)
    async with serving() as url, aiohttp.ClientSession(timeout=patience) as session:
        await send(session, url, body(one, "a b c"), record, lambda _: None)
    assert (record.outcome, record.status, len(record.token_ms)) == (outcome, status, tokens)
    assert record.token_ms == sorted(record.token_ms)
    assert record.end_ms is not None
    if outcome is Outcome.ANSWERED:
        counted = (record.usage_prompt_tokens, record.usage_output_tokens, record.finish_reason)
        assert counted == (3, 5, "length")
    else:
        assert record.error


async def test_nobody_listens() -> None:
    one = request("chat-8b")
    record = record_of(one)
    async with aiohttp.ClientSession() as session:
        await send(session, "http://127.0.0.1:9", body(one, "a"), record, lambda _: None)
    assert record.outcome is Outcome.FAILED


async def test_a_slow_answer_delays_no_later_request() -> None:
    asked = (request("stuck", 0, 0), *(request("chat-8b", i, 1 + i) for i in range(1, 20)))
    async with serving() as url:
        generator = Generator(url, asked, seed=1)
        running = asyncio.create_task(generator.run())
        while sum(r.outcome is Outcome.ANSWERED for r in generator.records) < 19:  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert [r.outcome for r in generator.records] == [Outcome.ABORTED] + [Outcome.ANSWERED] * 19
    assert all(r.sent_at_ms >= r.scheduled_at_ms for r in generator.records)


async def test_the_process_ended_early_writes_down_what_was_under_way(tmp_path: Path) -> None:
    argv = (sys.executable, "-m", "e2e.demo.load", "--plan", "compressed", "--seed", "3", "--out", str(tmp_path))
    async with serving() as url:
        process = await asyncio.create_subprocess_exec(
            *argv, "--url", url, cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )  # fmt: skip
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        while True:  # until the live line tells of an answer
            line = orjson.loads(await process.stdout.readline())
            if line["services"]["chat/chat-8b"]["outcomes"].get("answered"):
                break
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    written = records.read(tmp_path / RECORDS)
    assert written
    assert all(record.outcome in (Outcome.ANSWERED, Outcome.ABORTED) for record in written)
    figures = orjson.loads((tmp_path / MACHINE).read_bytes())
    assert figures["rule"].startswith("bottleneck if")
    assert figures["cpu_s_by_program"]
