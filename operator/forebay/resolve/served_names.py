"""Who answers to which model name: the oldest service that claims it. Operator and gateway both ask here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def names_claimed(service: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names that a raw InferenceService wants, its own first; none where it cannot be read.

    Parameters
    ----------
    service
        The object as JSON gives it; a garbled one claims nothing.
    """
    spec = service.get("spec")
    model = spec.get("model") if isinstance(spec, dict) else None
    if not isinstance(model, dict):
        return ()
    aliases = model.get("aliases")
    names = (model.get("servedName") or service["metadata"]["name"], *(aliases if isinstance(aliases, list) else ()))
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str)))


def owners_of_names(services: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return for each served name and alias the service that keeps it, as "namespace/name".

    The older service wins, as the API server's creation time says; of two made in the same second the one whose key
    sorts first. A service that is being deleted gives its names up.
    """
    owners: dict[str, str] = {}
    living = (service for service in services if not service["metadata"].get("deletionTimestamp"))
    for service in sorted(living, key=_age):
        for name in names_claimed(service):
            owners.setdefault(name, key_of(service))
    return owners


def key_of(service: Mapping[str, Any]) -> str:
    """Return "namespace/name"."""
    meta = service["metadata"]
    return f"{meta.get('namespace', '')}/{meta['name']}"


def _age(service: Mapping[str, Any]) -> tuple[str, str]:
    return str(service["metadata"].get("creationTimestamp", "")), key_of(service)
