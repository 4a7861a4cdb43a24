"""The Grafana dashboard: rows of questions, each panel one answer; made into the chart's dashboards/forebay.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

WIDTH = 24  # columns of Grafana's grid
HEIGHT = 8
SOURCE = {"type": "prometheus", "uid": "${source}"}
# The gateway's label holds namespace/name; the operator has a label for each.
CHOSEN = 'service=~"$namespace/$service"'
OPERATOR = 'namespace=~"$namespace",service=~"$service"'
SERVING = OPERATOR + ',state="serving"'
NAMED = "{{namespace}}/{{service}}"


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph: what it answers, in which unit, and the queries with their legends."""

    title: str
    description: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    stacked: bool = False


def _rate(metric: str, by: str = "service", match: str = CHOSEN) -> str:
    return f"sum by ({by}) (rate({metric}{{{match}}}[$__rate_interval]))"


def _gauge(metric: str, by: str = "service", match: str = CHOSEN) -> str:
    return f"sum by ({by}) ({metric}{{{match}}})"


def _quantile(share: str, metric: str, by: str, match: str = CHOSEN) -> str:
    return f"histogram_quantile({share}, {_rate(metric + '_bucket', by, match)})"


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "What do clients get?",
        (
            Panel(
                "Requests by outcome",
                "Answered, refused (429 and 503 of the gateway), aborted by the client, failed.",
                "reqps",
                ((_rate("forebay_gateway_requests_total", "outcome"), "{{outcome}}"),),
                stacked=True,
            ),
            Panel(
                "Share of requests answered",
                "Of all that ended and were not aborted by their client.",
                "percentunit",
                (
                    (
                        _rate("forebay_gateway_requests_total", match=CHOSEN + ',outcome="answered"')
                        + " / "
                        + _rate("forebay_gateway_requests_total", match=CHOSEN + ',outcome!="aborted"'),
                        "{{service}}",
                    ),
                ),
            ),
            Panel(
                "Time in the gateway's queue",
                "From admission until the request went to a replica. Milliseconds while there is room; seconds mean "
                "that capacity is missing or starting.",
                "s",
                (
                    (_quantile("0.5", "forebay_gateway_queue_seconds", "le, service"), "{{service}} p50"),
                    (_quantile("0.95", "forebay_gateway_queue_seconds", "le, service"), "{{service}} p95"),
                ),
            ),
        ),
    ),
    (
        "Does the promise hold?",
        (
            Panel(
                "Good requests",
                "Share of requests over 30 minutes whose time to first token and gaps held, from the engines' "
                "histograms. The policy's attainmentPermille is the goal.",
                "percentunit",
                (("forebay_slo_attainment_ratio{" + OPERATOR + "}", NAMED),),
            ),
            Panel(
                "Nothing may be removed",
                "1 while something needed is unknown: replicas that do not answer, or gateways that went silent.",
                "short",
                (("forebay_hold{" + OPERATOR + "}", NAMED),),
            ),
        ),
    ),
    (
        "What is asked of the fleet?",
        (
            Panel(
                "Arrivals",
                "Requests for a known model, those that are turned away included.",
                "reqps",
                ((_rate("forebay_gateway_arrivals_total"), "{{service}}"),),
            ),
            Panel(
                "Prompt tokens that wait",
                "Held at the gateways, and sent but not yet counted by an engine. This leads every other signal.",
                "short",
                (
                    (_gauge("forebay_gateway_held_prompt_tokens"), "{{service}} held"),
                    (_gauge("forebay_gateway_pending_prompt_tokens"), "{{service}} pending"),
                ),
            ),
            Panel(
                "Requests held and in flight",
                "Held wait at the gateway; in flight are with a replica.",
                "short",
                (
                    (_gauge("forebay_gateway_held_requests"), "{{service}} held"),
                    (_gauge("forebay_gateway_in_flight_requests"), "{{service}} in flight"),
                ),
            ),
        ),
    ),
    (
        "What does Forebay do about it?",
        (
            Panel(
                "Replicas by state",
                "Warm ones are loaded and wait for a burst; starting ones come.",
                "short",
                ((_gauge("forebay_replicas", "state", OPERATOR), "{{state}}"),),
                stacked=True,
            ),
            Panel(
                "Serving replicas: wanted and answering",
                "Wanted above answering for longer than a cold start: see the service's conditions.",
                "short",
                (
                    (
                        _gauge("forebay_replicas_desired", "namespace, service", OPERATOR + ',state="serving"'),
                        NAMED + " wanted",
                    ),
                    (_gauge("forebay_replicas_ready", "namespace, service", OPERATOR), NAMED + " answering"),
                ),
            ),
            Panel(
                "GPUs held",
                "By the state of the replica that holds them: what the fleet costs, and how much of it is warm.",
                "short",
                ((_rate("forebay_gpu_seconds_total", "state", OPERATOR), "{{state}}"),),
                stacked=True,
            ),
        ),
    ),
    (
        "Is the operator itself well?",
        (
            Panel(
                "Time of one tick",
                "Over all services. A tick is due each second.",
                "s",
                (
                    (_quantile("0.5", "forebay_tick_seconds", "le", ""), "p50"),
                    (_quantile("0.99", "forebay_tick_seconds", "le", ""), "p99"),
                ),
            ),
            Panel(
                "Actions",
                "Pods made, labelled and deleted, by outcome.",
                "ops",
                ((_rate("forebay_actions_total", "action, outcome", ""), "{{action}} {{outcome}}"),),
            ),
            Panel(
                "Who leads",
                "Exactly one process leads; 0 for longer than a lease, or 2, is a fault. Late ticks beside it.",
                "short",
                (
                    ("sum(forebay_leading)", "leaders"),
                    ("sum(increase(forebay_ticks_late_total[$__rate_interval]))", "late ticks"),
                ),
            ),
        ),
    ),
    (
        "Is the gateway itself well?",
        (
            Panel(
                "Answers of the gateway itself",
                "By status and reason: what clients got without an engine seeing the request.",
                "reqps",
                ((_rate("forebay_gateway_own_answers_total", "status, reason", ""), "{{status}} {{reason}}"),),
                stacked=True,
            ),
            Panel(
                "Time to pick a replica",
                "The picker's own share of a request, waiting excluded.",
                "s",
                (
                    (_quantile("0.5", "forebay_gateway_pick_seconds", "le", ""), "p50"),
                    (_quantile("0.99", "forebay_gateway_pick_seconds", "le", ""), "p99"),
                ),
            ),
            Panel(
                "Ends that nobody saw",
                "Requests whose end was missed over a restart of picker or Envoy; they count as failed. Should be 0.",
                "short",
                (("sum(increase(forebay_gateway_unseen_ends_total[$__rate_interval]))", "unseen"),),
            ),
        ),
    ),
)


