"""A history by task: what was asked about it, what the journals say of it, what came of it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from .model import Body, Dispatch, EntryKind, Fact, History, Message, Op, Outcome, Request


@dataclass(frozen=True, slots=True)
class Violation:
    """`kind` names the promise, as in the JSON line."""

    kind: str
    task_id: str
    text: str


class Entry(NamedTuple):
    """A fact of a journal, and when its record was appended: before its transaction was committed."""

    fact: Fact
    append_ms: int


class Standing(NamedTuple):
    """What a task was from an instant on. `body` None: nobody knows, as its create was never seen."""

    body: Body | None
    since_ms: int


class Tasks:
    """The history by task, by dispatch and by idempotency key."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.asked: dict[Op, dict[str, list[Request]]] = {op: defaultdict(list) for op in Op}
        self.keyed: dict[str, list[Request]] = defaultdict(list)
        for request in history.requests:
            if request.key:
                self.keyed[request.key].append(request)
            if request.task_id:
                self.asked[request.op][request.task_id].append(request)
        self._versions: dict[str, list[Standing]] = {}
        self._adopt()

    @property
    def creates(self) -> dict[str, list[Request]]:
        """By task."""
        return self.asked[Op.CREATE]

    @property
    def cancels(self) -> dict[str, list[Request]]:
        """By task."""
        return self.asked[Op.CANCEL]

    def _adopt(self) -> None:
        """Only its contents tell of which create with a key a task is whose id nobody was ever told."""
        unanswered: dict[Body, list[Request]] = defaultdict(list)
        for requests in self.keyed.values():
            for request in requests:
                if request.outcome is Outcome.UNKNOWN and request.body is not None:
                    unanswered[contents(request.body)].append(request)
        for task_id, messages in self.messages.items():
            if task_id not in self.creates and (found := unanswered.get(contents(messages[0].body))):
                fitting = [create for create in found if is_of(messages[0].body, created_body(create))]
                self.creates[task_id] = fitting or found

    @cached_property
    def messages(self) -> dict[str, list[Message]]:
        """By task; each record once, however often it was read."""
        places = {(message.topic, message.partition, message.offset): message for message in self.history.messages}
        found: dict[str, list[Message]] = defaultdict(list)
        for message in places.values():
            found[message.dispatch.task_id].append(message)
        return found

    @cached_property
    def by_contents(self) -> dict[Body, set[str]]:
        """The tasks that were dispatched with these contents."""
        found: dict[Body, set[str]] = defaultdict(set)
        for task_id, messages in self.messages.items():
            for message in messages:
                found[contents(message.body)].add(task_id)
        return found

    @cached_property
    def entries(self) -> dict[str, list[Entry]]:
        """The journals' facts by task."""
        found: dict[str, list[Entry]] = defaultdict(list)
        for section in self.history.journal:
            for fact in section.facts:
                found[fact.dispatch.task_id].append(Entry(fact, section.append_ms))
        return found

    def moves(self, task_id: str) -> dict[int, Entry]:
        """The moves of a task by the generation that they end."""
        return {
            entry.fact.dispatch.generation: entry
            for entry in self.entries.get(task_id, ())
            if entry.fact.kind in (EntryKind.MOVED, EntryKind.REDRIVEN)
        }

    @cached_property
    def decided(self) -> dict[tuple[EntryKind, Dispatch], Entry]:
        """The journals' facts by what they say, and of which attempt."""
        return {(entry.fact.kind, entry.fact.dispatch): entry for entries in self.entries.values() for entry in entries}

    def versions(self, task_id: str) -> list[Standing]:
        """What the task was, generation by generation, by its creates and the journals."""
        if task_id not in self._versions:
            self._versions[task_id] = self._found_versions(task_id)
        return self._versions[task_id]

    def _found_versions(self, task_id: str) -> list[Standing]:
        creates = self.creates.get(task_id, ())
        told = [create for create in creates if create.outcome is Outcome.OK]
        first_ms = min((create.start_ms for create in creates), default=0)
        found = [Standing(created_body([*told, *creates][0]) if creates else None, first_ms)]
        moves = self.moves(task_id)
        while entry := moves.get(len(found) - 1):
            found.append(Standing(entry.fact.body or found[-1].body, entry.append_ms))
        return found

    def told(self, op: Op, task_id: str, *outcomes: Outcome) -> list[Request]:
        """The requests about a task that were answered so."""
        return [request for request in self.asked[op].get(task_id, ()) if request.outcome in outcomes]

    def acknowledged(self, task_id: str) -> bool:
        """Whether a create was confirmed."""
        return bool(self.told(Op.CREATE, task_id, Outcome.OK))

    def cancelled(self, task_id: str) -> bool:
        """Whether a cancel was confirmed."""
        return bool(self.told(Op.CANCEL, task_id, Outcome.CANCELLED))

    def says(self, task_id: str, *kinds: EntryKind, by_ms: int | None = None) -> bool:
        """Whether a journal has such a fact about the task, appended by then."""
        return any(
            entry.fact.kind in kinds and (by_ms is None or entry.append_ms <= by_ms)
            for entry in self.entries.get(task_id, ())
        )


def contents(body: Body) -> Body:
    """Apart from when it is due."""
    return body._replace(due_ms=0)


def created_body(create: Request) -> Body | None:
    """What a create asks for; due at 0 where it gives a delay, and nobody was told to what it came."""
    if create.body is None or create.delay_ms is None:
        return create.body
    return create.body._replace(due_ms=create.due_ms)


def is_of(seen: Body, known: Body | None) -> bool:
    """Whether what was seen can be what is known."""
    if known is None:
        return True
    return seen == known if known.due_ms else contents(seen) == known
