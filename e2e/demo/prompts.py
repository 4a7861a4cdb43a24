"""Text of a wished length. What the recordings said is not public, only how long it was; so the words mean nothing."""

from __future__ import annotations

import random

# Short common words: one token each in every usual tokenizer. The server's own count is what the scorecard uses.
_WORDS = (
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "with", "was", "on", "be", "at", "by", "this",
    "have", "from", "or", "one", "had", "not", "but", "what", "all", "were", "when", "we", "there", "can", "an",
)  # fmt: skip


def filler(seed: int, number: int, tokens: int) -> str:
    """Write about so many tokens, the same for the same seed and number.

    Parameters
    ----------
    seed
        Of the run.
    number
        Of the request: it comes first, so that no two prompts share a cached prefix.
    tokens
        Wished length.
    """
    dice = random.Random(f"{seed} {number}")  # noqa: S311 - a repeatable draw, not a secret
    return " ".join([f"{seed}.{number}:", *dice.choices(_WORDS, k=tokens)])
