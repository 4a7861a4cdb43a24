"""ACT: everything that can go wrong between a decision and the API server, translated here and nowhere else.

ActError
    NotLeaderError      the lease is not ours any more: nothing was sent
    UnreachableError    no answer, or one that says "later" (429, 5xx): the write may or may not have happened
    ConflictError       the object is another one than the decision was about (resourceVersion, uid, field manager)
    AlreadyThereError   a create of a name that exists
    GoneError           the object (or its namespace, or its kind) does not exist
    RefusedError        the server will not have it: rights, quota, admission or validation. A person has to act.
"""

from __future__ import annotations

import orjson

HTTP_NOT_FOUND, HTTP_CONFLICT, HTTP_TOO_MANY, HTTP_SERVER_ERROR = 404, 409, 429, 500
MAX_MESSAGE = 512


class ActError(Exception):
    """A write that did not happen, or of which that is not known."""


class NotLeaderError(ActError):
    """The lease is not valid any more."""


class UnreachableError(ActError):
    """The API server gave no answer that settles the matter."""


class ConflictError(ActError):
    """The object changed since the decision was made."""


class AlreadyThereError(ActError):
    """An object of this name exists."""


class GoneError(ActError):
    """The object does not exist."""


class RefusedError(ActError):
    """The API server refuses; its own words are the message."""


def translate(status: int, body: bytes) -> ActError:
    """Make the exception for an HTTP status of 300 or more and a body that usually is a `Status` object."""
    try:
        document = orjson.loads(body)
        reason, message = str(document.get("reason", "")), str(document.get("message", ""))
    except (orjson.JSONDecodeError, AttributeError):
        reason, message = "", body[:MAX_MESSAGE].decode(errors="replace")
    text = f"HTTP {status} {reason}: {message}"[:MAX_MESSAGE]
    if status == HTTP_CONFLICT:
        return AlreadyThereError(text) if reason == "AlreadyExists" else ConflictError(text)
    if status == HTTP_NOT_FOUND:
        return GoneError(text)
    if status == HTTP_TOO_MANY or status >= HTTP_SERVER_ERROR:
        return UnreachableError(text)
    return RefusedError(text)
