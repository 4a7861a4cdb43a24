"""Settings from the environment: defaults, and errors that say what to write."""

from __future__ import annotations

import pytest

from forebay.control.settings import Settings, SettingsError

LEAST = {"FOREBAY_OPERATOR_NAMESPACE": "forebay", "FOREBAY_IDENTITY": "forebay-operator-1"}


def test_little_must_be_set_and_service_links_are_no_settings() -> None:
    settings = Settings.from_environment(LEAST | {"FOREBAY_GATEWAY_SERVICE_HOST": "10.0.0.1"})
    assert (settings.tick_ms, settings.watch_namespace, settings.journal_dir) == (1000, "", None)
    assert settings.operator_username == "system:serviceaccount:forebay:forebay"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("FOREBAY_TICK_MS", "50", "FOREBAY_TICK_MS must be from 100 to 60000, not 50"),
        ("FOREBAY_TICK_MS", "1s", "FOREBAY_TICK_MS must be a whole number, not '1s'"),
        ("FOREBAY_LEASE_DURATION_MS", "10", "FOREBAY_LEASE_DURATION_MS must be from 3000 to 600000, not 10"),
        ("FOREBAY_IDENTITY", "", "FOREBAY_IDENTITY must be set"),
        (
            "FOREBAY_LOG_LEVEL",
            "LOUD",
            "FOREBAY_LOG_LEVEL must be one of INFO, DEBUG, WARNING, ERROR, not 'LOUD'",
        ),
    ],
)
def test_a_wrong_setting_names_key_bound_and_value(key: str, value: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_environment(LEAST | {key: value})
    assert str(caught.value) == message
