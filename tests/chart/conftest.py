"""The project's own helm, built once into the user's cache, and what it renders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from e2e.cluster import build
from e2e.cluster.command import run

if TYPE_CHECKING:
    from collections.abc import Callable

CHART = Path(__file__).parents[2] / "charts" / "forebay"

Objects = list[dict[str, Any]]


@pytest.fixture(scope="session")
def helm() -> Callable[..., str]:
    program = str(build._built(build.HELM) / "helm")
    return lambda *arguments: run([program, *arguments])


@pytest.fixture(scope="session")
def render(helm: Callable[..., str]) -> Callable[..., Objects]:
    """Render the chart with `--set` settings."""
    known: dict[tuple[str, ...], Objects] = {}

    def rendered(*settings: str) -> Objects:
        if settings not in known:
            chosen = [part for setting in settings for part in ("--set", setting)]
            text = helm("template", "forebay", str(CHART), "--namespace", "forebay", "--include-crds", *chosen)
            known[settings] = [document for document in yaml.safe_load_all(text) if document]
        return known[settings]

    return rendered
