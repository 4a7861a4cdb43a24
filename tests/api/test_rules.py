"""Each rule's Python twin; tests/e2e/test_api.py asks the API server the same table."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.api.kinds import KINDS
from forebay.api.parse import InvalidObjectError, parse
from forebay.api.rules import Violation, rules_of, violations
from forebay.api.schema import models_of
from tests.api.cases import ACCEPTED, ALLOWED_CHANGES, OUT_OF_BOUNDS, REFUSED, Case

MODELS = {kind.name: kind.model for kind in KINDS}


def found(raw: dict[str, Any], old: dict[str, Any] | None = None) -> list[Violation]:
    model = MODELS[raw["kind"]]
    before = None if old is None else model.model_validate(old)
    return list(violations(model.model_validate(raw), before))


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_refused(case: Case):
    (violation,) = found(case.object(), case.old())
    assert violation.field == case.field
    assert case.says in violation.message


@pytest.mark.parametrize(("raw", "field"), OUT_OF_BOUNDS.values(), ids=OUT_OF_BOUNDS)
def test_out_of_bounds(raw: dict[str, Any], field: str):
    with pytest.raises(InvalidObjectError) as caught:
        parse(MODELS[raw["kind"]], raw)
    assert field in {violation.field for violation in caught.value.violations}


@pytest.mark.parametrize("raw", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted(raw: dict[str, Any]):
    parse(MODELS[raw["kind"]], raw)


@pytest.mark.parametrize(("old", "new"), ALLOWED_CHANGES.values(), ids=ALLOWED_CHANGES)
def test_allowed_change(old: dict[str, Any], new: dict[str, Any]):
    assert found(new, old) == []


def test_a_broken_rule_is_an_invalid_object():
    case = REFUSED["an Interactive service may not scale to zero"]
    with pytest.raises(InvalidObjectError, match="write minReplicas 1 or more"):
        parse(MODELS["InferenceService"], case.object())


def test_every_rule_is_broken_by_a_case():
    tabled = {violation.message for case in REFUSED.values() for violation in found(case.object(), case.old())}
    for kind in KINDS:
        for model in models_of(kind.model):
            for rule in rules_of(model):
                constant = rule.message.split("%", maxsplit=1)[0]
                assert any(message.startswith(constant) for message in tabled), rule.message
