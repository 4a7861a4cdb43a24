"""Fields that no version of ours knows: a typing error in a file, where the API server is not there to say so."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Iterator


def unknown_fields(document: object, model: type[BaseModel], at: str = "") -> Iterator[str]:
    """Say which fields of a document its model does not have, each with the name that it resembles.

    Parameters
    ----------
    document
        What was read of YAML or JSON; what is no mapping has no fields.
    model
        What it should be.
    at
        Where it lies, as "spec.ttft".
    """
    if not isinstance(document, dict):
        return
    known = {field.alias or name: field for name, field in model.model_fields.items()}
    for name, value in document.items():
        place = f"{at}.{name}" if at else str(name)
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1, 0.5)
            yield f"{place} (did you mean {near[0]}?)" if near else place
            continue
        for inner in _models(known[name].annotation):
            for one in value if isinstance(value, list) else [value]:
                yield from unknown_fields(one, inner, place)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Find the models inside an annotation: alone, optional, or of a tuple."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)
