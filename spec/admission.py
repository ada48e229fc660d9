"""Admission: one create, its hints, its owner and the heir; loading, rescans, and the closing of its bucket.

Time is a number. The task is due at 1. Until 2 (20 s later) a create may be acknowledged without an answer, and hints
are answered from memory. A scan reaches back by 2 (30 s) from where the last one began. From 4 on the bucket is over
(its end and a minute), from 5 on it may be closed (its end and the grace). Between two steps any time may pass.

A owns the range, B may take it over at any time; A goes on without knowing, and is fenced when it commits. A takeover
is one step here (`ownership` has what it consists of). The write of the row may land at any time after it was sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .checker import Step
from .owners import NAMES, with_owner
from .rules import Rules

DUE, FREE, OVER, CLOSE = 1, 2, 4, 5
REACH = 2
UNSENT, SENT, STORED, ANSWERED, ASKED, ACKED, FAILED = (
    "unsent",
    "sent",
    "stored",
    "answered",
    "asked",
    "acknowledged",
    "failed",
)
UNKNOWN, QUEUED, SETTLED = "unknown", "queued", "settled"


class Owner(NamedTuple):
    """What one of the two knows. `row`, `successor`: of the home row, and of the one that a move has made."""

    active: bool = False
    loaded: bool = False
    passed: bool = False
    row: str = UNKNOWN
    successor: str = UNKNOWN
    scanned: int = 0
    closing: bool = False
    closed: bool = False


class State(NamedTuple):
    """`passed`: the checkpoint's low due is behind the row. `journal`: dispatch 0 and 1, move, close, as committed."""

    now: int
    client: str
    row: bool
    successor: bool
    marked: bool
    passed: bool
    journal: tuple[str, ...]
    lease: int
    owners: tuple[Owner, Owner]
    takeovers: int
    wrong: str


