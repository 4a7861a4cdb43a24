"""Rules beyond types and bounds: each is a CEL expression for the API server and a Python twin with the same message.

The twin serves where no API server looks first: `resolve` (an object stored under an older rule) and the command line.
A message says what to write instead, since it is all that a user of kubectl gets to see.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from forebay.api.base import ApiModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

M = TypeVar("M", bound=ApiModel)


@dataclass(frozen=True, slots=True)
class Violation:
    """One rule that an object breaks."""

    field: str  # the path of the field as the API server names it: "spec.scaling.minReplicas"
    message: str

    @property
    def sentence(self) -> str:
        """Return both as one text."""
        return f"{self.field}: {self.message}" if self.field else self.message


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of one model. `self` and `oldSelf` in `cel` are that model; `holds` gets the same as Python objects."""

    cel: str
    message: str  # with %d or %s for each of `values`
    holds: Callable[[Any], bool] | None = None
    holds_between: Callable[[Any, Any], bool] | None = None  # a transition: (new, old); not asked on creation
    field: str = ""  # the field to blame, relative to the model: ".scaling.minReplicas"
    values: tuple[str, ...] = ()  # CEL paths of the numbers and texts in the message: "self.minReplicas"

    def schema(self) -> dict[str, str]:
        """Return the entry of x-kubernetes-validations."""
        entry = {"rule": self.cel}
        if self.values:
            entry["messageExpression"] = f"{_quoted(self.message)}.format([{', '.join(self.values)}])"
        else:
            entry["message"] = self.message
        if self.field:
            entry["fieldPath"] = self.field
        return entry

    def text(self, model: ApiModel) -> str:
        """Return the message for one object that breaks the rule."""
        return self.message % tuple(_value_at(model, path) for path in self.values) if self.values else self.message

    def broken(self, model: ApiModel, old: ApiModel | None) -> bool:
        """Say whether the object (on an update: the change) breaks the rule."""
        if self.holds is not None:
            return not self.holds(model)
        return self.holds_between is not None and old is not None and not self.holds_between(model, old)


_RULES: dict[type[ApiModel], tuple[Rule, ...]] = {}


def ruled(*rules: Rule) -> Callable[[type[M]], type[M]]:
    """Attach rules to a model."""

    def attach(model: type[M]) -> type[M]:
        _RULES[model] = rules
        return model

    return attach


def rules_of(model: type[ApiModel]) -> tuple[Rule, ...]:
    """Return the rules of one model, without those of its fields."""
    return _RULES.get(model, ())


def violations(model: ApiModel, old: ApiModel | None = None, path: str = "") -> Iterator[Violation]:
    """Yield every rule that an object breaks, its parts included, outermost first.

    Parameters
    ----------
    model
        The object after the change.
    old
        The object before it; None on creation.
    path
        Where the object stands; empty for a whole object.
    """
    for rule in rules_of(type(model)):
        if rule.broken(model, old):
            yield Violation((path + rule.field).lstrip("."), rule.text(model))
    for name, info in type(model).model_fields.items():
        value, before = getattr(model, name), getattr(old, name, None)
        here = f"{path}.{info.alias or name}"
        if isinstance(value, ApiModel):
            yield from violations(value, before if isinstance(before, ApiModel) else None, here)
        elif isinstance(value, tuple):
            for row, item in enumerate(value):
                if isinstance(item, ApiModel):
                    yield from violations(item, None, f"{here}[{row}]")


def _value_at(model: ApiModel, path: str) -> Any:
    value: Any = model
    for alias in path.removeprefix("self.").split("."):
        names = {info.alias or name: name for name, info in type(value).model_fields.items()}
        value = getattr(value, names[alias])
    return value


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
