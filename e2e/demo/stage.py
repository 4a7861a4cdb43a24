"""Everything that is watched during the play, and what it looks like now."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from e2e.demo.fleet import PROMOTED, FleetLog
from e2e.demo.view import Picture, ServiceView
from forebay.core.reasons import Reason
from forebay.core.wordings import WORDINGS
from forebay.observe.cluster import Change
from forebay.wire.lifecycle import ReplicaState
from forebay.wire.names import LABEL_SERVICE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from e2e.demo.plan import Plan
    from e2e.demo.promote import PromotionWatch
    from forebay.observe.cluster import Object
    from forebay.observe.gateways import GatewayStreams
    from forebay.wire.signals import GatewayService

# Once warm, the pool must have stood still for so long: the first decisions after a start still grow it.
SETTLED_S = 5
UNCHANGED = WORDINGS[Reason.NONE].name


class Stage:
    """Everything that is watched, and what it looks like now."""

    def __init__(self, plan: Plan, resource: str) -> None:
        self.plan = plan
        self.log = FleetLog(resource)
        self.services: dict[str, Object] = {}
        self.load: dict[str, Any] = {}
        self.gateways: GatewayStreams | None = None
        self.promotions: PromotionWatch | None = None
        self.changed_s = time.monotonic()
        self.start_s: float | None = None  # of the traffic
        self._began_s = time.monotonic()
        self._gateway_pods: dict[str, str] = {}

    def now_ms(self) -> int:
        """Milliseconds since the traffic began; before it, since then and negative once it has."""
        return round((time.monotonic() - (self.start_s or self._began_s)) * 1000)

    def begin_traffic(self) -> None:
        """From now on times count from here."""
        shift_ms = self.now_ms()
        self.start_s = time.monotonic()
        self.log.shift(-shift_ms)

    def on_pod(self, change: Change, pod: Object) -> None:
        """Take a change of a replica's pod."""
        became = self.log.on_pod(change, pod, self.now_ms())
        if became is not None:
            self.changed_s = time.monotonic()
        if became == PROMOTED and self.promotions is not None:
            meta = pod["metadata"]
            service = f"{meta['namespace']}/{meta['labels'][LABEL_SERVICE]}"
            self.promotions.follow(service, meta["name"], pod["status"]["podIP"])

    def on_service(self, _: Change, service: Object) -> None:
        """Take a change of an InferenceService; none is deleted before the play has ended."""
        meta = service["metadata"]
        self.services[f"{meta['namespace']}/{meta['name']}"] = service

    def on_gateway(self, change: Change, pod: Object) -> None:
        """Take a change of a gateway's pod and follow its signals."""
        address = pod.get("status", {}).get("podIP")
        if change is Change.DELETED or not address:
            self._gateway_pods.pop(pod["metadata"]["uid"], None)
        else:
            self._gateway_pods[pod["metadata"]["uid"]] = address
        if self.gateways is not None:
            self.gateways.follow(self._gateway_pods)

    def waiting(self, service: str) -> tuple[int, int] | None:
        """Add up the requests and prompt tokens that the gateways hold; None when no gateway tells."""
        rows = [told[service] for told in self._told() if service in told]
        return (sum(r.requests_held for r in rows), sum(r.held_prompt_tokens for r in rows)) if rows else None

    def gateways_busy(self) -> bool:
        """Say whether a gateway has told of requests that it holds or that have not ended."""
        return any(row.requests_held or row.requests_in_flight for told in self._told() for row in told.values())

    def gateway_counts(self) -> dict[str, dict[str, int]]:
        """Add up what the gateways have counted, by service."""
        added: dict[str, dict[str, int]] = {}
        for told in self._told():
            for service, row in told.items():
                mine = added.setdefault(service, {})
                for name, value in asdict(row).items():
                    if name.endswith("_total"):
                        mine[name] = mine.get(name, 0) + value
        return added

    def _told(self) -> list[Mapping[str, GatewayService]]:
        """List what each gateway last told, by service."""
        return [one.signals.services for one in self.gateways.readings.values()] if self.gateways is not None else []

    def picture(self, phase: str, total_s: float) -> Picture:
        """Draw what is known now."""
        return Picture(phase, self.now_ms() / 1000, total_s, [self._view(name) for name in self.plan.services])

    def _view(self, name: str) -> ServiceView:
        load, waiting = self.load.get(name, {}), self.waiting(name)
        return ServiceView(
            name=name,
            replicas=self.log.counts(name),
            arrivals_per_s=load.get("arrivals_per_s"),
            requests_held=waiting[0] if waiting else None,
            pending_tokens=waiting[1] if waiting else None,
            in_flight=load.get("in_flight"),
            ttft_p95_ms=load.get("ttft_p95_ms"),
            itl_p95_ms=load.get("itl_p95_ms"),
            decision=decision_in_words(self.services.get(name, {}).get("status", {})),
        )


def condition(status: dict[str, Any], kind: str) -> dict[str, str]:
    """Return one condition of a status; empty where it has none of this type."""
    return next((one for one in status.get("conditions", ()) if one["type"] == kind), {})


def decision_in_words(status: dict[str, Any]) -> str:
    """Tell the last decision: how many replicas, and the words of the stage that made it so many.

    That is the last stage that changed the number; where none did, the last that had something to say.
    """
    decision = status.get("lastDecision")
    if not decision:
        return "no decision yet"
    steps = decision.get("steps", [])
    worded = [place for place, step in enumerate(steps) if step.get("message") and step.get("reason") != UNCHANGED]
    changed = [place for place in worded if place and steps[place]["replicas"] != steps[place - 1]["replicas"]]
    said = (changed or worded)[-1:]
    return f"{decision['desired']} serving" + "".join(f": {steps[place]['message']}" for place in said)


def is_ready(stage: Stage, *, warm: bool) -> bool:
    """Say whether traffic may begin: interactive services serve, warm pools are full, nothing has moved lately."""
    for name, service in stage.services.items():
        if name not in stage.plan.services or service["spec"].get("class") == "Batch":
            continue
        status = service.get("status", {})
        if condition(status, "Ready").get("status") != "True":
            return False
        if warm and condition(status, "WarmPoolReady").get("status") != "True":
            return False
        if stage.log.counts(name)[ReplicaState.STARTING]:
            return False
    complete = set(stage.plan.services) <= set(stage.services)
    return complete and time.monotonic() - stage.changed_s >= SETTLED_S


def complaints(stage: Stage) -> list[str]:
    """Tell, a line each, what every service has and what it says of itself."""
    told = []
    for name in stage.plan.services:
        status = stage.services.get(name, {}).get("status", {})
        said = [
            f"{c['type']}={c['status']} {c['reason']}: {c.get('message', '')}" for c in status.get("conditions", ())
        ]
        told += [f"{name}: {', '.join(f'{n} {s}' for s, n in stage.log.counts(name).items()) or 'no replica'}"]
        told += [f"  {line}" for line in said] or ["  no condition: does the operator run?"]
    return told
