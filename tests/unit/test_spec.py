"""The protocol's model: it holds with every rule kept, and every rule is needed or explained."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from spec.checker import SearchTooLarge, Step, search
from spec.rules import RULES, Rules
from spec.scenarios import SCENARIOS

pytestmark = pytest.mark.timeout(600)
"""Seconds. Three at most where nothing else runs."""

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.proof
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_reachable_state_is_as_promised(name: str) -> None:
    result = SCENARIOS[name].check(Rules())
    assert not result.violation, "\n".join([result.violation, *result.trace])
    assert result.states > 100


@pytest.mark.proof
@pytest.mark.parametrize("name", [rule.name for rule in RULES.values() if rule.scenario])
def test_without_a_rule_something_goes_wrong_or_it_is_said_why_not(name: str) -> None:
    rule = RULES[name]
    result = SCENARIOS[rule.scenario].check(Rules([name]))
    assert bool(result.violation) is not bool(rule.because), result.violation
    assert bool(result.trace) is bool(result.violation)


def test_a_rule_is_either_shown_or_explained() -> None:
    assert not [rule.name for rule in RULES.values() if not rule.scenario and not rule.because]
    assert not [rule.name for rule in RULES.values() if rule.because and len(rule.because.split()) < 12]
    assert {rule.scenario for rule in RULES.values() if rule.scenario} <= SCENARIOS.keys()


def test_a_rule_that_can_be_dropped_is_asked_for_by_a_model() -> None:
    source = "".join(path.read_text() for path in ROOT.joinpath("spec").rglob("*.py") if path.name != "rules.py")
    asked = set(re.findall(r'keeps\(\s*"([a-z0-9-]+)"\)', source))
    assert asked == {rule.name for rule in RULES.values() if rule.scenario}


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="no such rule"):
        Rules(["no-such-rule"])


# ---- the checker itself


class Counter:
    """Counts to a limit in steps of one; a fault may take two."""

    def __init__(self, limit: int, forbidden: int = -1, goal: int = 0, faults: bool = False) -> None:
        self._limit, self._forbidden, self._goal, self._faults = limit, forbidden, goal, faults

    def initial(self) -> int:
        return 0

    def steps(self, state: int) -> Iterator[Step[int]]:
        if state < self._limit:
            yield Step(f"to {state + 1}", state + 1)
        if self._faults and state + 2 <= self._limit + 2:
            yield Step(f"jumps to {state + 2}", state + 2, True)

    def violation(self, state: int) -> str:
        return "forbidden" if state == self._forbidden else ""

    def reached(self, state: int) -> bool:
        return state == self._goal

    def goal(self) -> str:
        return f"{self._goal}"


def test_a_forbidden_state_is_found_on_the_shortest_way() -> None:
    result = search(Counter(9, forbidden=4, faults=True))
    assert (result.violation, result.trace) == ("forbidden", ["jumps to 2", "jumps to 4"])


def test_a_goal_that_a_fault_makes_unreachable_is_missed() -> None:
    assert not search(Counter(5, goal=5)).violation
    result = search(Counter(5, goal=5, faults=True))
    assert "out of reach" in result.violation
    assert result.trace == ["jumps to 2", "jumps to 4", "jumps to 6", "... and nothing else follows"]


def test_nothing_may_rely_on_a_fault() -> None:
    assert search(Counter(3, goal=5, faults=True)).violation


def test_every_state_is_counted_once() -> None:
    assert search(Counter(5, goal=5)).states == 6


def test_a_search_that_grows_too_large_proves_nothing() -> None:
    with pytest.raises(SearchTooLarge):
        search(Counter(50, goal=50), states_max=20)
