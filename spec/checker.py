"""An explicit-state model checker: breadth first, over immutable, hashable states.

A model says where it begins, what can happen in a state, what must never be, and what must stay within reach. Every
reachable state is visited once. Two kinds of counter-example are looked for, and the shortest is given:

- a state in which something is that must never be;
- a state from which, if no further fault happens, nothing that can happen leads to the goal ("always, as long as the
  faults stop, possibly the goal": with a fair schedule that is "eventually").
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

State = TypeVar("State", bound=Hashable)


class Step(NamedTuple, Generic[State]):
    """One thing that can happen. `fault`: it need not, so nothing may rely on it."""

    action: str
    state: State
    fault: bool = False


class Model(Protocol[State]):
    """What is checked."""

    def initial(self) -> State:
        """Where it begins."""
        ...

    def steps(self, state: State) -> Iterator[Step[State]]:
        """Everything that can happen in a state."""
        ...

    def violation(self, state: State) -> str:
        """What is wrong with a state, or ""."""
        ...

    def reached(self, state: State) -> bool:
        """True where nothing is left to be done."""
        ...

    def goal(self) -> str:
        """What `reached` means, as it is said in a counter-example."""
        ...


@dataclass(slots=True)
class Result:
    """What a search has found. With `violation` there is the `trace` that leads to it."""

    states: int = 0
    steps: int = 0
    depth: int = 0
    complete: bool = True
    violation: str = ""
    trace: list[str] = field(default_factory=list)


class SearchTooLarge(Exception):
    """More states than the limit: nothing is proved."""


class Search(Generic[State]):
    """One search through one model."""

    def __init__(self, model: Model[State], states_max: int) -> None:
        self._model, self._states_max = model, states_max
        self._ids: dict[State, int] = {}
        self._states: list[State] = []
        self._parents = array("i")
        self._sources, self._targets = array("i"), array("i")
        self._steps = 0

    def run(self) -> Result:
        """Visits every reachable state. Raises SearchTooLarge."""
        enabled = gc.isenabled()
        gc.disable()  # states hold no cycles, and there are many of them
        try:
            return self._run()
        finally:
            if enabled:
                gc.enable()

    def _run(self) -> Result:
        self._add(self._model.initial(), -1)
        begin = depth = 0
        while begin < len(self._states):
            end = len(self._states)
            for number in range(begin, end):
                bad = self._expand(number)
                if bad >= 0:
                    violation = self._model.violation(self._states[bad])
                    return self._result(depth + 1, violation, self._trace(bad))
            begin, depth = end, depth + 1
        return self._liveness(depth - 1)

    def _add(self, state: State, parent: int) -> int:
        number = len(self._states)
        if number >= self._states_max:
            raise SearchTooLarge(f"more than {self._states_max} states")
        self._ids[state] = number
        self._states.append(state)
        self._parents.append(parent)
        return number

    def _expand(self, number: int) -> int:
        """Visits what follows a state; the number of a state that must not be, or -1."""
        ids, violation = self._ids, self._model.violation
        for _, state, fault in self._model.steps(self._states[number]):
            self._steps += 1
            known = ids.get(state)
            if known is None:
                known = self._add(state, number)
                if violation(state):
                    return known
            if not fault:
                self._sources.append(number)
                self._targets.append(known)
        return -1

    # ---- what must stay within reach

    def _liveness(self, depth: int) -> Result:
        """Goes back from the states in which the goal is reached, along all that is no fault."""
        good = bytearray(map(self._model.reached, self._states))
        sources, targets = self._sources, self._targets
        changed = True
        while changed:  # edges lead deeper, mostly: backwards, two or three rounds are enough
            changed = False
            for index in range(len(sources) - 1, -1, -1):
                if good[targets[index]] and not good[sources[index]]:
                    good[sources[index]] = changed = True
        stuck = good.find(0)
        if stuck < 0:
            return self._result(depth)
        violation = f"{self._model.goal()} is out of reach, whatever happens from here"
        return self._result(depth, violation, self._trace(stuck) + self._tail(stuck))

    def _tail(self, number: int) -> list[str]:
        """What goes on to happen where the goal is out of reach, until nothing new does."""
        actions: list[str] = []
        seen = {number}
        while True:
            for action, state, fault in self._model.steps(self._states[number]):
                following = self._ids[state]
                if not fault and following not in seen:
                    seen.add(following)
                    actions.append(action)
                    number = following
                    break
            else:
                return [*actions, "... and nothing else follows"]

    # ---- what is told

    def _result(self, depth: int, violation: str = "", trace: Iterable[str] = ()) -> Result:
        return Result(len(self._states), self._steps, depth, True, violation, list(trace))

    def _trace(self, number: int) -> list[str]:
        """The actions that lead to a state."""
        actions: list[str] = []
        while (parent := self._parents[number]) >= 0:
            state = self._states[number]
            actions.append(next(step.action for step in self._model.steps(self._states[parent]) if step.state == state))
            number = parent
        return actions[::-1]


def search(model: Model[State], states_max: int = 1_000_000) -> Result:
    """Visits every reachable state of the model. Raises SearchTooLarge."""
    return Search(model, states_max).run()
