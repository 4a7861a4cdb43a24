"""Text of a wished length. What the recordings said is not public, only how long it was; so the words mean nothing."""

from __future__ import annotations

import random

# Three letters and a blank: one token in every usual tokenizer, and in the emulated engine's, which counts four bytes.
_WORDS = ("the", "and", "for", "was", "are", "but", "not", "you", "all", "can", "had", "one", "out", "day")
_TOKEN_BYTES = 4
# A chat template opens and closes the message with about so many tokens of its own.
_TEMPLATE_TOKENS = 9


def filler(seed: int, number: int, tokens: int) -> str:
    """Write a message that makes a prompt of so many tokens, the same for the same seed and number.

    Parameters
    ----------
    seed
        Of the run.
    number
        Of the request: it comes first, so that no two prompts share a cached prefix.
    tokens
        Wished length of the prompt, at least 1.
    """
    dice = random.Random(f"{seed} {number}")  # noqa: S311 - a repeatable draw, not a secret
    length = max(1, tokens - _TEMPLATE_TOKENS)
    text = " ".join([f"{seed}.{number}", *dice.choices(_WORDS, k=length)])
    return text[: length * _TOKEN_BYTES]
