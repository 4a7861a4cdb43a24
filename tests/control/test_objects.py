"""The mirror of our kinds: events and lists in every order, and rivals over one scope."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from forebay.api.kinds import INFERENCE_SERVICE
from forebay.control.objects import Objects
from forebay.control.scope import rival

PLURAL = INFERENCE_SERVICE.plural


def service(uid: str, version: int, generation: int = 1, **meta: Any) -> dict[str, Any]:
    return {
        "metadata": {"uid": uid, "name": uid, "resourceVersion": str(version), "generation": generation} | meta,
        "spec": {},
    }


class Mirror:
    """Objects and how often they said that something changed."""

    def __init__(self) -> None:
        self.rings = 0
        self.objects = Objects(self._ring)

    def _ring(self) -> None:
        self.rings += 1

    def uids(self) -> list[str]:
        return sorted(raw["metadata"]["uid"] for raw in self.objects.of(INFERENCE_SERVICE))


@pytest.fixture
def mirror() -> Mirror:
    return Mirror()


def test_an_event_adds_and_a_deletion_removes(mirror: Mirror) -> None:
    mirror.objects.take(PLURAL, "ADDED", service("a", 1))
    assert mirror.uids() == ["a"]
    mirror.objects.take(PLURAL, "DELETED", service("a", 2))
    assert mirror.uids() == []
    assert mirror.rings == 2


def test_what_nobody_reads_is_not_kept(mirror: Mirror) -> None:
    raw = service("a", 1, managedFields=[{"manager": "m"}]) | {
        "status": {"memory": "{}", "lastDecision": {"steps": []}}
    }
    mirror.objects.take(PLURAL, "ADDED", raw)
    (kept,) = mirror.objects.of(INFERENCE_SERVICE)
    assert kept == service("a", 1) | {"status": {"memory": "{}"}}
    assert "managedFields" in raw["metadata"]


def test_a_list_finds_the_deletion_that_nobody_told(mirror: Mirror) -> None:
    mirror.objects.replace(PLURAL, [service("a", 1), service("b", 2)], "5")
    mirror.objects.replace(PLURAL, [service("b", 2)], "9")
    assert mirror.uids() == ["b"]


def test_a_list_does_not_bring_back_what_was_deleted_since(mirror: Mirror) -> None:
    mirror.objects.take(PLURAL, "DELETED", service("a", 7))
    mirror.objects.replace(PLURAL, [service("a", 1)], "5")
    assert mirror.uids() == []


def test_a_list_does_not_remove_what_was_created_since(mirror: Mirror) -> None:
    mirror.objects.take(PLURAL, "ADDED", service("a", 7))
    mirror.objects.replace(PLURAL, [], "5")
    assert mirror.uids() == ["a"]


def test_an_older_look_does_not_undo_a_newer_one(mirror: Mirror) -> None:
    mirror.objects.take(PLURAL, "MODIFIED", service("a", 7, 3))
    mirror.objects.replace(PLURAL, [service("a", 6, 2)], "6")
    assert next(iter(mirror.objects.of(INFERENCE_SERVICE)))["metadata"]["generation"] == 3


def test_a_write_of_status_is_kept_and_rings_nobody(mirror: Mirror) -> None:
    mirror.objects.take(PLURAL, "ADDED", service("a", 1))
    mirror.objects.take(PLURAL, "MODIFIED", service("a", 2) | {"status": {"replicas": 1}})
    assert mirror.rings == 1
    assert next(iter(mirror.objects.of(INFERENCE_SERVICE)))["status"] == {"replicas": 1}
    mirror.objects.take(PLURAL, "MODIFIED", service("a", 3, annotations={"forebay.dev/paused": "true"}))
    assert mirror.rings == 2


# --- rivals ----------------------------------------------------------------------------------------------------------

NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
OWN = ("mine", "forebay")


def lease(namespace: str, scope: str, *, age_s: int, silent_s: int = 1, holder: str = "x") -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": namespace,
            "name": "forebay",
            "creationTimestamp": (NOW - timedelta(seconds=age_s)).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "annotations": {"forebay.dev/scope": scope},
        },
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": 10,
            "renewTime": (NOW - timedelta(seconds=silent_s)).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }


RIVALS: dict[str, tuple[list[dict[str, Any]], str, str]] = {
    "nobody else": ([lease("mine", "*", age_s=10)], "*", ""),
    "an older one over the same services": (
        [lease("a", "*", age_s=99), lease("mine", "*", age_s=10)], "*", "a/forebay",
    ),
    "an older one, and we have no lease yet": ([lease("a", "*", age_s=1)], "*", "a/forebay"),
    "a younger one": ([lease("a", "*", age_s=1), lease("mine", "*", age_s=10)], "*", ""),
    "one over everything that holds our namespace": ([lease("a", "*", age_s=99)], "chat", "a/forebay"),
    "one over another namespace": ([lease("a", "code", age_s=99)], "chat", ""),
    "one that was removed": ([lease("a", "*", age_s=99, silent_s=31)], "*", ""),
    "one that handed over to nobody": ([lease("a", "*", age_s=99, holder="")], "*", ""),
    "of two as old as one another, the first by name": (
        [lease("a", "*", age_s=10), lease("mine", "*", age_s=10)], "*", "a/forebay",
    ),
}  # fmt: skip


@pytest.mark.parametrize("sentence", RIVALS)
def test_rival(sentence: str) -> None:
    leases, scope, expected = RIVALS[sentence]
    assert rival(leases, OWN, scope, NOW) == expected
