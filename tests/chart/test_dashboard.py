"""The dashboard asks only for metrics that the code has, and reaches the cluster as a ConfigMap."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from tests.chart.conftest import CHART

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chart.conftest import Objects

ROOT = CHART.parents[1]
DASHBOARD: dict[str, Any] = json.loads((CHART / "dashboards" / "forebay.json").read_text())
GRAPHS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
SUFFIX = re.compile("_(total|bucket|sum|count)$")


def test_every_metric_exists_in_the_code():
    folders = (ROOT / "operator" / "forebay", ROOT / "replica_image" / "forebay_replica")
    code = "\n".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    known = set(re.findall(r'"(forebay_[a-z_]+)"', code))
    asked = {name for g in GRAPHS for t in g["targets"] for name in re.findall(r"forebay_[a-z_]+", t["expr"])}
    assert asked
    assert {SUFFIX.sub("", name) for name in asked} <= {SUFFIX.sub("", name) for name in known}


def test_every_graph_says_what_it_answers_and_none_covers_another():
    taken: set[tuple[int, int]] = set()
    for graph in GRAPHS:
        assert graph["description"]
        place = graph["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, graph["title"]
        taken |= cells


def test_grafana_gets_it_whole(render: Callable[..., Objects]):
    (found,) = [o for o in render("monitoring.dashboard.enabled=true") if o["kind"] == "ConfigMap"]
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(found["data"]["forebay.json"]) == DASHBOARD
