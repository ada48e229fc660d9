"""Looks for whatever must not be in the history of a run. Pure: the history in, the violations out.

One function for each promise; each gives the violations that it found. The numbers are those of the invariants in
ARCHITECTURE.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from .chain_checks import DECIDES, generation_violations
from .key_checks import key_violations
from .model import Body, Dispatch, EntryKind, History, Op, Outcome, Request, Section
from .tasks import Tasks, Violation, is_of
from .update_checks import update_violations

RETRY_LATE_MS = 60_000
WAITED = tuple(kind for kind, state in DECIDES.items() if state == "waiting")
SHOWN_AS = {
    EntryKind.MOVED: (EntryKind.MOVED, EntryKind.RETRIED, EntryKind.REDRIVEN),
    EntryKind.FAILED: (EntryKind.FAILED, EntryKind.ATTEMPT_FAILED),
    EntryKind.EXPIRED: (EntryKind.EXPIRED, EntryKind.ATTEMPT_EXPIRED),
}
"""What a fact beside a row may stand for, where that is not one thing."""
FURTHER = (EntryKind.RETRIED, EntryKind.REDRIVEN)
"""What is followed by another dispatch."""


def lost(tasks: Tasks) -> Iterator[Violation]:
    """I1: what was acknowledged and not cancelled is dispatched; of a worker queue, delivered too. What is to be tried
    again is, unless it is due when nobody looks any more.
    """
    delivered = {delivery.dispatch.task_id for delivery in tasks.history.deliveries}
    for task_id, creates in tasks.creates.items():
        if not tasks.acknowledged(task_id):
            continue
        if tasks.cancels.get(task_id) and tasks.says(task_id, EntryKind.CANCELLED):
            continue
        if tasks.cancelled(task_id):
            continue
        if not tasks.messages.get(task_id):
            facts = [entry.fact.kind.value for entry in tasks.entries.get(task_id, ())]
            yield Violation("lost", task_id, f"acknowledged, never dispatched; journaled: {facts}")
        elif creates[0].queue in tasks.history.worker_queues and task_id not in delivered:
            yield Violation("lost", task_id, "dispatched to a worker queue, never delivered")
    last_ms = max((section.append_ms for section in tasks.history.journal), default=0)
    for (kind, dispatch), entry in tasks.decided.items():
        again = dispatch._replace(attempt=dispatch.attempt + 1)
        if (
            kind is EntryKind.RETRIED
            and entry.fact.next_due_ms < last_ms - RETRY_LATE_MS
            and not _settled(tasks, again)
        ):
            yield Violation("lost", dispatch.task_id, f"failed, due again at {entry.fact.next_due_ms}, and never tried")


def _settled(tasks: Tasks, dispatch: Dispatch) -> bool:
    return any((kind, dispatch) in tasks.decided for kind in WAITED)


def early(tasks: Tasks) -> Iterator[Violation]:
    """I2: nothing is visible, no delivery begins, before due: as the message says, and as was asked for at last."""
    for messages in tasks.messages.values():
        for message in messages:
            at_ms = message.append_ms if message.seen_ms is None else message.seen_ms
            if early_ms := _early_ms(tasks, message.dispatch, message.body, at_ms):
                yield Violation("early", message.dispatch.task_id, f"visible {early_ms} ms before it was due")
    for delivery in tasks.history.deliveries:
        if early_ms := _early_ms(tasks, delivery.dispatch, delivery.body, delivery.began_ms):
            yield Violation("early", delivery.dispatch.task_id, f"delivered {early_ms} ms before it was due")
    for (kind, dispatch), entry in tasks.decided.items():
        if kind is EntryKind.DISPATCHED and entry.append_ms < entry.fact.due_ms:
            text = f"dispatched {entry.fact.due_ms - entry.append_ms} ms before its row was due"
            yield Violation("early", dispatch.task_id, text)


def _early_ms(tasks: Tasks, dispatch: Dispatch, body: Body, at_ms: int) -> int:
    due_ms = body.due_ms
    if known := _known_body(tasks, dispatch):
        due_ms = max(due_ms, known.due_ms)
    return max(0, due_ms - at_ms)


def _known_body(tasks: Tasks, dispatch: Dispatch) -> Body | None:
    """What the task was in this generation."""
    versions = tasks.versions(dispatch.task_id)
    return versions[dispatch.generation].body if dispatch.generation < len(versions) else None


def duplicate_commits(tasks: Tasks) -> Iterator[Violation]:
    """I3: one committed dispatch per (task, generation, attempt), and several of a task only where one has failed."""
    for task_id, messages in tasks.messages.items():
        tries = sum(1 for entry in tasks.entries.get(task_id, ()) if entry.fact.kind in FURTHER)
        if len(messages) > 1 + tries or len({message.dispatch for message in messages}) < len(messages):
            where = [(m.topic, m.partition, m.offset, m.dispatch.generation, m.dispatch.attempt) for m in messages]
            yield Violation("duplicate_commits", task_id, f"committed {len(messages)} times: {where}")


def cancel_violations(tasks: Tasks) -> Iterator[Violation]:
    """I4: what was confirmed as cancelled is never dispatched; "too late" means that it was."""
    for task_id in tasks.cancels:
        dispatched = bool(tasks.messages.get(task_id))
        if tasks.cancelled(task_id) and _goes_on(tasks, task_id):
            yield Violation("cancel_violations", task_id, "confirmed as cancelled, and dispatched")
        if tasks.cancelled(task_id) and not tasks.says(task_id, EntryKind.CANCELLED):
            yield Violation("cancel_violations", task_id, "confirmed as cancelled, not journaled")
        if tasks.told(Op.CANCEL, task_id, Outcome.TOO_LATE) and not dispatched:
            yield Violation("cancel_violations", task_id, "a cancel was told that it was too late; never dispatched")
        if tasks.told(Op.CANCEL, task_id, Outcome.FAILED) and not tasks.says(
            task_id, EntryKind.FAILED, EntryKind.ATTEMPT_FAILED
        ):
            yield Violation("cancel_violations", task_id, "a cancel was told that the task has failed; it has not")
    for task_id in tasks.entries:
        if tasks.says(task_id, EntryKind.CANCELLED) and not tasks.cancels.get(task_id):
            yield Violation("cancel_violations", task_id, "journaled as cancelled; nobody asked for it")


def _goes_on(tasks: Tasks, task_id: str) -> bool:
    """Whether it is dispatched where it was cancelled, or later; what has failed before may have been."""
    rows = [entry.fact.dispatch for entry in tasks.entries.get(task_id, ()) if entry.fact.kind is EntryKind.CANCELLED]
    return any(not rows or message.dispatch >= min(rows) for message in tasks.messages.get(task_id, ()))


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
        entry.fact.dispatch
        for entries in tasks.entries.values()
        for entry in entries
        if entry.fact.kind is EntryKind.DISPATCHED
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
    settled = {dispatch for _, dispatch in tasks.decided}
    for row in tasks.history.rows:
        task_id = row.dispatch.task_id
        if not row.has_body:
            yield Violation("unsettled_rows", task_id, f"facts without a row: {sorted(row.facts)} of {row.dispatch}")
        elif (row.range_id, row.bucket) in closed and row.dispatch not in settled and tasks.acknowledged(task_id):
            yield Violation("unsettled_rows", task_id, f"bucket {row.bucket} is closed, {row.dispatch} not journaled")
        for kind in sorted(row.facts):
            if not any((shown, row.dispatch) in tasks.decided for shown in SHOWN_AS.get(kind, (kind,))):
                yield Violation("unsettled_rows", task_id, f"stored as {kind}, not journaled: {row.dispatch}")


def changed_bodies(tasks: Tasks) -> Iterator[Violation]:
    """I11: body, namespace and due time arrive as they were asked for at last."""
    arrived: list[tuple[Dispatch, Body]] = [
        *((message.dispatch, message.body) for messages in tasks.messages.values() for message in messages),
        *((delivery.dispatch, delivery.body) for delivery in tasks.history.deliveries),
    ]
    for dispatch, body in arrived:
        known = _known_body(tasks, dispatch)
        if not is_of(body, known):
            yield Violation(
                "changed_bodies", dispatch.task_id, f"what arrived is not what was asked for: {body}, {known}"
            )


def read_violations(tasks: Tasks) -> Iterator[Violation]:
    """What a client reads fits what it was told before, and was so."""
    for op in (Op.GET, Op.CANCEL, Op.UPDATE, Op.RUN_NOW):
        for task_id, asked in tasks.asked[op].items():
            confirmed = [create.end_ms for create in tasks.told(Op.CREATE, task_id, Outcome.OK) if create.end_ms]
            for request in asked:
                if request.outcome is Outcome.NOT_FOUND and any(at_ms < request.start_ms for at_ms in confirmed):
                    yield Violation("read_violations", task_id, f"acknowledged, then {request.op} did not find it")
    for task_id, reads in tasks.asked[Op.GET].items():
        if tasks.told(Op.GET, task_id, Outcome.DISPATCHED) and not tasks.messages.get(task_id):
            yield Violation("read_violations", task_id, "read as dispatched, never dispatched")
        if tasks.told(Op.GET, task_id, Outcome.CANCELLED) and not tasks.says(task_id, EntryKind.CANCELLED):
            yield Violation("read_violations", task_id, "read as cancelled, not journaled as such")
        for read in reads:
            if read.version and not _was(tasks, read):
                yield Violation("read_violations", task_id, f"read as it had not been by then: {read.version}")


def _was(tasks: Tasks, read: Request) -> bool:
    assert read.version is not None
    generation, body = read.version
    versions = tasks.versions(read.task_id)
    if generation >= len(versions):
        return False
    standing = versions[generation]
    return standing.since_ms <= (read.end_ms or 0) and is_of(body, standing.body)


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
    update_violations,
    generation_violations,
    key_violations,
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
