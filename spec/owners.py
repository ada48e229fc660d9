"""What the models of one task share: a range that two may own, one after the other, and the journal that decides.

A takeover is one step: it fences the former owner, replays the journal and stores what that says. A zombie goes on
until it commits, and finds itself fenced.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from .checker import Step

NAMES = "AB"


class Shared(Hashable, Protocol):
    """A state of such a model, a named tuple. `lease`: whose the range is."""

    @property
    def owners(self) -> tuple[Any, Any]:
        """What each of the two knows."""
        ...

    @property
    def lease(self) -> int:
        """The number of the owner who would not be fenced."""
        ...

    @property
    def takeovers(self) -> int:
        """How many may follow."""
        ...

    def _replace(self, *args: Any, **changes: Any) -> Any: ...


State = TypeVar("State", bound=Shared)


def with_owner(state: State, number: int, owner: Any) -> State:
    """The state once one of the two knows this."""
    owners = (owner, state.owners[1]) if number == 0 else (state.owners[0], owner)
    changed: State = state._replace(owners=owners)
    return changed


def takeovers(state: State, take: Callable[[State, int], State]) -> Iterator[Step[State]]:
    """The other one takes the range over, as long as that may happen."""
    if state.takeovers:
        other = 1 - state.lease
        taken: State = state._replace(lease=other, takeovers=state.takeovers - 1)
        yield Step(f"{NAMES[other]} takes the range over", take(taken, other), True)


def committed(state: State, number: int, records: Callable[[State], State], fenced: Any) -> State:
    """What a commit of one of the two comes to. Whoever has lost the lease commits nothing, and is as `fenced`."""
    return records(state) if number == state.lease else with_owner(state, number, fenced)


def replayed(records: Sequence[Any], passed: int, store: Callable[[State, Any], State], state: State) -> State:
    """What a taker stores of the journal: all that the checkpoint has not `passed`, in its order."""
    for record in records[passed:]:
        state = store(state, record)
    return state