class Admission:
    """A `Model` for the checker."""

    def __init__(self, rules: Rules, takeovers: int) -> None:
        self._rules, self._takeovers = rules, takeovers

    def initial(self) -> State:
        """A owns the range; nothing is stored yet."""
        return State(0, UNSENT, False, False, False, False, (), 0, (Owner(True), Owner()), self._takeovers, "")

    def violation(self, state: State) -> str:
        """See checker.Model."""
        if state.wrong:
            return state.wrong
        dispatched = [fact for fact in state.journal if fact.startswith("dispatch")]
        if len(dispatched) > len(set(dispatched)):
            return "I3: it is dispatched twice"
        if len(dispatched) == 2 or ("dispatch 0" in dispatched and "move" in state.journal):
            return "I3: two generations of it live at a time"
        if state.journal[-2:] == ("close", "dispatch 0"):
            return "I10: it is dispatched from a bucket that is closed"
        if state.client == ACKED and "close" in state.journal and not {"dispatch 0", "move"} & set(state.journal):
            return "I10: its bucket is closed, and no record tells of it"
        return ""

    def goal(self) -> str:
        """See checker.Model."""
        return "I1: the dispatch of the acknowledged task"

    def reached(self, state: State) -> bool:
        """See checker.Model."""
        done = any(fact.startswith("dispatch") for fact in state.journal)
        return not state.wrong and (done or state.client in (FAILED, UNSENT))

    # ---- what can happen

    def steps(self, state: State) -> Iterator[Step[State]]:
        """See checker.Model."""
        if state.now < CLOSE:
            yield Step(f"it is {state.now + 1}", state._replace(now=state.now + 1))
        yield from self._client(state)
        for number, owner in enumerate(state.owners):
            if owner.active:
                yield from self._owner(state, number, owner)
        if state.takeovers and state.lease == 0:
            yield Step("B takes the range over; A does not know", self._take(state), True)

    def _take(self, state: State) -> State:
        """B fences A, replays, writes the rows of moves again; it will load from the checkpoint's low due on."""
        told = {"dispatch 0", "move"} & set(state.journal)
        moved = "move" in state.journal and "dispatch 1" not in state.journal
        heir = Owner(
            True,
            passed=state.passed,
            row=SETTLED if told else UNKNOWN,
            successor=QUEUED if moved else UNKNOWN,
            scanned=state.now,
            closed="close" in state.journal,
        )
        return state._replace(
            lease=1,
            owners=(state.owners[0], heir),
            takeovers=state.takeovers - 1,
            successor=state.successor or moved,
            marked=state.marked or bool(told),
        )

    # ---- the create

    def _client(self, state: State) -> Iterator[Step[State]]:
        client, keeps = state.client, self._rules.keeps
        if client == UNSENT:
            yield Step("the create sends its row", state._replace(client=SENT))
        if not state.row and client != UNSENT:
            yield Step("the row is stored", state._replace(row=True))
        if client == SENT:
            yield Step("the create is given up: unknown", state._replace(client=FAILED), True)
            if state.row:
                yield Step("the create learns that its row is stored", state._replace(client=STORED))
        if client == STORED and (state.now <= FREE or not keeps("unanswered-only-before-20s")):
            yield Step("it is acknowledged without an answer", state._replace(client=ACKED))
        if client == STORED and state.now > FREE:
            yield Step("it asks the owner for a record", state._replace(client=ASKED))
        if client == ANSWERED:
            yield Step("it is acknowledged", state._replace(client=ACKED))
        if client in (SENT, STORED) and state.now >= OVER and not keeps("no-relocation-by-itself"):
            yield Step("it writes the row to now by itself", state._replace(client=ACKED, successor=True))

    # ---- the owner

    def _owner(self, state: State, number: int, owner: Owner) -> Iterator[Step[State]]:
        who = NAMES[number]
        yield from self._reads(state, number, owner)
        hinted = state.client == STORED and owner.row == UNKNOWN and self._open(owner)
        if hinted and (state.now <= FREE or not self._rules.keeps("memory-answers-only-before-20s")):
            row = QUEUED if owner.loaded or owner.passed else UNKNOWN
            after = with_owner(state, number, owner._replace(row=row))
            yield Step(f"{who} answers its hint from memory: taken", after._replace(client=ANSWERED))
            yield Step(f"{who} takes its hint, the answer is lost", after)
        if state.client == ASKED:
            yield from self._asked(state, number, owner)
        if number == state.lease:
            yield from self._commits(state, number, owner)
            yield from self._progress(state, number, owner)
        elif owner.row == QUEUED or owner.closing:
            yield Step(f"{who} finds itself fenced", with_owner(state, number, Owner()))

    def _open(self, owner: Owner) -> bool:
        return not owner.closed and not (owner.closing and self._rules.keeps("nothing-admitted-while-closing"))

    def _pending(self, state: State, owner: Owner) -> bool:
        """A read of the row's place finds something that is new."""
        return state.row and not state.marked and owner.row == UNKNOWN

    def _reads(self, state: State, number: int, owner: Owner) -> Iterator[Step[State]]:
        who = NAMES[number]
        if not owner.loaded and not owner.closed:
            found = self._pending(state, owner) and not owner.passed
            loaded = owner._replace(loaded=True, row=QUEUED if found else owner.row)
            yield Step(f"{who} loads the bucket", with_owner(state, number, loaded))
        if owner.scanned < state.now or (self._pending(state, owner) and owner.scanned <= state.now):
            begun = state.now
            if self._rules.keeps("scan-from-the-last-success"):
                begun = min(begun, owner.scanned)
            reaches = begun - REACH <= DUE <= state.now + 1
            found = (
                self._pending(state, owner)
                and reaches
                and self._open(owner)
                and self._rules.keeps("rescan-the-present")
            )
            scanned = owner._replace(scanned=state.now, row=QUEUED if found else owner.row)
            if scanned != owner:
                yield Step(f"{who} scans around {state.now} again", with_owner(state, number, scanned))
        if state.successor and owner.successor == UNKNOWN and "dispatch 1" not in state.journal:
            queued = with_owner(state, number, owner._replace(successor=QUEUED))
            yield Step(f"{who} reads the successor", queued)

    def _asked(self, state: State, number: int, owner: Owner) -> Iterator[Step[State]]:
        """Taken is proved by a committed record only."""
        who = NAMES[number]
        by_record = self._rules.keeps("taken-by-record")
        if state.marked or owner.row == SETTLED:
            yield Step(f"{who} answers: taken", state._replace(client=ACKED))
        elif not by_record and owner.row == QUEUED:
            yield Step(f"{who} answers from memory: taken", state._replace(client=ACKED))
        elif owner.row == UNKNOWN and self._open(owner):
            yield Step(f"{who} reads the row and queues it", with_owner(state, number, owner._replace(row=QUEUED)))
        elif owner.row == UNKNOWN and not self._rules.keeps("closed-bucket-moves"):
            queued = with_owner(state, number, owner._replace(row=QUEUED))
            yield Step(f"{who} admits the row to its closed bucket: taken", queued._replace(client=ACKED))
        elif owner.row == UNKNOWN and number == state.lease:
            moved = with_owner(state, number, owner._replace(row=SETTLED, successor=QUEUED))
            yield Step(f"{who} commits the move to now", moved._replace(journal=(*state.journal, "move")))
        elif number != state.lease:
            yield Step(f"{who} finds itself fenced", with_owner(state, number, Owner()))

    def _commits(self, state: State, number: int, owner: Owner) -> Iterator[Step[State]]:
        who = NAMES[number]
        if owner.row == QUEUED and state.now >= DUE:
            done = with_owner(state, number, owner._replace(row=SETTLED))
            yield Step(f"{who} commits its dispatch", done._replace(journal=(*state.journal, "dispatch 0")))
        if owner.successor == QUEUED:
            done = with_owner(state, number, owner._replace(successor=SETTLED))
            yield Step(f"{who} commits the successor's dispatch", done._replace(journal=(*state.journal, "dispatch 1")))
        if owner.row == SETTLED and not state.marked:
            stored = state._replace(marked=True, successor=state.successor or "move" in state.journal)
            yield Step("what the record says is stored", stored)
        yield from self._closes(state, number, owner)

    def _closes(self, state: State, number: int, owner: Owner) -> Iterator[Step[State]]:
        who = NAMES[number]
        if state.now < CLOSE or not owner.loaded or owner.closed or owner.scanned < state.now:
            return  # scans are so frequent that one comes before
        if owner.closing:
            closed = with_owner(state, number, owner._replace(closing=False, closed=True))
            yield Step(f"{who} commits the bucket's close", closed._replace(journal=(*state.journal, "close")))
        elif self._pending(state, owner) and self._rules.keeps("last-read"):
            after = with_owner(state, number, owner._replace(row=QUEUED))
            if state.client == ACKED:
                after = after._replace(
                    wrong="on time: an acknowledged task is found by the last read only, minutes late"
                )
            yield Step(f"{who} reads the whole bucket: it finds the row", after)
        elif owner.row != QUEUED or not self._rules.keeps("closed-means-settled"):
            closing = with_owner(state, number, owner._replace(closing=True))
            yield Step(f"{who} reads the whole bucket: there is nothing left", closing)

    def _progress(self, state: State, number: int, owner: Owner) -> Iterator[Step[State]]:
        """The checkpoint's low due passes the row's due: whoever takes the range won't load it."""
        limit = min(state.now, owner.scanned) - REACH if self._rules.keeps("low-due-trails") else state.now
        if owner.loaded and owner.row != QUEUED and limit > DUE and not state.passed:
            yield Step(f"{'AB'[number]}'s checkpoint passes the due time", state._replace(passed=True))
