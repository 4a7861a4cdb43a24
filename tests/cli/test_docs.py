"""Every object that the documents show is one that the API takes, and every command is one that exists."""

import re
from pathlib import Path

import pytest
import yaml

from forebay.api.kinds import KINDS
from forebay.wire.names import API_VERSION
from tests.cli.test_main import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(p for p in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", *ROOT.glob("policies/*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
MODELS = {kind.name: kind.model for kind in KINDS}


def blocks(page: Path, language: str) -> list[str]:
    return [text for found, text in BLOCK.findall(page.read_text()) if found == language]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_objects_are_valid(page: Path) -> None:
    for text in blocks(page, "yaml"):
        for document in yaml.safe_load_all(text):
            if isinstance(document, dict) and document.get("apiVersion") == API_VERSION:
                shown = MODELS[document["kind"]].model_validate(document)
                # A field that the model ignores would be a field that the API server drops.
                assert_known(document["spec"], shown.model_dump(by_alias=True)["spec"])


def assert_known(shown: object, known: object) -> None:
    if isinstance(shown, dict) and isinstance(known, dict):
        for key, value in shown.items():
            assert key in known, key
            assert_known(value, known[key])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page: Path) -> None:
    for text in blocks(page, "sh"):
        for command in re.findall(r"^(?:kubectl )?forebay (\w+)", text, re.MULTILINE):
            assert command in COMMANDS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+?)\)", page.read_text()):
        assert (page.parent / target).exists(), target
