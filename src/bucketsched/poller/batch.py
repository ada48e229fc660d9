"""What one transaction of a lane does."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from ..core.execution import Attempt
from ..core.journal_record import JournalRecord, Other, Section
from ..core.lateness import LateReason
from ..core.message import Message
from ..core.task import FactKind, Mark, TaskRow
from ..core.task_change import home_pointer
from ..encoding.rows import encode_body
from ..ports import HintAnswer
from .consequence import Consequence
from .limits import REASON_CHARACTERS_MAX
from .owned_range import OwnedRange


class Refused(Exception):
    """A mutation was not journaled; `answer` tells the caller why."""

    def __init__(self, answer: HintAnswer) -> None:
        super().__init__(answer.value)
        self.answer = answer


@dataclass(slots=True)
class Mutation:
    """What must be journaled of one row: a cancel, a move, an outcome. `body` of a move: the successor's, encoded, if
    it is not the row's own; of an outcome: `attempt`, encoded.

    `done` becomes the FactKind that the row is settled by, whoever settled it, or fails with Refused.
    """

    owned: OwnedRange
    ref: bytes
    kind: FactKind
    done: asyncio.Future[tuple[FactKind, int]]
    successor: TaskRow | None = None
    body: bytes = b""
    attempt: Attempt | None = None
    spawned: tuple[TaskRow, ...] = ()
    """Rows that come of it besides: notices."""

    @property
    def made(self) -> tuple[TaskRow, ...]:
        """Every row that comes of it."""
        return self.spawned if self.successor is None else (self.successor, *self.spawned)

    @property
    def size(self) -> int:
        """Bytes that it adds to the journal's record, if they are many."""
        return len(self.body) + sum(len(row.body.payload) for row in self.spawned)

    def answer(self, kind: FactKind, offset: int) -> None:
        """Tells the caller how the row is settled, and by which record (-1: by an earlier one)."""
        if not self.done.done():
            self.done.set_result((kind, offset))

    def refuse(self, answer: HintAnswer) -> None:
        """Tells the caller that nothing was changed."""
        if not self.done.done():
            self.done.set_exception(Refused(answer))


@dataclass(slots=True)
class Closing:
    """The journaled end of a bucket. `done`: True once it is committed, False if it may not be closed (yet)."""

    owned: OwnedRange
    bucket: int
    done: asyncio.Future[bool]
    size: int = 0
    """See Mutation."""

    def answer(self, closed: bool) -> None:
        """Tells the closer."""
        if not self.done.done():
            self.done.set_result(closed)


@dataclass(slots=True)
class Batch:
    """Everything of one transaction; `nonce` tells it apart from all others."""

    at_ms: int
    nonce: bytes
    sent: list[tuple[TaskRow, OwnedRange]] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    failed: list[tuple[TaskRow, OwnedRange, str]] = field(default_factory=list)
    expired: list[tuple[TaskRow, OwnedRange]] = field(default_factory=list)
    notices: dict[bytes, tuple[TaskRow, ...]] = field(default_factory=dict)
    """Rows that come of others', by the reference of these, besides those of mutations."""
    mutations: list[Mutation] = field(default_factory=list)
    closings: list[Closing] = field(default_factory=list)
    withheld: list[tuple[TaskRow, OwnedRange]] = field(default_factory=list)
    """Rows that a mutation of this batch takes away: they come back if the batch is refused."""
    latest_due_ms: int = 0
    body_bytes: int = 0
    """Of the bodies in the journal's record."""
    late: Counter[LateReason] = field(default_factory=Counter)

    def __bool__(self) -> bool:
        return bool(self.sent or self.failed or self.expired or self.mutations or self.closings)

    def record(self, lane: int) -> JournalRecord:
        """The journal's record of it."""
        sections: dict[int, Section] = {}

        def of(owned: OwnedRange) -> Section:
            return sections.setdefault(owned.range_id, Section(owned.range_id, owned.epoch))

        for row, owned in self.sent:
            of(owned).dispatched.append(row.ref)
        for row, owned, reason in self.failed:
            of(owned).others.append(Other(FactKind.FAILED, row.ref, reason=reason[:REASON_CHARACTERS_MAX]))
        for row, owned in self.expired:
            of(owned).others.append(Other(FactKind.EXPIRED, row.ref))
        for change in self.mutations:
            due = change.successor.due_ms if change.successor else 0
            of(change.owned).others.append(Other(change.kind, change.ref, new_due_ms=due, body=change.body))
        owners = {ref: owned for ref, _, owned in self.settled()} if self.notices else {}
        spawned = [(change.owned, row) for change in self.mutations for row in change.spawned]
        spawned += [(owners[ref], row) for ref, rows in self.notices.items() for row in rows]
        for owned, row in spawned:
            body = encode_body(row.body)
            of(owned).others.append(Other(FactKind.SPAWNED, row.ref, new_due_ms=row.due_ms, body=body))
        for closing in self.closings:
            of(closing.owned).closed.append(closing.bucket)
        return JournalRecord(lane, self.nonce, self.at_ms, list(sections.values()))

    def marks(self) -> list[Mark]:
        """The facts that it makes true."""
        marks = [Mark(row.ref, FactKind.DISPATCHED, self.at_ms) for row, _ in self.sent]
        marks += [
            Mark(row.ref, FactKind.FAILED, self.at_ms, reason[:REASON_CHARACTERS_MAX]) for row, _, reason in self.failed
        ]
        marks += [Mark(row.ref, FactKind.EXPIRED, self.at_ms) for row, _ in self.expired]
        for change in self.mutations:
            at_ms = change.successor.due_ms if change.successor else self.at_ms
            reason = change.attempt.reason if change.attempt and change.kind is FactKind.FAILED else ""
            marks.append(Mark(change.ref, change.kind, at_ms, reason))
        return marks

    def pointers(self) -> list[Consequence]:
        """What the home rows of moved tasks say from now on."""
        pointers = []
        for change in self.mutations:
            if change.successor is not None:
                pointer = home_pointer(change.ref, change.successor.due_ms)
                if pointer is not None:
                    made = (change.successor,)  # it may be stored alone, and names this row
                    pointers.append(Consequence(pointer, change.owned, made))
        return pointers

    def settled(self) -> list[tuple[bytes, FactKind, OwnedRange]]:
        """Each reference with what became of it, and its range."""
        return [
            *((row.ref, FactKind.DISPATCHED, owned) for row, owned in self.sent),
            *((row.ref, FactKind.FAILED, owned) for row, owned, _ in self.failed),
            *((row.ref, FactKind.EXPIRED, owned) for row, owned in self.expired),
            *((change.ref, change.kind, change.owned) for change in self.mutations),
        ]
