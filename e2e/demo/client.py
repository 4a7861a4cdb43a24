"""One request, sent as any client would send it, and its stream read token by token. Nothing is retried or hidden."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson

from e2e.demo.records import Outcome, Record

if TYPE_CHECKING:
    from e2e.demo.traffic import Request

PATH = "/v1/chat/completions"
_REFUSALS = (429, 503)
_DATA = b"data:"
_END = b"[DONE]"

OnToken = Callable[[Record], None]


class StreamError(Exception):
    """The stream is not what the API promises."""


def body(request: Request, prompt: str) -> bytes:
    """Make what is posted: every token that was recorded is generated, and the engine's counts come last."""
    return orjson.dumps(
        {
            "model": request.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": request.output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )


async def send(session: aiohttp.ClientSession, url: str, payload: bytes, record: Record, on_token: OnToken) -> None:
    """Send one request and fill in its record; returns when it has ended, and never raises but for cancellation.

    Parameters
    ----------
    session
        Without a limit on connections, or the generator would be a queue of its own.
    url
        The gateway's base address.
    payload
        From `body`.
    record
        Filled in as things happen, so that what is known survives a cancellation.
    on_token
        Called after each token, for the live view.
    """
    start_ns = time.monotonic_ns()

    def since_ms() -> int:
        return (time.monotonic_ns() - start_ns) // 1_000_000

    try:
        async with session.post(url + PATH, data=payload, headers={"content-type": "application/json"}) as response:
            record.status = response.status
            if response.status == 200:  # noqa: PLR2004 - HTTP's OK
                await _read(response, record, since_ms, on_token)
                record.outcome = Outcome.ANSWERED
            else:
                record.outcome = Outcome.REFUSED if response.status in _REFUSALS else Outcome.FAILED
                record.error = (await response.text())[:300]
    except aiohttp.ConnectionTimeoutError as error:
        record.outcome, record.error = Outcome.FAILED, str(error)[:300]
    except TimeoutError:
        record.outcome, record.error = Outcome.ABORTED, "the client's patience ended"
    except (aiohttp.ClientError, StreamError, OSError, orjson.JSONDecodeError) as error:
        record.outcome, record.error = Outcome.FAILED, f"{type(error).__name__}: {error}"[:300]
    except BaseException:
        record.outcome, record.error = Outcome.ABORTED, "the client left"
        raise
    finally:
        record.end_ms = since_ms()


async def _read(
    response: aiohttp.ClientResponse, record: Record, since_ms: Callable[[], int], on_token: OnToken
) -> None:
    rest = b""
    ended = False
    async for piece in response.content.iter_any():
        now_ms = since_ms()
        *lines, rest = (rest + piece).split(b"\n")
        for event in _events(lines):
            if event == _END:
                ended = True
                continue
            if _take(orjson.loads(event), record, now_ms):
                on_token(record)
    if not ended:
        raise StreamError(f"the stream ended after {len(record.token_ms)} tokens without its end mark")


def _events(lines: list[bytes]) -> Iterator[bytes]:
    for line in lines:
        if line.startswith(_DATA):
            yield line[len(_DATA) :].strip()


def _take(event: dict[str, Any], record: Record, now_ms: int) -> bool:
    """Note one event of the stream; say whether it carried a token."""
    if "error" in event:
        raise StreamError(str(event["error"])[:200])
    usage = event.get("usage")
    if usage:
        record.usage_prompt_tokens = usage.get("prompt_tokens")
        record.usage_output_tokens = usage.get("completion_tokens")
    token = False
    for choice in event.get("choices", ()):
        record.finish_reason = choice.get("finish_reason") or record.finish_reason
        if choice.get("delta", {}).get("content"):
            record.token_ms.append(now_ms)
            token = True
    return token
