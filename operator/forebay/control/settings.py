"""Every setting of `forebay run`, read once from the environment; the chart sets nothing else."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Self

from forebay.wire.names import OPERATOR_PORT

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "FOREBAY_"


class SettingsError(ValueError):
    """A setting is missing or out of bounds; the message names key, bound and value."""


@dataclass(frozen=True)
class Settings:
    """What an operator process is told.

    Every field is the environment variable FOREBAY_<NAME IN CAPITALS>.
    """

    operator_namespace: str  # where the operator, its Lease and the gateways live
    identity: str  # of this process among its replicas: the pod's name
    watch_namespace: str = ""  # the one namespace whose services are driven; empty: all
    lease_name: str = "forebay"
    # A crashed leader's successor waits this long, of 15 s within which the SLO is to hold again; an API server that is
    # away for longer only makes the leader stop writing what it could not write anyway.
    lease_duration_ms: int = 10_000
    # The Azure conversation trace's burst grows fivefold within seconds: a slower tick would add to every TTFT.
    tick_ms: int = 1_000
    vllm_image: str = ""  # for services that name no image
    emulated_image: str = ""
    image_pull_policy: str = "IfNotPresent"
    service_account: str = "forebay"  # the operator's own; replicas accept orders from it only
    listen_port: int = OPERATOR_PORT  # /healthz, /readyz, /metrics
    journal_dir: Path | None = None  # None: no journal
    journal_max_mb: int = 1_024
    log_level: str = "INFO"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Read and check all settings.

        Raises
        ------
        SettingsError
            When one is missing, is not a number or is out of bounds.
        """
        keys = {f.name: PREFIX + f.name.upper() for f in fields(cls)}
        given = {name: environment[key] for name, key in keys.items() if key in environment}
        return cls(
            operator_namespace=_text(given, "operator_namespace"),
            identity=_text(given, "identity"),
            watch_namespace=given.get("watch_namespace", ""),
            lease_name=given.get("lease_name") or cls.lease_name,
            lease_duration_ms=_number(given, "lease_duration_ms", cls.lease_duration_ms, 3_000, 600_000),
            tick_ms=_number(given, "tick_ms", cls.tick_ms, 100, 60_000),
            vllm_image=given.get("vllm_image", ""),
            emulated_image=given.get("emulated_image", ""),
            image_pull_policy=_choice(given, "image_pull_policy", ("IfNotPresent", "Always", "Never")),
            service_account=given.get("service_account") or cls.service_account,
            listen_port=_number(given, "listen_port", cls.listen_port, 0, 65_535),
            journal_dir=Path(given["journal_dir"]) if given.get("journal_dir") else None,
            journal_max_mb=_number(given, "journal_max_mb", cls.journal_max_mb, 8, 1_048_576),
            log_level=_choice(given, "log_level", ("INFO", "DEBUG", "WARNING", "ERROR")),
        )

    @property
    def operator_username(self) -> str:
        """Name under which the API server knows this operator."""
        return f"system:serviceaccount:{self.operator_namespace}:{self.service_account}"


def _text(given: Mapping[str, str], name: str) -> str:
    if not given.get(name):
        raise SettingsError(f"{PREFIX}{name.upper()} must be set")
    return given[name]


def _number(given: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = given.get(name)
    if text is None or not text.strip():
        return default
    try:
        value = int(text)
    except ValueError:
        raise SettingsError(f"{PREFIX}{name.upper()} must be a whole number, not {text!r}") from None
    if not least <= value <= most:
        raise SettingsError(f"{PREFIX}{name.upper()} must be from {least} to {most}, not {value}")
    return value


def _choice(given: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    value = given.get(name) or choices[0]
    if value not in choices:
        raise SettingsError(f"{PREFIX}{name.upper()} must be one of {', '.join(choices)}, not {value!r}")
    return value
