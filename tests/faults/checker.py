"""Looks for whatever must not be in the history of a run. Pure: the history in, the violations out.

One function for each promise; each gives the violations that it found. The numbers are those of the invariants in
ARCHITECTURE.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from .model import Dispatch, EntryKind, Fact, History, Message, Op, Outcome, Request, Section


@dataclass(frozen=True, slots=True)
class Violation:
    """`kind` names the promise, as in the JSON line."""

    kind: str
    task_id: str
    text: str


class Tasks:
    """The history by task and by dispatch."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.creates: dict[str, list[Request]] = defaultdict(list)
        self.cancels: dict[str, list[Request]] = defaultdict(list)
        self.gets: dict[str, list[Request]] = defaultdict(list)
        by_op = {Op.CREATE: self.creates, Op.CANCEL: self.cancels, Op.GET: self.gets}
        for request in history.requests:
            by_op[request.op][request.task_id].append(request)

    @cached_property
    def messages(self) -> dict[str, list[Message]]:
        """By task; each record once, however often it was read."""
        places = {(message.topic, message.partition, message.offset): message for message in self.history.messages}
        found: dict[str, list[Message]] = defaultdict(list)
        for message in places.values():
            found[message.dispatch.task_id].append(message)
        return found

    @cached_property
    def journaled(self) -> dict[str, list[Fact]]:
        """The journals' facts by task."""
        found: dict[str, list[Fact]] = defaultdict(list)
        for section in self.history.journal:
            for fact in section.facts:
                found[fact.dispatch.task_id].append(fact)
        return found

    def told(self, requests: dict[str, list[Request]], task_id: str, *outcomes: Outcome) -> list[Request]:
        """The requests about a task that were answered so."""
        return [request for request in requests.get(task_id, ()) if request.outcome in outcomes]

    def acknowledged(self, task_id: str) -> bool:
        """Whether a create was confirmed."""
        return bool(self.told(self.creates, task_id, Outcome.OK))

    def cancelled(self, task_id: str) -> bool:
        """Whether a cancel was confirmed."""
        return bool(self.told(self.cancels, task_id, Outcome.CANCELLED))

    def says(self, task_id: str, kind: EntryKind) -> bool:
        """Whether a journal has such a fact about the task."""
        return any(fact.kind is kind for fact in self.journaled.get(task_id, ()))


def lost(tasks: Tasks) -> Iterator[Violation]:
    """I1: what was acknowledged and not cancelled is dispatched; of a worker queue, delivered too."""
    delivered = {delivery.dispatch.task_id for delivery in tasks.history.deliveries}
    for task_id, creates in tasks.creates.items():
        if not tasks.acknowledged(task_id):
            continue
        if tasks.cancels.get(task_id) and tasks.says(task_id, EntryKind.CANCELLED):
            continue
        if tasks.cancelled(task_id):
            continue
        if not tasks.messages.get(task_id):
            facts = [fact.kind.value for fact in tasks.journaled.get(task_id, ())]
            yield Violation("lost", task_id, f"acknowledged, never dispatched; journaled: {facts}")
        elif creates[0].queue in tasks.history.worker_queues and task_id not in delivered:
            yield Violation("lost", task_id, "dispatched to a worker queue, never delivered")


def early(tasks: Tasks) -> Iterator[Violation]:
    """I2: nothing is visible, no delivery begins, before due."""
    for messages in tasks.messages.values():
        for message in messages:
            at_ms = message.append_ms if message.seen_ms is None else message.seen_ms
            if at_ms < message.due_ms:
                text = f"visible {message.due_ms - at_ms} ms before it was due"
                yield Violation("early", message.dispatch.task_id, text)
    for delivery in tasks.history.deliveries:
        if delivery.began_ms < delivery.due_ms:
            text = f"delivered {delivery.due_ms - delivery.began_ms} ms before it was due"
            yield Violation("early", delivery.dispatch.task_id, text)


