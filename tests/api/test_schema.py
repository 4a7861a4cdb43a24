"""The schemas are structural, bounded and described, and say the same as the models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from forebay.api.kinds import INFERENCE_SERVICE, KINDS, Kind
from forebay.api.schema import custom_resource_definition, object_schema
from tests.api.cases import ACCEPTED, OUT_OF_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Iterator

BY_NAME = {kind.name: kind for kind in KINDS}


def nodes(path: str, node: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        if (path, name) not in {("", "metadata"), ("", "apiVersion"), ("", "kind")}:
            yield from nodes(f"{path}.{name}", child)
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            yield from nodes(f"{path}[]", node[key])


ALL = [(kind.name + path, node) for kind in KINDS for path, node in nodes("", object_schema(kind))]


@pytest.mark.parametrize(("path", "node"), ALL, ids=[path for path, _ in ALL])
def test_every_node_is_bounded_and_described(path: str, node: dict[str, Any]):
    assert not {"$ref", "anyOf", "allOf", "oneOf", "title"} & node.keys()
    if not path.endswith("[]"):
        assert len(node["description"]) > 5
    match node["type"]:
        case "string":
            assert "enum" in node or "maxLength" in node
        case "array":
            assert "maxItems" in node
        case "integer":
            assert {"minimum", "maximum", "format"} <= node.keys()
        case "object" if "additionalProperties" in node:
            assert "maxProperties" in node
        case "object":
            assert "properties" in node or node.get("x-kubernetes-preserve-unknown-fields")


@pytest.mark.parametrize(("path", "node"), ALL, ids=[path for path, _ in ALL])
def test_defaults_apply_where_the_parent_is_left_out(path: str, node: dict[str, Any]):
    for name, child in node.get("properties", {}).items():
        inner = child.get("properties", {})
        if any("default" in field for field in inner.values()) and not child.get("required") and path != "":
            assert child.get("default") == {} or name in {"emulated", "steps"}, f"{path}.{name}"


@pytest.mark.parametrize("raw", ACCEPTED.values(), ids=ACCEPTED)
def test_the_schema_takes_what_the_model_takes(raw: dict[str, Any]):
    assert list(Draft202012Validator(object_schema(BY_NAME[raw["kind"]])).iter_errors(raw)) == []


@pytest.mark.parametrize(("raw", "field"), OUT_OF_BOUNDS.values(), ids=OUT_OF_BOUNDS)
def test_the_schema_refuses_what_the_model_refuses(raw: dict[str, Any], field: str):
    errors = list(Draft202012Validator(object_schema(BY_NAME[raw["kind"]])).iter_errors(raw))
    assert any(field.startswith(".".join(map(str, error.absolute_path))) for error in errors)


def test_a_default_in_the_schema_is_the_default_of_the_model():
    spec = object_schema(INFERENCE_SERVICE)["properties"]["spec"]["properties"]
    assert spec["replicas"]["default"] == 1
    assert spec["class"]["default"] == "Interactive"
    assert spec["scaling"]["default"] == {}
    assert spec["scaling"]["properties"]["idleSeconds"]["default"] == 300
    assert "default" not in spec["engine"]["properties"]["emulated"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_names_that_kubectl_knows(kind: Kind):
    names = custom_resource_definition(kind)["spec"]["names"]
    assert names["categories"] == ["forebay"]
    assert names["shortNames"] == [kind.short_name]


def test_kubectl_explain_tells_the_default_of_a_value_and_not_of_an_object():
    spec = object_schema(INFERENCE_SERVICE)["properties"]["spec"]["properties"]
    assert spec["scaling"]["properties"]["idleSeconds"]["description"].endswith(" Default: 300.")
    assert spec["class"]["description"].endswith(" Default: Interactive.")
    assert "Default" not in spec["scaling"]["description"]


def test_an_inference_service_can_be_scaled():
    (version,) = custom_resource_definition(INFERENCE_SERVICE)["spec"]["versions"]
    assert version["subresources"]["scale"]["labelSelectorPath"] == ".status.selector"
    assert [c["name"] for c in version["additionalPrinterColumns"]] == [
        "Model", "Ready", "Replicas", "Desired", "Warm", "SLO", "Reason", "Age",
    ]  # fmt: skip
