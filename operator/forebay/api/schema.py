"""From the models to CustomResourceDefinitions: pydantic's JSON schema as a structural schema, references inlined.

What the API server asks of a schema beyond what pydantic says: no references, no titles, no unions with null, a bound
on every text, list and map (or the cost of CEL rules is unbounded), and `default: {}` on objects, without which the
defaults within apply only where a user writes the object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic.json_schema import models_json_schema

from forebay.api.base import ApiModel
from forebay.api.kinds import KINDS, Kind
from forebay.api.rules import rules_of
from forebay.wire.names import GROUP, VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

Schema = dict[str, Any]

INT32_MAX = 2**31 - 1
_STANDARD = {
    "apiVersion": {
        "type": "string",
        "description": f"Version of the schema of this object: {GROUP}/{VERSION}.",
    },
    "kind": {"type": "string", "description": "Kind of this object."},
    "metadata": {"type": "object"},
}


def custom_resource_definition(kind: Kind) -> dict[str, Any]:
    """Return the CRD of one kind, ready for the API server."""
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": object_schema(kind)},
        "additionalPrinterColumns": [
            {"name": c.name, "type": c.type, "jsonPath": c.path, "description": c.description} for c in kind.columns
        ],
    }
    if "status" in kind.model.model_fields:
        version["subresources"] = {"status": {}}
    if kind.scalable:
        version["subresources"]["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.name.lower(),
                "shortNames": [kind.short_name],
                "categories": ["forebay"],
            },
            "versions": [version],
        },
    }


def object_schema(kind: Kind) -> Schema:
    """Return the structural schema of a whole object."""
    _, document = models_json_schema([(kind.model, "validation")], by_alias=True)
    parts = {model.__name__: model for model in models_of(kind.model)}
    inliner = _Inliner(document["$defs"], parts)
    top = document["$defs"][kind.name]
    own = {k: v for k, v in top["properties"].items() if k != "metadata"}
    schema = inliner.model(kind.name, top | {"properties": own})
    schema["properties"] = _STANDARD | schema["properties"]
    schema["required"] = ["spec"]
    return schema


def models_of(model: type[ApiModel]) -> Iterator[type[ApiModel]]:
    """Yield a model and all models in its fields."""
    yield model
    for info in model.model_fields.values():
        for part in _parts(info.annotation):
            if isinstance(part, type) and issubclass(part, ApiModel):
                yield from models_of(part)


def _parts(annotation: Any) -> Iterator[Any]:
    yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _parts(argument)


@dataclass(frozen=True, slots=True)
class _Inliner:
    """Turns pydantic's schema nodes into structural ones."""

    definitions: dict[str, Schema]
    models: dict[str, type[ApiModel]]

    def model(self, name: str, node: Schema) -> Schema:
        """Return the schema of one model or enumeration, with its rules."""
        schema = self.node(node)
        rules = [rule.schema() for rule in rules_of(self.models[name])] if name in self.models else []
        return schema | ({"x-kubernetes-validations": rules} if rules else {})

    def node(self, node: Schema) -> Schema:
        """Return one node without references, titles and unions with null."""
        if "anyOf" in node:  # always "X or null": a field that may be left out
            (chosen,) = (option for option in node["anyOf"] if option.get("type") != "null")
            return self.node(chosen | {k: v for k, v in node.items() if k not in {"anyOf", "default"}})
        if "$ref" in node:
            name = node["$ref"].rpartition("/")[2]
            said = {k: v for k, v in node.items() if k in {"description", "default"}}
            return self.model(name, self.definitions[name] | said)
        return self._typed({k: v for k, v in node.items() if k != "title"})

    def _typed(self, node: Schema) -> Schema:
        if "description" in node:
            node["description"] = " ".join(node["description"].split()) + _default_said(node)
        match node["type"]:
            case "integer":
                node["format"] = "int32" if node["maximum"] <= INT32_MAX else "int64"
            case "array":
                node["items"] = self.node(node["items"])
                node = {k: v for k, v in node.items() if (k, v) != ("default", [])}
            case "object":
                node = self._object(node)
            case _:
                pass
        return node

    def _object(self, node: Schema) -> Schema:
        if "properties" in node:
            node["properties"] = {k: self.node(v) for k, v in node["properties"].items()}
            node.pop("additionalProperties", None)
        elif node.get("x-kubernetes-preserve-unknown-fields"):
            del node["additionalProperties"]
        else:
            node["additionalProperties"] = self.node(node["additionalProperties"])
        return node | ({"default": {}} if "default" in node else {})


def _default_said(node: Schema) -> str:
    """Say a default in words: `kubectl explain` prints descriptions, and no defaults."""
    default = node.get("default")
    return f" Default: {default}." if isinstance(default, int | str) else ""


def all_definitions() -> dict[str, dict[str, Any]]:
    """Return every CRD by its file name."""
    return {f"{GROUP}_{kind.plural}.yaml": custom_resource_definition(kind) for kind in KINDS}