def duplicate_commits(tasks: Tasks) -> Iterator[Violation]:
    """I3: one committed dispatch per (task, generation, attempt), and one generation of a task.

    (Updates and retries will make further generations and attempts lawful: to be told from the requests here.)
    """
    for task_id, messages in tasks.messages.items():
        if len(messages) > 1:
            where = [(m.topic, m.partition, m.offset, m.dispatch.generation, m.dispatch.attempt) for m in messages]
            yield Violation("duplicate_commits", task_id, f"committed {len(messages)} times: {where}")


def cancel_violations(tasks: Tasks) -> Iterator[Violation]:
    """I4: what was confirmed as cancelled is never dispatched; "too late" means that it was."""
    for task_id in tasks.cancels:
        dispatched = bool(tasks.messages.get(task_id))
        if tasks.cancelled(task_id) and dispatched:
            yield Violation("cancel_violations", task_id, "confirmed as cancelled, and dispatched")
        if tasks.cancelled(task_id) and not tasks.says(task_id, EntryKind.CANCELLED):
            yield Violation("cancel_violations", task_id, "confirmed as cancelled, not journaled")
        if tasks.told(tasks.cancels, task_id, Outcome.TOO_LATE) and not dispatched:
            yield Violation("cancel_violations", task_id, "a cancel was told that it was too late; never dispatched")
        if tasks.told(tasks.cancels, task_id, Outcome.FAILED) and not tasks.says(task_id, EntryKind.FAILED):
            yield Violation("cancel_violations", task_id, "a cancel was told that the task has failed; it has not")
    for task_id in tasks.journaled:
        if tasks.says(task_id, EntryKind.CANCELLED) and not tasks.cancels.get(task_id):
            yield Violation("cancel_violations", task_id, "journaled as cancelled; nobody asked for it")


def rejected_fired(tasks: Tasks) -> Iterator[Violation]:
    """I8: a create that was rejected never fires, nor does a task that nobody created."""
    for task_id in tasks.messages:
        creates = tasks.creates.get(task_id)
        if creates is None:
            yield Violation("rejected_fired", task_id, "dispatched; nobody created it")
        elif all(create.outcome is Outcome.REJECTED for create in creates):
            yield Violation("rejected_fired", task_id, "rejected, and dispatched")


def journal_mismatches(tasks: Tasks) -> Iterator[Violation]:
    """I5: a message is committed exactly where the journal has its record."""
    messages = Counter(message.dispatch for messages in tasks.messages.values() for message in messages)
    journaled = Counter(
        fact.dispatch for facts in tasks.journaled.values() for fact in facts if fact.kind is EntryKind.DISPATCHED
    )
    for dispatch in messages - journaled:
        yield Violation("journal_mismatches", dispatch.task_id, f"committed, not journaled: {dispatch}")
    for dispatch in journaled - messages:
        yield Violation("journal_mismatches", dispatch.task_id, f"journaled, not committed: {dispatch}")


def epoch_violations(tasks: Tasks) -> Iterator[Violation]:
    """I6: the epochs of a range never decrease, and one epoch belongs to one lane.

    A record under an epoch is appended after every record of a lower one that was ever committed: those were fenced
    before the higher epoch's first. So the order of the appends shows it; within a millisecond it is not known.
    """
    by_range: dict[int, list[Section]] = defaultdict(list)
    for section in tasks.history.journal:
        by_range[section.range_id].append(section)
    for range_id, sections in by_range.items():
        lanes: dict[int, set[int]] = defaultdict(set)
        first_ms: dict[int, int] = {}
        for section in sections:
            lanes[section.epoch].add(section.partition)
            first_ms[section.epoch] = min(section.append_ms, first_ms.get(section.epoch, section.append_ms))
        for epoch, used in lanes.items():
            if len(used) > 1:
                yield Violation("epoch_violations", "", f"range {range_id}, epoch {epoch} in lanes {sorted(used)}")
        for section in sections:
            higher = [epoch for epoch, at_ms in first_ms.items() if epoch > section.epoch and at_ms < section.append_ms]
            if higher:
                text = f"range {range_id}: epoch {section.epoch} in lane {section.partition} at {section.offset} after"
                yield Violation("epoch_violations", "", f"{text} epoch {max(higher)}")


