"""From objects as users wrote them to the columns that core judges: the only translator.

Nothing here raises on a user's mistake. A service that cannot run as specified keeps its row, is marked `blocked` and
carries the problems that say what to change; no other service is touched by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forebay.api.inference_service import InferenceService
from forebay.api.parse import InvalidObjectError, parse
from forebay.resolve.columns import columns
from forebay.resolve.references import Pool, read_policy, read_pool
from forebay.resolve.served_names import key_of, names_claimed, owners_of_names
from forebay.resolve.service import Service, World, resolve_service, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from forebay.core.fleet import FleetSpec
    from forebay.resolve.defaults import ReplicaDefaults

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Made:
    """A resolved service, and what of it and of others it was made of beside its spec."""

    of: tuple[object, ...]
    service: Service


@dataclass(frozen=True, slots=True)
class Fleet:
    """The specification of everything; services and pools are in the order of the rows of `spec`."""

    spec: FleetSpec
    services: tuple[Service, ...]
    pools: tuple[Pool, ...]


class Resolver:
    """Translates the fleet; remembers what it made, since most services do not change between two looks."""

    def __init__(self, defaults: ReplicaDefaults) -> None:
        self._defaults = defaults
        self._parsed: dict[tuple[str, int], InferenceService | InvalidObjectError] = {}
        self._around: tuple[object, ...] = ()  # what all services were resolved within
        self._resolved: dict[tuple[str, int], _Made] = {}

    def resolve(
        self,
        services: Iterable[Object],
        policies: Iterable[Object],
        pools: Iterable[Object],
        namespaces: Mapping[str, Mapping[str, str]],
    ) -> Fleet:
        """Translate the whole fleet.

        Parameters
        ----------
        services, policies, pools
            InferenceServices, SLOPolicies and GPUPools as JSON gives them, in any order. Services that are being
            deleted are left out.
        namespaces
            Labels of namespaces by name; one that is missing has only its name's label.

        Returns
        -------
        Fleet
            One row a service and a pool, sorted; equal inputs give equal rows.
        """
        living = sorted((s for s in services if not s["metadata"].get("deletionTimestamp")), key=key_of)
        world = World(
            policies={policy["metadata"]["name"]: read_policy(policy) for policy in policies},
            pools={pool["metadata"]["name"]: read_pool(pool) for pool in pools},
            namespaces=namespaces,
            owners=owners_of_names(living),
            defaults=self._defaults,
        )
        self._parse(living)
        resolved = self._resolve(living, world)
        named = [pool for pool in world.pools.values() if isinstance(pool, Pool)]
        every = {pool.name: pool for pool in (*named, *(service.pool for service in resolved))}
        listed = tuple(every[name] for name in sorted(every))
        rows = {pool.name: row for row, pool in enumerate(listed)}
        spec = columns(
            [service.key for service in resolved],
            [service.row(rows[service.pool.name]) for service in resolved],
            [pool.name for pool in listed],
            [pool.gpus_max for pool in listed],
        )
        return Fleet(spec, resolved, listed)

    def _parse(self, living: list[Object]) -> None:
        before = self._parsed
        self._parsed = {}
        for raw in living:
            version = _version(raw)
            self._parsed[version] = before[version] if version in before else _parsed(raw)

    def _resolve(self, living: list[Object], world: World) -> tuple[Service, ...]:
        around = (world.policies, world.pools, world.namespaces)
        before = self._resolved if around == self._around else {}
        self._around, self._resolved = around, {}
        for raw in living:
            version = _version(raw)
            owners = [world.owners.get(name) for name in names_claimed(raw)]
            of = (raw["metadata"].get("annotations"), owners)
            made = before.get(version)
            if made is None or made.of != of:
                made = _Made(of, self._one(raw, world))
            self._resolved[version] = made
        return tuple(made.service for made in self._resolved.values())

    def _one(self, raw: Object, world: World) -> Service:
        parsed = self._parsed[_version(raw)]
        return (
            unreadable(raw, parsed) if isinstance(parsed, InvalidObjectError) else resolve_service(raw, parsed, world)
        )


def _version(raw: Object) -> tuple[str, int]:
    """Name one version of one spec; writes of status leave the generation as it is."""
    return raw["metadata"].get("uid", key_of(raw)), raw["metadata"].get("generation", 0)


def _parsed(raw: Object) -> InferenceService | InvalidObjectError:
    try:
        return parse(InferenceService, raw)
    except InvalidObjectError as error:
        return error
