"""Parking: a task that is due and held, moved from its row to a backlog chunk so that its bucket can close.

A commits "parked"; then the chunk is written, then the row's fact. From then on it is dispatched from the chunk, whose
cursor, stored lazily, says how far. A takeover is one step here: fence, replay from the checkpoint, which passes only
what is stored, then load rows and chunks. A zombie goes on until it commits, and finds itself fenced.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .checker import Step
from .owners import NAMES, committed, replayed, takeovers, with_owner
from .rules import Rules

PARK, FROM_ROW, FROM_CHUNK = "parked", "dispatched from its row", "dispatched from its chunk"


class Owner(NamedTuple):
    """What one of the two knows. `row`, `chunk`: it would dispatch the task from there."""

    active: bool = False
    row: bool = False
    chunk: bool = False


class State(NamedTuple):
    """`chunk`, `fact`, `cursor`: the chunk, the row's fact, and a cursor behind the task are stored.

    `unwritten`: what the owner has committed and not yet stored, in its order; `checkpoint`: how much of the journal a
    taker need not read.
    """

    held: bool
    journal: tuple[str, ...]
    chunk: bool
    fact: bool
    cursor: bool
    checkpoint: int
    unwritten: tuple[str, ...]
    owners: tuple[Owner, Owner]
    lease: int
    takeovers: int


class Parking:
    """A `Model` for the checker."""

    def __init__(self, rules: Rules, takeovers: int) -> None:
        self._rules, self._takeovers = rules, takeovers

    def initial(self) -> State:
        """A has loaded the row; its queue is paused."""
        owners = (Owner(True, row=True), Owner())
        return State(True, (), False, False, False, 0, (), owners, 0, self._takeovers)

    def violation(self, state: State) -> str:
        """See checker.Model."""
        if sum(record != PARK for record in state.journal) > 1:
            return "I3: it is dispatched twice"
        return ""

    def goal(self) -> str:
        """See checker.Model."""
        return "I1: its dispatch, once the queue goes on"

    def reached(self, state: State) -> bool:
        """See checker.Model."""
        return any(record != PARK for record in state.journal)

    # ---- what can happen

    def steps(self, state: State) -> Iterator[Step[State]]:
        """See checker.Model."""
        yield Step(f"the queue {'goes on' if state.held else 'is paused'}", state._replace(held=not state.held))
        for number, owner in enumerate(state.owners):
            if owner.active:
                yield from self._owner(state, number, owner)
        yield from self._stores(state)
        yield from takeovers(state, self._take)

    def _owner(self, state: State, number: int, owner: Owner) -> Iterator[Step[State]]:
        who = NAMES[number]
        if state.held and owner.row:
            if self._rules.keeps("park-through-journal"):
                kept = owner.row and not self._rules.keeps("parked-row-is-done")
                yield Step(f"{who} commits: {PARK}", self._commit(state, number, PARK, Owner(True, kept, True)))
            else:
                written = with_owner(state, number, Owner(True, chunk=True))._replace(chunk=True, fact=True)
                yield Step(f"{who} writes the chunk and the row's fact, without a record", written)
        if not state.held and owner.row:
            done = self._commit(state, number, FROM_ROW, owner._replace(row=False))
            yield Step(f"{who} commits: {FROM_ROW}", done)
        if not state.held and owner.chunk:
            done = self._commit(state, number, FROM_CHUNK, owner._replace(chunk=False))
            yield Step(f"{who} commits: {FROM_CHUNK}", done)
            if not self._rules.keeps("cursor-behind-journal") and not state.cursor:
                yield Step(f"{who} stores the chunk's cursor ahead of its dispatch", state._replace(cursor=True))

    def _commit(self, state: State, number: int, record: str, after: Owner) -> State:
        return committed(state, number, lambda held: self._recorded(held, number, record, after), Owner())

    def _recorded(self, state: State, number: int, record: str, after: Owner) -> State:
        state = state._replace(journal=(*state.journal, record), unwritten=(*state.unwritten, record))
        return with_owner(state, number, after)

    # ---- the store

    def _write(self, state: State, record: str) -> State:
        if record == PARK:
            return state._replace(chunk=True, fact=True)
        return state._replace(fact=True) if record == FROM_ROW else state._replace(cursor=True)

    def _stored(self, state: State, record: str) -> bool:
        """What a record asks of the store is there."""
        if record == PARK:
            return state.chunk and state.fact
        return state.fact if record == FROM_ROW else state.cursor

    def _stores(self, state: State) -> Iterator[Step[State]]:
        if state.unwritten:
            record = state.unwritten[0]
            if record == PARK and not state.chunk:
                yield Step("the chunk is stored", state._replace(chunk=True))
            else:
                stored = self._write(state, record)._replace(unwritten=state.unwritten[1:])
                yield Step(f"that it is {record} is stored", stored)
        if state.checkpoint < len(state.journal):
            record = state.journal[state.checkpoint]
            if self._stored(state, record) or not self._rules.keeps("checkpoint-behind-chunks"):
                yield Step(f"the checkpoint passes: {record}", state._replace(checkpoint=state.checkpoint + 1))

    def _take(self, state: State, taker: int) -> State:
        """Replays, stores what the journal says; then loads the row and the chunk, as they are stored."""
        state = replayed(state.journal, state.checkpoint, self._store_again, state._replace(unwritten=()))
        return with_owner(state, taker, Owner(True, not state.fact, state.chunk and not state.cursor))

    def _store_again(self, state: State, record: str) -> State:
        if record == PARK and not self._rules.keeps("replay-writes-chunks"):
            return state._replace(fact=True)
        if record == FROM_CHUNK and not self._rules.keeps("replay-moves-cursors"):
            return state
        return self._write(state, record)
