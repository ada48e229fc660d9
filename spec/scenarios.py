"""The worlds that are searched: each small enough to be exhausted, each about a few features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .admission import Admission
from .changes import Changes
from .checker import Model, Result, search
from .ownership.model import Ownership
from .ownership.state import Budget, Setup
from .parking import Parking
from .rules import Rules

STATES_MAX = 150_000
"""A scenario that has more is too large to be checked often."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """`about` says what happens in it."""

    name: str
    about: str
    model: Callable[[Rules], Model[Any]]

    def check(self, rules: Rules) -> Result:
        """Visits all of it. Raises SearchTooLarge."""
        return search(self.model(rules), STATES_MAX)


def _owned(name: str, about: str, setup: Setup) -> Scenario:
    return Scenario(name, about, lambda rules: Ownership(setup, rules))


def _kinds(*names: str) -> frozenset[str]:
    return frozenset(names)


_OWNED = [
    _owned(
        "takeover",
        "Two lanes, one fault of any kind.",
        Setup(2, 2, (0,), _kinds("suspect", "crash", "expire", "unknown", "fence"), Budget(faults=1)),
    ),
    _owned(
        "own lane",
        "Two lanes, two faults: a range goes away and back while a transaction is under way or in doubt.",
        Setup(2, 2, (0,), _kinds("suspect", "unknown"), Budget(faults=2)),
    ),
    _owned(
        "there and back",
        "Two lanes, three takeovers from a living owner; takers die half-way.",
        Setup(2, 2, (0,), _kinds("suspect"), Budget(faults=3)),
    ),
    _owned(
        "three lanes",
        "Three lanes, two takeovers from a living owner.",
        Setup(3, 3, (0,), _kinds("suspect"), Budget(faults=2)),
    ),
    _owned(
        "two lanes",
        "One process with two lanes, and another one: a range moves between the two, and away.",
        Setup(3, 3, (0,), _kinds("suspect", "fence"), Budget(faults=2), session=(0, 0, 2)),
    ),
    _owned(
        "one slot",
        "Two slots, three processes: a session ends, and a successor takes the slot of a process that lives on.",
        Setup(3, 2, (0,), _kinds("expire", "fence"), Budget(faults=1)),
    ),
    _owned(
        "restored",
        "ZooKeeper is restored from an old copy.",
        Setup(2, 2, (0,), _kinds("suspect", "restore"), Budget(faults=2)),
    ),
    _owned(
        "cancel",
        "A cancel, while the range is taken over.",
        Setup(2, 2, (0,), _kinds("suspect", "crash"), Budget(faults=1, cancels=1)),
    ),
    _owned(
        "rescan",
        "The owner reads what it has read already, and forgets; a crash.",
        Setup(2, 2, (0,), _kinds("crash"), Budget(faults=1, rescans=1)),
    ),
    _owned(
        "hints",
        "A task is created while the range is taken over; its hint may be lost, or taken by a zombie.",
        Setup(2, 2, (0,), _kinds("suspect"), Budget(faults=1, creates=1), created=frozenset({0})),
    ),
    _owned(
        "release",
        "A planned hand-over, cold; its outcome may be unknown.",
        Setup(2, 2, (0,), _kinds("suspect", "doubt", "unknown"), Budget(faults=1, releases=1)),
    ),
    _owned(
        "warm",
        "A planned hand-over with a preload, and a takeover that comes between.",
        Setup(2, 2, (0,), _kinds("suspect"), Budget(faults=1, releases=1, preloads=1)),
    ),
    _owned(
        "warm creates",
        "A planned hand-over with a preload, and tasks created meanwhile.",
        Setup(2, 2, (0, 0), _kinds(), Budget(releases=1, preloads=1, creates=1), created=frozenset({1})),
    ),
    _owned(
        "trimming",
        "Two ranges in two lanes, a takeover, and a journal that is trimmed.",
        Setup(2, 2, (0, 1), _kinds("suspect"), Budget(faults=1, trims=1), owners=(0, 1)),
    ),
    _owned(
        "trimming, warm",
        "A hand-over with a preload, whose place in the journal is trimmed.",
        Setup(2, 2, (0,), _kinds("suspect"), Budget(faults=1, releases=1, preloads=1, trims=1)),
    ),
]

_OTHERS = [
    Scenario(
        "admission",
        "A create, its hints, its late arrival, rescans and the closing of its bucket; a takeover.",
        lambda rules: Admission(rules, takeovers=1),
    ),
    Scenario(
        "cancel and move",
        "A cancel and a move of one task, beside its dispatch; two takeovers.",
        lambda rules: Changes(rules, frozenset({"cancel", "move"}), takeovers=2),
    ),
    Scenario(
        "outcome",
        "A completion and a time-out of one attempt, its retry; two takeovers.",
        lambda rules: Changes(rules, frozenset({"complete", "expire"}), takeovers=2),
    ),
    Scenario(
        "parking",
        "A task that is held, parked and dispatched from its chunk; three takeovers.",
        lambda rules: Parking(rules, takeovers=3),
    ),
]

SCENARIOS = {scenario.name: scenario for scenario in [*_OWNED, *_OTHERS]}
