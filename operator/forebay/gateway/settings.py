"""The gateway's settings: environment variables with units in their names, read once at the start."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.routing.service import Limits
from forebay.wire.names import (
    ENGINE_PORT,
    ENVOY_ADMIN_PORT,
    GATEWAY_EXT_PROC_PORT,
    GATEWAY_PORT,
    GATEWAY_SIGNALS_PORT,
    SUPERVISOR_PORT,
)
from forebay.wire.replica_config import ENV_POD_UID

if TYPE_CHECKING:
    from collections.abc import Mapping

ENV_PREFIX = "FOREBAY_GATEWAY_"
ENV_NAMESPACES = "FOREBAY_NAMESPACES"
MAX_BODY_BYTES = 32 << 20


class SettingsError(ValueError):
    """An environment variable is missing or not a number in its range."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Where everybody listens; tests that share a machine choose others."""

    gateway: int = GATEWAY_PORT
    signals: int = GATEWAY_SIGNALS_PORT
    ext_proc: int = GATEWAY_EXT_PROC_PORT
    envoy_admin: int = ENVOY_ADMIN_PORT
    engine: int = ENGINE_PORT
    supervisor: int = SUPERVISOR_PORT


@dataclass(frozen=True, slots=True)
class Settings:
    """What one gateway process is told."""

    gateway_uid: str
    namespaces: tuple[str, ...] = ()  # none: all
    directory: Path = Path("/var/run/forebay")
    start_wait_s: int = 300
    busy_wait_s: int = 60
    queue_requests_max: int = 1_000
    queue_mebibytes_max: int = 256
    drain_s: int = 600
    # Endpoints of the Kubernetes Service go away within about this long after SIGTERM; new requests still come
    # meanwhile.
    withdraw_s: int = 5
    listen: str = "0.0.0.0"  # noqa: S104 - clients and the operator come from other pods
    ports: Ports = Ports()

    @property
    def limits(self) -> Limits:
        """What the book enforces."""
        return Limits(
            queue_requests_max=self.queue_requests_max,
            queue_bytes_max=self.queue_mebibytes_max << 20,
            start_wait_ms=self.start_wait_s * 1_000,
            busy_wait_ms=self.busy_wait_s * 1_000,
        )

    @property
    def bootstrap_file(self) -> Path:
        """Envoy's configuration."""
        return self.directory / "envoy.yaml"

    @property
    def endpoints_file(self) -> Path:
        """Envoy's endpoints; alone in its directory, since Envoy watches the whole directory."""
        return self.directory / "eds" / "pool.json"

    @property
    def counters_file(self) -> Path:
        """What outlives this process within its pod."""
        return self.directory / "counters.json"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Read the environment.

        Raises
        ------
        SettingsError
            With the variable's name and what to write.
        """
        uid = environment.get(ENV_POD_UID, "")
        if not uid:
            raise SettingsError(f"{ENV_POD_UID} is empty: set it to the pod's uid (downward API: metadata.uid)")
        return cls(
            gateway_uid=uid,
            namespaces=tuple(n.strip() for n in environment.get(ENV_NAMESPACES, "").split(",") if n.strip()),
            directory=Path(environment.get(ENV_PREFIX + "DIR", "/var/run/forebay")),
            start_wait_s=_number(environment, "START_WAIT_SECONDS", 300),
            busy_wait_s=_number(environment, "BUSY_WAIT_SECONDS", 60),
            queue_requests_max=_number(environment, "QUEUE_REQUESTS", 1_000),
            # Less than one largest body would refuse a request that the body limit allows.
            queue_mebibytes_max=_number(environment, "QUEUE_MEBIBYTES", 256, least=MAX_BODY_BYTES >> 20),
            drain_s=_number(environment, "DRAIN_SECONDS", 600, least=0),
        )


def _number(environment: Mapping[str, str], name: str, default: int, least: int = 1) -> int:
    text = environment.get(ENV_PREFIX + name, "")
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value < 1 << 31:
        raise SettingsError(f"{ENV_PREFIX}{name}={text!r}: write a whole number of at least {least}")
    return value
