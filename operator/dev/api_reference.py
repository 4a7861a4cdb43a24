"""The API reference as Markdown, from the same schemas as the CRDs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay.api.kinds import KINDS, Kind
from forebay.api.schema import object_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = """<!-- Made by operator/dev/generate.py; do not edit. -->
# API reference: forebay.dev/v1alpha1

Every field with its type, bounds, default and meaning, and every rule by the message that the API server gives when it
is broken. `kubectl explain` prints the same: `kubectl explain inferenceservices.forebay.dev.spec.scaling`.
"""


def markdown() -> str:
    """Return the whole page."""
    return HEAD + "".join("\n" + _section(kind) for kind in KINDS)


def _section(kind: Kind) -> str:
    schema = object_schema(kind)
    scope = "namespaced" if kind.namespaced else "cluster-scoped"
    lines = [
        f"## {kind.name}",
        "",
        f"{schema['description']}",
        "",
        f"`kubectl get {kind.short_name}`; {scope}.",
        "",
        "| field | type | default | meaning |",
        "| --- | --- | --- | --- |",
    ]
    for part in ("spec", "status"):
        if part in schema["properties"]:
            lines += list(_rows(part, schema["properties"][part]))
    rules = list(_rules("", schema))
    if rules:
        lines += ["", "Rules:", "", *rules]
    return "\n".join(lines) + "\n"


def _rows(path: str, node: dict[str, Any], *, required: bool = True) -> Iterator[str]:
    kind, default = _type(node), node.get("default")
    shown = "required" if required and default is None else "" if default in (None, {}) else f"`{default}`"
    if path.startswith("status"):
        shown = ""
    meaning = node.get("description", "").removesuffix(f" Default: {default}.")  # it has a column of its own
    yield f"| `{path}` | {kind} | {shown} | {_escape(meaning)} |"
    inner, base = (node["items"], f"{path}[]") if node["type"] == "array" else (node, path)
    for name, child in inner.get("properties", {}).items():
        yield from _rows(f"{base}.{name}", child, required=name in inner.get("required", ()))


def _type(node: dict[str, Any]) -> str:
    if "enum" in node:
        return " \\| ".join(node["enum"])
    match node["type"]:
        case "integer":
            return f"integer {node['minimum']} to {node['maximum']}"
        case "array":
            return f"list of at most {node['maxItems']}"
        case "object" if "additionalProperties" in node:
            return f"map of at most {node['maxProperties']}"
        case "string" if "maxLength" in node:
            return f"text of at most {node['maxLength']}"
        case other:
            return str(other)


def _rules(path: str, node: dict[str, Any]) -> Iterator[str]:
    for rule in node.get("x-kubernetes-validations", ()):
        field = (path + rule.get("fieldPath", "")).lstrip(".") or "the object"
        message = rule.get("message") or rule["messageExpression"].rpartition(".format(")[0].strip("'")
        yield f"- `{field}`: {_escape(message)}"
    for name, child in node.get("properties", {}).items():
        yield from _rules(f"{path}.{name}", child)
    if node.get("type") == "array":
        yield from _rules(f"{path}[]", node["items"])


def _escape(text: str) -> str:
    return text.replace("|", "\\|")