def unsettled_rows(tasks: Tasks) -> Iterator[Violation]:
    """I10: of a closed bucket every row is journaled; and no fact stands beside a row that the journal does not know.

    A row of which only unanswered creates tell may have been written into a bucket that was closed already: it was
    never acknowledged, so nobody has to look at it.
    """
    closed = {(section.range_id, bucket) for section in tasks.history.journal for bucket in section.closed}
    journaled = {(fact.kind, fact.dispatch) for facts in tasks.journaled.values() for fact in facts}
    settled = {dispatch for _, dispatch in journaled}
    for row in tasks.history.rows:
        task_id = row.dispatch.task_id
        if not row.has_body:
            yield Violation("unsettled_rows", task_id, f"facts without a row: {sorted(row.facts)} of {row.dispatch}")
        elif (row.range_id, row.bucket) in closed and row.dispatch not in settled and tasks.acknowledged(task_id):
            yield Violation("unsettled_rows", task_id, f"bucket {row.bucket} is closed, {row.dispatch} not journaled")
        for kind in sorted(row.facts):
            if (kind, row.dispatch) not in journaled:
                yield Violation("unsettled_rows", task_id, f"stored as {kind}, not journaled: {row.dispatch}")


def changed_bodies(tasks: Tasks) -> Iterator[Violation]:
    """I11: body and namespace arrive unchanged."""
    arrived: list[tuple[Dispatch, str]] = [
        *((message.dispatch, message.digest) for messages in tasks.messages.values() for message in messages),
        *((delivery.dispatch, delivery.digest) for delivery in tasks.history.deliveries),
    ]
    for dispatch, digest in arrived:
        creates = tasks.creates.get(dispatch.task_id)
        if creates and digest not in {create.digest for create in creates}:
            yield Violation("changed_bodies", dispatch.task_id, "what arrived is not what was created")


def read_violations(tasks: Tasks) -> Iterator[Violation]:
    """What a client reads fits what it was told before."""
    for requests in (tasks.gets, tasks.cancels):
        for task_id, asked in requests.items():
            confirmed = [
                create.end_ms for create in tasks.told(tasks.creates, task_id, Outcome.OK) if create.end_ms is not None
            ]
            for request in asked:
                if request.outcome is Outcome.NOT_FOUND and any(at_ms < request.start_ms for at_ms in confirmed):
                    yield Violation("read_violations", task_id, f"acknowledged, then {request.op} did not find it")
    for task_id in tasks.gets:
        if tasks.told(tasks.gets, task_id, Outcome.DISPATCHED) and not tasks.messages.get(task_id):
            yield Violation("read_violations", task_id, "read as dispatched, never dispatched")
        if tasks.told(tasks.gets, task_id, Outcome.CANCELLED) and not tasks.says(task_id, EntryKind.CANCELLED):
            yield Violation("read_violations", task_id, "read as cancelled, not journaled as such")


def fsck_differences(tasks: Tasks) -> Iterator[Violation]:
    """The product's own comparison of rows and journal (I10) finds nothing, either.

    It can't know what was acknowledged; see `unsettled_rows`.
    """
    for task_id, text in tasks.history.differences:
        if tasks.acknowledged(task_id):
            yield Violation("fsck_differences", task_id, text)


CHECKS: tuple[Callable[[Tasks], Iterator[Violation]], ...] = (
    lost,
    early,
    duplicate_commits,
    cancel_violations,
    rejected_fired,
    journal_mismatches,
    epoch_violations,
    unsettled_rows,
    changed_bodies,
    read_violations,
    fsck_differences,
)


def check(history: History) -> list[Violation]:
    """All violations of a run, by promise."""
    tasks = Tasks(history)
    return [violation for find in CHECKS for violation in find(tasks)]
