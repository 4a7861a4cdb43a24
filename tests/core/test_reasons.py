"""The catalogue of reasons is complete, and its words can be told."""

from __future__ import annotations

import re

import numpy as np
import pytest

from forebay.core.fleet import Mode
from forebay.core.reasons import CONDITION_TYPES, Condition, Reason, spell
from forebay.core.step import step
from forebay.core.units import UNKNOWN
from forebay.core.wordings import WORDINGS, wording
from tests.core import build


def test_every_reason_has_its_words_and_every_condition_its_name() -> None:
    assert set(WORDINGS) == set(Reason)
    assert set(CONDITION_TYPES) == set(Condition)


def test_names_are_camel_case_and_used_once() -> None:
    names = [words.name for words in WORDINGS.values()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Z][A-Za-z0-9]+", name) for name in names)


@pytest.mark.parametrize("reason", Reason)
def test_words_fit_where_they_are_told(reason: Reason) -> None:
    words = wording(reason)
    said = words.say(dict.fromkeys(words.inputs, 10**9))
    assert "{" not in said
    assert len(said) <= 256  # lastDecision.steps[].message
    assert len(words.next_step) <= 256
    assert not said.endswith(".")
    assert words.condition_type == CONDITION_TYPES[words.condition]


def test_what_is_not_known_is_said_to_be_unknown() -> None:
    assert wording(Reason.REPLICAS_STARTING).say({"starting": UNKNOWN}) == "unknown replicas are starting"
    assert wording(Reason.REPLICAS_STARTING).say({}) == "unknown replicas are starting"
    assert wording(Reason.REPLICAS_STARTING).say({"starting": 0, "more": 1}) == "0 replicas are starting"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("need_milli", 1159, "1.15"),
        ("arrivals_milli_per_s", 40, "0.04"),
        ("attained_permille", 987, "98.7 %"),
        ("step_us", 26_450, "26.4 ms"),
        ("lead_cold_ms", 113_416, "113.4 s"),
        ("held", 12, "12"),
        ("held", UNKNOWN, "unknown"),
    ],
)
def test_numbers_are_spelled_by_their_unit(name: str, value: int, said: str) -> None:
    assert spell(name, value) == said


def test_every_stage_gives_the_numbers_that_its_reasons_tell() -> None:
    told: dict[Reason, set[str]] = {}
    for service, replicas in (
        ({}, [{"requests_running": 8, "requests_waiting": 90}]),
        ({"mode": Mode.MANUAL, "replicas_manual": 2}, [{}, {}, {}, {}]),
        ({"batch_class": True, "replicas_min": 0, "idle_ms": 0}, [{}]),
        ({"replicas_max": 1}, [{"requests_running": 8, "requests_waiting": 90}]),
    ):
        spec = build.fleet(service, gpus_max=2)
        memory = build.settled(spec, 4, 1)
        for tick in range(3):
            memory, decisions = step(spec, memory, build.snapshot(tick * 1000, replicas))
            for verdict in decisions.decision(0).steps:
                told.setdefault(verdict.reason, {name for name, _ in verdict.inputs})
    assert len(told) > 8
    for reason, names in told.items():
        assert set(wording(reason).inputs) <= names, reason


def test_reasons_in_columns_are_known_numbers() -> None:
    spec = build.fleet({}, {})
    _, decisions = step(spec, build.settled(spec, 1), build.snapshot(0, []))
    assert set(np.unique(decisions.reason).tolist()) <= {int(reason) for reason in Reason}
