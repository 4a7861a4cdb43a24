"""Answers as bytes: one server-sent event a token, in the shape that vLLM gives it, or one JSON document.

All of an event but the word itself is made once a request, because this runs for every token of every stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from forebay_replica.engine_emulated.ask import error_json

if TYPE_CHECKING:
    from forebay_replica.engine_emulated.ask import Ask

DONE = b"data: [DONE]\n\n"
_MARK = "\x00"  # stands for the word while the event around it is made
_MARK_JSON = b"\\u0000"
HTTP_INTERNAL_ERROR = 500


def usage(ask: Ask, output_tokens: int) -> dict[str, int]:
    """Count what was read and written."""
    prompt_tokens = ask.prompt.tokens
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "completion_tokens": output_tokens,
    }


def whole_answer(ask: Ask, answer_id: str, created: int, output_tokens: int, finish_reason: str) -> bytes:
    """Encode the answer to a request that did not ask for a stream."""
    text = b"".join(map(ask.answer.word, range(output_tokens))).decode()
    said = {"message": {"role": "assistant", "content": text}} if ask.chat else {"text": text}
    choice = {"index": 0, **said, "logprobs": None, "finish_reason": finish_reason, "stop_reason": None}
    return orjson.dumps(
        {
            "id": answer_id,
            "object": "chat.completion" if ask.chat else "text_completion",
            "created": created,
            "model": ask.model,
            "choices": [choice],
            "usage": usage(ask, output_tokens),
        }
    )


def stream_error(message: str) -> bytes:
    """Encode an error in mid-stream, after which the stream is done."""
    return _event(error_json(message, "InternalServerError", HTTP_INTERNAL_ERROR)) + DONE


class Chunks:
    """The events of one stream.

    Parameters
    ----------
    ask
        The request.
    answer_id
        The answer's id.
    created
        When it was asked, in seconds of the Unix epoch.
    """

    __slots__ = ("_after", "_ask", "_before", "_head", "_sent")

    def __init__(self, ask: Ask, answer_id: str, created: int) -> None:
        self._ask = ask
        self._head: dict[str, Any] = {
            "id": answer_id,
            "object": "chat.completion.chunk" if ask.chat else "text_completion",
            "created": created,
            "model": ask.model,
        }
        self._sent = 0
        self._before, _, self._after = self._chunk(self._choice(_MARK, None)).partition(_MARK_JSON)

    def tokens(self, count: int, finish_reason: str | None) -> bytes:
        """Return the next `count` tokens' events, and with a finish reason the end of the stream."""
        start, self._sent = self._sent, self._sent + count
        word = self._ask.answer.word
        parts = [self._opening()] if start == 0 else []
        plain = self._sent
        if finish_reason is not None and count:
            plain -= 1  # the last token comes in the event that bears the finish reason
        parts += [self._before + word(index) + self._after for index in range(start, plain)]
        if finish_reason is not None:
            parts.append(self._end(b"".join(map(word, range(plain, self._sent))).decode(), finish_reason))
        return b"".join(parts)

    def _opening(self) -> bytes:
        """Return the event that says who speaks; it comes with the first token."""
        if not self._ask.chat:
            return b""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        return _event(orjson.dumps({**self._head, "choices": [choice], "prompt_token_ids": None, "prompt_text": None}))

    def _end(self, word: str, finish_reason: str) -> bytes:
        last = self._chunk(self._choice(word, finish_reason))
        if not self._ask.include_usage:
            return last + DONE
        counted = _event(orjson.dumps({**self._head, "choices": [], "usage": usage(self._ask, self._sent)}))
        return last + counted + DONE

    def _choice(self, word: str, finish_reason: str | None) -> dict[str, Any]:
        chat = self._ask.chat
        choice: dict[str, Any] = {"index": 0, **({"delta": {"content": word}} if chat else {"text": word})}
        choice |= {"logprobs": None, "finish_reason": finish_reason}
        if finish_reason is not None or not chat:  # a chat's event names it only at the end
            choice["stop_reason"] = None
        if not chat:
            choice["prompt_token_ids"] = None
        return {**choice, "token_ids": None}

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        return _event(orjson.dumps({**self._head, "choices": [choice]}))


def _event(document: bytes) -> bytes:
    return b"data: " + document + b"\n\n"
