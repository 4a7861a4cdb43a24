"""Tokens without a tokenizer: four bytes of UTF-8 are one token, and an answer is words of three letters.

English has about four bytes a token in every usual tokenizer, so counts come out right on average and prefixes of texts
are prefixes of token lists. Each part of a prompt is padded to whole tokens, so that an answer that comes back as part
of the next turn's prompt has the same tokens again and is found in the prefix cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.engine_model.bank import BLOCK_TOKENS
from forebay.engine_model.kv_blocks import chain_hash

if TYPE_CHECKING:
    from collections.abc import Sequence

TOKEN_BYTES = 4
BLOCK_BYTES = BLOCK_TOKENS * TOKEN_BYTES
_ROLE_BYTES = 4 * TOKEN_BYTES  # a chat template spends about four tokens on opening a message
_END_OF_MESSAGE = b"<|.>"
_WORDS = (
    b" the", b" and", b" for", b" you", b" not", b" are", b" but", b" had", b" has", b" was", b" all", b" any", b" can",
    b" her", b" one", b" our", b" out", b" day", b" get", b" him", b" his", b" how", b" man", b" new", b" now", b" old",
    b" see", b" two", b" way", b" who", b" boy", b" did", b" its", b" let", b" put", b" say", b" she", b" too", b" use",
    b" air", b" ask", b" big", b" car", b" cut", b" end", b" eye", b" far", b" few", b" got", b" hot", b" job", b" key",
    b" law", b" lie", b" lot", b" low", b" map", b" mix", b" net", b" off", b" own", b" pay", b" red", b" run", b" sea",
    b" set", b" sit",
)  # fmt: skip
# How long an answer is when nothing else ends it: 64 to 511 tokens, as chats have it.
_SHORTEST_ANSWER, _ANSWER_SPREAD = 64, 448


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the engine sees it."""

    content: bytes  # whole tokens

    @property
    def tokens(self) -> int:
        """Its length."""
        return len(self.content) // TOKEN_BYTES


def padded(content: bytes) -> bytes:
    """Fill up the last token with zeros."""
    return content + bytes(-len(content) % TOKEN_BYTES)


def plain_prompt(text: str) -> Prompt:
    """Make the prompt of a text."""
    return Prompt(padded(text.encode()))


def token_prompt(tokens: Sequence[int]) -> Prompt:
    """Make the prompt of a list of token numbers, one token each."""
    return Prompt(b"".join((token % 2**32).to_bytes(TOKEN_BYTES, "little") for token in tokens))


def chat_prompt(messages: Sequence[tuple[str, str]]) -> Prompt:
    """Make the prompt of (role, content) messages, ending where the assistant's next message begins."""
    parts: list[bytes] = []
    for role, content in messages:
        parts += [_opening(role), padded(content.encode()), _END_OF_MESSAGE]
    return Prompt(b"".join([*parts, _opening("assistant")]))


def _opening(role: str) -> bytes:
    tag = f"<|{role}|>".encode()
    return padded(tag.ljust(_ROLE_BYTES, b"\0"))


class Answer:
    """The text that follows a prompt: always the same for the same prompt.

    Parameters
    ----------
    prompt
        What is answered.
    limit
        Most tokens that it may have.
    ends_by_itself
        Whether it may be shorter than `limit`, as a model that emits its end token.
    """

    __slots__ = ("_first", "block_hashes", "finish_reason", "tokens")

    def __init__(self, prompt: Prompt, limit: int, *, ends_by_itself: bool) -> None:
        hashes = _chain([], prompt.content)
        known = len(hashes) * BLOCK_BYTES
        summary = chain_hash(hashes[-1] if hashes else 0, prompt.content[known:])
        natural = _SHORTEST_ANSWER + summary % _ANSWER_SPREAD
        stops = ends_by_itself and natural <= limit
        self.tokens = natural if stops else limit
        self.finish_reason = "stop" if stops else "length"
        self._first = summary % len(_WORDS)
        rest = prompt.content[known:] + b"".join(map(self.word, range(self.tokens)))
        self.block_hashes = _chain(hashes, rest)

    def word(self, index: int) -> bytes:
        """Return token `index`: ASCII that JSON needs not escape."""
        return _WORDS[(self._first + index) % len(_WORDS)]


def _chain(hashes: list[int], content: bytes) -> list[int]:
    """Return `hashes` continued by those of the full blocks of `content`."""
    chain = list(hashes)
    parent = chain[-1] if chain else 0
    for start in range(0, len(content) - BLOCK_BYTES + 1, BLOCK_BYTES):
        parent = chain_hash(parent, content[start : start + BLOCK_BYTES])
        chain.append(parent)
    return chain
