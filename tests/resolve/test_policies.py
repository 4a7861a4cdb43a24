"""The policies that ship: sound by the schema, and the built-in defaults are two of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from forebay.api.inference_service import ServiceClass
from forebay.api.kinds import SLO_POLICY
from forebay.api.parse import parse
from forebay.api.schema import object_schema
from forebay.api.slo_policy import SLOPolicy
from forebay.resolve.defaults import POLICY_BY_CLASS

FOLDER = Path(__file__).parents[2] / "policies"
FILES = sorted(FOLDER.glob("*.yaml"))


def test_there_are_five():
    assert [f.stem for f in FILES] == ["batch", "code-completion", "interactive-chat", "long-context", "voice"]


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_a_policy_is_sound_and_named_like_its_file(file: Path):
    raw = yaml.safe_load(file.read_text())
    Draft202012Validator(object_schema(SLO_POLICY)).validate(raw)
    assert parse(SLOPolicy, raw).metadata.name == file.stem
    assert f"`{file.stem}`" in (FOLDER / "README.md").read_text()


@pytest.mark.parametrize(
    ("service_class", "name"), [(ServiceClass.INTERACTIVE, "interactive-chat"), (ServiceClass.BATCH, "batch")]
)
def test_the_default_of_a_class_is_the_policy_of_that_name(service_class: ServiceClass, name: str):
    raw = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    assert parse(SLOPolicy, raw).spec == POLICY_BY_CLASS[service_class]
