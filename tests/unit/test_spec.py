"""The protocol's model: it holds with every rule kept, and every rule is needed or explained."""

from __future__ import annotations

import pytest
from spec.rules import RULES, Rules
from spec.scenarios import SCENARIOS


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_reachable_state_is_as_promised(name: str) -> None:
    result = SCENARIOS[name].check(Rules())
    assert not result.violation, "\n".join([result.violation, *result.trace])
    assert result.states > 100


@pytest.mark.parametrize("name", [rule.name for rule in RULES.values() if rule.scenario])
def test_without_a_rule_something_goes_wrong(name: str) -> None:
    result = SCENARIOS[RULES[name].scenario].check(Rules([name]))
    assert result.violation
    assert result.trace


def test_a_rule_is_either_shown_or_explained() -> None:
    assert not [rule.name for rule in RULES.values() if bool(rule.scenario) is bool(rule.because)]
    assert not [rule.name for rule in RULES.values() if rule.because and len(rule.because.split()) < 8]
    assert {rule.scenario for rule in RULES.values() if rule.scenario} <= SCENARIOS.keys()


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="no such rule"):
        Rules(["no-such-rule"])
