"""DECIDE: how many prompt tokens a body has, learned from the engines' own counters.

The gateway has no tokenizer: it would cost more CPU than everything else it does. It knows bytes, the engines know
tokens, and both know requests; so the ratio of the two means is the tokens of a byte, also where several gateways
share an engine.
"""

from __future__ import annotations

from dataclasses import dataclass

# JSON around English text has about four bytes a token; the first window of real traffic replaces this.
RATIO_FIRST_MILLI = 250
# A window closes after so many ended requests on both sides: at 16 the requests that straddle an edge are a few
# percent.
WINDOW_REQUESTS = 16
# A new window counts a quarter: a changed mix of traffic is learned within about ten windows.
NEWEST_SHARE = 4
# No text has more than a token a byte, and base64 images have far less than one in a hundred.
RATIO_MIN_MILLI, RATIO_MAX_MILLI = 5, 1_000


@dataclass(slots=True)
class TokenEstimator:
    """The tokens of a byte for one service, and how wrong that was.

    Attributes
    ----------
    ratio_milli : int
        Prompt tokens per 1,000 bytes of request body.
    error_permille : int or None
        Running mean of |window - estimate| / estimate; None before the second window, since one has no error yet.
    """

    ratio_milli: int = RATIO_FIRST_MILLI
    error_permille: int | None = None
    windows: int = 0
    _bytes: int = 0
    _ended: int = 0
    _tokens: int = 0
    _finished: int = 0

    def tokens(self, body_bytes: int, tokens_max: int) -> int:
        """Estimate the prompt tokens of a body; never more than the model takes."""
        return max(1, min(tokens_max, body_bytes * self.ratio_milli // 1_000))

    def ended(self, body_bytes: int) -> None:
        """Count one request of ours that an engine answered."""
        self._bytes += body_bytes
        self._ended += 1
        self._close_window()

    def counted(self, prompt_tokens: int, requests_finished: int) -> None:
        """Take what an engine counted between two readings."""
        self._tokens += prompt_tokens
        self._finished += requests_finished
        self._close_window()

    def _close_window(self) -> None:
        if self._ended < WINDOW_REQUESTS or self._finished < WINDOW_REQUESTS:
            return
        seen = 1_000 * self._tokens * self._ended // max(1, self._finished * self._bytes)
        self._bytes = self._ended = self._tokens = self._finished = 0
        if seen == 0:
            return  # an engine that counts no prompt tokens teaches nothing
        seen = max(RATIO_MIN_MILLI, min(RATIO_MAX_MILLI, seen))
        if self.windows == 0:
            self.ratio_milli = seen
        else:
            error = abs(seen - self.ratio_milli) * 1_000 // self.ratio_milli
            known = self.error_permille
            self.error_permille = error if known is None else known + (error - known) // NEWEST_SHARE
            self.ratio_milli += (seen - self.ratio_milli) // NEWEST_SHARE
        self.windows += 1
