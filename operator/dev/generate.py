"""Write every file that is made from the code: CRDs, the chart's values and their schema, the API reference.

Usage: python operator/dev/generate.py [--check]

--check writes nothing and fails if a file is not what it would write.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import api_reference
import chart_values
import dashboard
import yaml

from forebay.api.schema import all_definitions

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "forebay"
MADE_BY = "# Made by operator/dev/generate.py; do not edit.\n"


class _Dumper(yaml.SafeDumper):
    """YAML without anchors: the same list twice is written twice."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True


def _yaml(document: Any) -> str:
    return MADE_BY + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


def files() -> dict[Path, str]:
    """Return the text of every generated file by its path."""
    made: dict[Path, str] = {}
    for name, definition in all_definitions().items():
        made[ROOT / "crds" / name] = made[CHART / "crds" / name] = _yaml(definition)
    made[CHART / "values.yaml"] = chart_values.values_yaml()
    made[CHART / "values.schema.json"] = chart_values.schema_json()
    made[CHART / "dashboards" / "forebay.json"] = dashboard.dashboard_json()
    for policy in sorted((ROOT / "policies").glob("*.yaml")):
        made[CHART / "policies" / policy.name] = policy.read_text()
    made[ROOT / "docs" / "reference" / "api.md"] = api_reference.markdown()
    return made


def stale(made: dict[Path, str]) -> list[Path]:
    """Return the files that are missing, differ, or that nothing makes any more."""
    wrong = [path for path, text in made.items() if not path.is_file() or path.read_text() != text]
    left = [
        p
        for folder in (ROOT / "crds", CHART / "crds", CHART / "policies")
        for p in folder.glob("*.yaml")
        if p not in made
    ]
    return wrong + left


def main() -> int:
    """Generate or check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is not current")
    check = parser.parse_args().check
    made = files()
    wrong = stale(made)
    for path in wrong:
        print(("not current: " if check else "wrote: ") + str(path.relative_to(ROOT)))
        if not check and path in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made[path])
        elif not check:
            path.unlink()
    if check and wrong:
        print("run: python operator/dev/generate.py")
    return 1 if check and wrong else 0


if __name__ == "__main__":
    sys.exit(main())
