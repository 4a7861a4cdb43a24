"""From an object as the API server gives it to a model, or to a list of what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from forebay.api.base import ApiModel
from forebay.api.rules import Violation, violations

if TYPE_CHECKING:
    from collections.abc import Mapping

M = TypeVar("M", bound=ApiModel)


class InvalidObjectError(ValueError):
    """An object that breaks the schema or a rule, for instance one stored under an older version of either."""

    def __init__(self, found: tuple[Violation, ...]) -> None:
        super().__init__("; ".join(violation.sentence for violation in found))
        self.violations = found


def parse(model: type[M], raw: Mapping[str, Any]) -> M:
    """Return the object as a model, with defaults.

    Parameters
    ----------
    model
        One of the kinds' models.
    raw
        The object as JSON gives it.

    Raises
    ------
    InvalidObjectError
        When a field has the wrong type, is out of bounds or missing, or a rule is broken.
    """
    try:
        parsed = model.model_validate(raw)
    except ValidationError as error:
        raise InvalidObjectError(tuple(_translated(item) for item in error.errors(include_url=False))) from error
    found = tuple(violations(parsed))
    if found:
        raise InvalidObjectError(found)
    return parsed


def _translated(item: Mapping[str, Any]) -> Violation:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in item["loc"])
    return Violation(path.lstrip(".") or "object", item["msg"])
