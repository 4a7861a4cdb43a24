"""What a client asked for: two shapes of OpenAI's API become one `Ask`, or an error in its words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from forebay_replica.engine_emulated.text import Answer, Prompt, chat_prompt, plain_prompt, token_prompt

if TYPE_CHECKING:
    from collections.abc import Mapping

COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions; a chat may go on to the model's length
HTTP_BAD_REQUEST, HTTP_NOT_FOUND, HTTP_UNAVAILABLE = 400, 404, 503
_ERROR_TYPES = {
    HTTP_BAD_REQUEST: "BadRequestError",
    HTTP_NOT_FOUND: "NotFoundError",
    HTTP_UNAVAILABLE: "ServiceUnavailableError",
}


class ApiError(Exception):
    """An answer that is not an answer.

    Parameters
    ----------
    status
        HTTP status.
    message
        What to do about it.
    param
        The field of the body that is wrong.
    """

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param

    def to_json(self) -> bytes:
        """Encode as OpenAI's clients expect it."""
        return error_json(str(self), _ERROR_TYPES.get(self.status, "InternalServerError"), self.status, self.param)


def error_json(message: str, kind: str, code: int, param: str | None = None) -> bytes:
    """Encode an error object."""
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


@dataclass(frozen=True, slots=True)
class Ask:
    """One checked request."""

    chat: bool
    model: str  # as the client called it
    prompt: Prompt
    answer: Answer
    stream: bool
    include_usage: bool
    max_tokens: int


def read_ask(body: bytes, *, chat: bool, served_names: tuple[str, ...], max_model_len: int) -> Ask:
    """Read and check a request body.

    Raises
    ------
    ApiError
        400 for a body that is no such request or too long, 404 for a model that is not served here.
    """
    fields = _object(body)
    model = fields.get("model") or served_names[0]
    if model not in served_names:
        raise ApiError(HTTP_NOT_FOUND, f"The model `{model}` does not exist.", "model")
    if fields.get("n") not in (None, 1):
        raise ApiError(HTTP_BAD_REQUEST, "This engine gives one answer a request: leave n out or set it to 1.", "n")
    prompt = _chat(fields.get("messages")) if chat else _completion(fields.get("prompt"))
    max_tokens = _max_tokens(fields, prompt, max_model_len, chat=chat)
    return Ask(
        chat=chat,
        model=model,
        prompt=prompt,
        answer=Answer(prompt, max_tokens, ends_by_itself=not fields.get("ignore_eos")),
        stream=bool(fields.get("stream")),
        include_usage=bool(_mapping(fields.get("stream_options"), "stream_options").get("include_usage")),
        max_tokens=max_tokens,
    )


def _object(body: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(HTTP_BAD_REQUEST, f"The body is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ApiError(HTTP_BAD_REQUEST, "The body must be a JSON object.")
    return fields


def _mapping(value: object, name: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ApiError(HTTP_BAD_REQUEST, f"{name} must be an object.", name)
    return value


def _chat(messages: object) -> Prompt:
    if not isinstance(messages, list) or not messages:
        raise ApiError(HTTP_BAD_REQUEST, "messages must be a list with at least one message.", "messages")
    turns: list[tuple[str, str]] = []
    for message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str):
            raise ApiError(HTTP_BAD_REQUEST, "Each message must be an object with a role.", "messages")
        turns.append((role, _content(message.get("content"))))
    return chat_prompt(turns)


def _content(content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [None]
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise ApiError(HTTP_BAD_REQUEST, "A message's content must be text or a list of text parts.", "messages")
    return "".join(map(str, texts))


def _completion(prompt: object) -> Prompt:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        made = plain_prompt(prompt)
    elif isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
        made = token_prompt(prompt)
    else:
        raise ApiError(HTTP_BAD_REQUEST, "prompt must be one text or one list of token numbers.", "prompt")
    if not made.tokens:
        raise ApiError(HTTP_BAD_REQUEST, "The prompt is empty.", "prompt")
    return made


def _max_tokens(fields: Mapping[str, Any], prompt: Prompt, max_model_len: int, *, chat: bool) -> int:
    room = max_model_len - prompt.tokens
    name = "max_tokens" if fields.get("max_completion_tokens") is None else "max_completion_tokens"
    wanted = fields.get(name)
    if wanted is None:
        wanted = max(1, room) if chat else COMPLETION_TOKENS
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
        raise ApiError(HTTP_BAD_REQUEST, f"{name} must be a whole number of at least 1.", name)
    if wanted > room:
        raise ApiError(
            HTTP_BAD_REQUEST,
            f"This model's maximum context length is {max_model_len} tokens; {prompt.tokens} prompt tokens and "
            f"{wanted} output tokens were asked for. Shorten the prompt or lower {name}.",
            name,
        )
    return wanted