def dashboard_json() -> str:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        panels.append(
            {"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": _place(0, y, WIDTH, 1)}
        )
        width = WIDTH // len(row)
        panels += [_panel(panel, _place(place * width, y + 1, width, HEIGHT)) for place, panel in enumerate(row)]
        y += 1 + HEIGHT
    document = {
        "title": "Forebay",
        "uid": "forebay",
        "tags": ["forebay", "inference"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": _variables()},
        "panels": [{"id": number, **panel} for number, panel in enumerate(panels, 1)],
    }
    return json.dumps(document, indent=2) + "\n"


def _variables() -> list[dict[str, Any]]:
    source = {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}
    within = 'label_values(forebay_replicas{namespace=~"$namespace"}, service)'
    return [source, _choice("namespace", "label_values(forebay_replicas, namespace)"), _choice("service", within)]


def _choice(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "query": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    custom = {"fillOpacity": 20 if panel.stacked else 0, "showPoints": "never"}
    stacking = {"stacking": {"mode": "normal", "group": "A"}} if panel.stacked else {}
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom | stacking}, "overrides": []},
        "options": {
            "tooltip": {"mode": "multi", "sort": "desc"},
            "legend": {"displayMode": "list", "placement": "bottom"},
        },
        "targets": [
            {"refId": chr(ord("A") + number), "expr": expression, "legendFormat": legend, "datasource": SOURCE}
            for number, (expression, legend) in enumerate(panel.queries)
        ],
    }


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}
