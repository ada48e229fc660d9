"""The checker finds what was planted, and nothing in a history that is as it should be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.faults.checker import CHECKS, check
from tests.faults.model import (
    Delivery,
    Dispatch,
    EntryKind,
    Fact,
    History,
    Message,
    Op,
    Outcome,
    Request,
    Row,
    Section,
)

DUE_MS = 600_000
BUCKET = 10
SENT, JOB, GONE, REFUSED = "sent", "job", "gone", "refused"


def once(task_id: str) -> Dispatch:
    return Dispatch(task_id, 0, 1)


def create(task_id: str, outcome: Outcome = Outcome.OK, queue: str = "orders") -> Request:
    return Request(Op.CREATE, task_id, 1_000, 1_100, outcome, DUE_MS, queue, f"body of {task_id}")


def asked(op: Op, task_id: str, outcome: Outcome) -> Request:
    return Request(op, task_id, 2_000, 2_100, outcome)


def message(task_id: str, offset: int = 0) -> Message:
    late_ms = DUE_MS + 5
    return Message("orders", 0, offset, once(task_id), DUE_MS, late_ms, f"body of {task_id}", late_ms + 3)


def section(*facts: Fact, offset: int = 0, epoch: int = 4, partition: int = 0) -> Section:
    return Section(partition, offset, DUE_MS + 5 + offset, range_id=1, epoch=epoch, facts=facts)


def fact(task_id: str, kind: EntryKind = EntryKind.DISPATCHED) -> Fact:
    return Fact(kind, once(task_id), DUE_MS)


def row(task_id: str, *facts: EntryKind) -> Row:
    return Row(1, BUCKET, once(task_id), True, frozenset(facts))


def clean() -> History:
    """Two tasks that were dispatched, one of them to a worker; one that was cancelled; one that was rejected."""
    return History(
        requests=[
            create(SENT),
            create(JOB, queue="jobs"),
            create(GONE),
            create(REFUSED, Outcome.REJECTED),
            asked(Op.CANCEL, GONE, Outcome.CANCELLED),
            asked(Op.CANCEL, SENT, Outcome.TOO_LATE),
            asked(Op.GET, SENT, Outcome.DISPATCHED),
            asked(Op.GET, GONE, Outcome.CANCELLED),
        ],
        messages=[message(SENT), message(JOB, 1)],
        deliveries=[Delivery(once(JOB), DUE_MS, DUE_MS + 9, f"body of {JOB}")],
        journal=[
            section(fact(SENT), fact(JOB)),
            section(fact(GONE, EntryKind.CANCELLED), offset=1),
            replace(section(offset=2), closed=(BUCKET,)),
        ],
        rows=[row(SENT, EntryKind.DISPATCHED), row(JOB), row(GONE, EntryKind.CANCELLED)],
        worker_queues=frozenset({"jobs"}),
    )


def test_nothing_is_found_where_all_is_well() -> None:
    assert check(clean()) == []


def test_lost_answers_are_no_violations() -> None:
    """Nobody was told anything: each of these may have happened or not."""
    history = clean()
    for task_id in ("never written", "dispatched", "cancelled"):
        history.requests.append(create(task_id, Outcome.UNKNOWN))
        history.requests.append(asked(Op.CANCEL, task_id, Outcome.UNKNOWN))
    history.requests.append(Request(Op.CREATE, "written late", 1_000, digest="body of written late"))
    history.messages.append(message("dispatched", 7))
    history.journal.append(section(fact("dispatched"), fact("cancelled", EntryKind.CANCELLED), offset=7))
    history.rows.append(row("written late"))
    history.differences.append(("written late", "lost"))
    assert check(history) == []


def test_a_cancel_whose_answer_was_lost_may_have_worked() -> None:
    history = clean()
    history.requests += [create("silent"), asked(Op.CANCEL, "silent", Outcome.UNKNOWN)]
    history.journal.append(section(fact("silent", EntryKind.CANCELLED), offset=7))
    assert check(history) == []


def test_reading_a_record_twice_is_no_second_commit() -> None:
    history = clean()
    history.messages.append(replace(message(SENT), seen_ms=None))
    assert check(history) == []


def test_a_task_that_is_given_to_a_worker_twice_is_lawful() -> None:
    history = clean()
    history.deliveries.append(replace(history.deliveries[0], began_ms=DUE_MS + 2_000))
    assert check(history) == []


def drop_message(history: History) -> None:
    history.messages = [m for m in history.messages if m.dispatch.task_id != SENT]


def never_dispatched(history: History) -> None:
    history.requests.append(create("forgotten"))


def never_delivered(history: History) -> None:
    history.deliveries.clear()


def failed_instead(history: History) -> None:
    history.requests.append(create("failed"))
    history.journal.append(section(fact("failed", EntryKind.FAILED), offset=7))


def seen_early(history: History) -> None:
    history.messages[0] = replace(history.messages[0], seen_ms=DUE_MS - 1)


def appended_early(history: History) -> None:
    history.messages[0] = replace(history.messages[0], append_ms=DUE_MS - 1, seen_ms=None)


def delivered_early(history: History) -> None:
    history.deliveries[0] = replace(history.deliveries[0], began_ms=DUE_MS - 1)


def committed_twice(history: History) -> None:
    history.messages.append(message(SENT, 8))
    history.journal.append(section(fact(SENT), offset=8))


def two_generations(history: History) -> None:
    again = Dispatch(SENT, 1, 1)
    history.messages.append(replace(message(SENT, 8), dispatch=again))
    history.journal.append(section(Fact(EntryKind.DISPATCHED, again, DUE_MS), offset=8))


def dispatched_after_cancel(history: History) -> None:
    history.messages.append(message(GONE, 8))
    history.journal.append(section(fact(GONE), offset=8))


def too_late_for_nothing(history: History) -> None:
    history.requests += [create("waits", Outcome.UNKNOWN), asked(Op.CANCEL, "waits", Outcome.TOO_LATE)]


def told_that_it_failed(history: History) -> None:
    history.requests += [create("waits", Outcome.UNKNOWN), asked(Op.CANCEL, "waits", Outcome.FAILED)]


def cancelled_by_nobody(history: History) -> None:
    history.requests.append(create("waits", Outcome.UNKNOWN))
    history.journal.append(section(fact("waits", EntryKind.CANCELLED), offset=7))


def cancel_without_record(history: History) -> None:
    history.requests += [create("waits", Outcome.UNKNOWN), asked(Op.CANCEL, "waits", Outcome.CANCELLED)]


def rejected_and_sent(history: History) -> None:
    history.messages.append(message(REFUSED, 8))
    history.journal.append(section(fact(REFUSED), offset=8))


def created_by_nobody(history: History) -> None:
    history.messages.append(message("stranger", 8))
    history.journal.append(section(fact("stranger"), offset=8))


def message_without_record(history: History) -> None:
    history.journal[0] = section(fact(JOB))
    history.rows = []


def record_without_message(history: History) -> None:
    history.requests.append(create("unseen", Outcome.UNKNOWN))
    history.journal.append(section(fact("unseen"), offset=7))


def journaled_twice(history: History) -> None:
    history.journal.append(section(fact(SENT), offset=7))


def older_epoch_later(history: History) -> None:
    history.journal.append(section(offset=7, epoch=3))


def older_epoch_later_in_another_lane(history: History) -> None:
    history.journal.append(section(offset=7, epoch=3, partition=5))


def epoch_in_two_lanes(history: History) -> None:
    history.journal.append(section(offset=7, partition=5))


def open_row_in_closed_bucket(history: History) -> None:
    history.requests += [create("waits"), asked(Op.CANCEL, "waits", Outcome.UNKNOWN)]
    history.rows.append(row("waits"))
    history.messages.append(message("waits", 8))
    history.journal.append(section(Fact(EntryKind.DISPATCHED, once("waits"), DUE_MS), offset=8))
    history.rows[-1] = replace(history.rows[-1], dispatch=Dispatch("waits", 1, 1))


def fact_ahead_of_journal(history: History) -> None:
    history.rows.append(row("waits", EntryKind.CANCELLED))


def fact_without_row(history: History) -> None:
    history.rows[0] = replace(history.rows[0], has_body=False)


def another_body(history: History) -> None:
    history.messages[0] = replace(history.messages[0], digest="another")


def another_body_for_a_worker(history: History) -> None:
    history.deliveries[0] = replace(history.deliveries[0], digest="another")


def acknowledged_and_not_found(history: History) -> None:
    history.requests.append(asked(Op.GET, SENT, Outcome.NOT_FOUND))


def not_found_by_a_cancel(history: History) -> None:
    history.requests.append(asked(Op.CANCEL, SENT, Outcome.NOT_FOUND))


def read_as_dispatched(history: History) -> None:
    history.requests.append(create("waits", Outcome.UNKNOWN))
    history.requests.append(asked(Op.GET, "waits", Outcome.DISPATCHED))


def read_as_cancelled(history: History) -> None:
    history.requests.append(asked(Op.GET, SENT, Outcome.CANCELLED))


def found_by_fsck(history: History) -> None:
    history.differences.append((SENT, "lost"))


PLANTED: list[tuple[Callable[[History], None], set[str]]] = [
    (drop_message, {"lost", "journal_mismatches", "cancel_violations", "read_violations"}),
    (never_dispatched, {"lost"}),
    (never_delivered, {"lost"}),
    (failed_instead, {"lost"}),
    (seen_early, {"early"}),
    (appended_early, {"early"}),
    (delivered_early, {"early"}),
    (committed_twice, {"duplicate_commits"}),
    (two_generations, {"duplicate_commits"}),
    (dispatched_after_cancel, {"cancel_violations"}),
    (too_late_for_nothing, {"cancel_violations"}),
    (told_that_it_failed, {"cancel_violations"}),
    (cancelled_by_nobody, {"cancel_violations"}),
    (cancel_without_record, {"cancel_violations"}),
    (rejected_and_sent, {"rejected_fired"}),
    (created_by_nobody, {"rejected_fired"}),
    (message_without_record, {"journal_mismatches"}),
    (record_without_message, {"journal_mismatches"}),
    (journaled_twice, {"journal_mismatches"}),
    (older_epoch_later, {"epoch_violations"}),
    (older_epoch_later_in_another_lane, {"epoch_violations"}),
    (epoch_in_two_lanes, {"epoch_violations"}),
    (open_row_in_closed_bucket, {"unsettled_rows"}),
    (fact_ahead_of_journal, {"unsettled_rows"}),
    (fact_without_row, {"unsettled_rows"}),
    (another_body, {"changed_bodies"}),
    (another_body_for_a_worker, {"changed_bodies"}),
    (acknowledged_and_not_found, {"read_violations"}),
    (not_found_by_a_cancel, {"read_violations"}),
    (read_as_dispatched, {"read_violations"}),
    (read_as_cancelled, {"read_violations"}),
    (found_by_fsck, {"fsck_differences"}),
]


@pytest.mark.parametrize(("plant", "kinds"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_what_is_planted_is_found(plant: Callable[[History], None], kinds: set[str]) -> None:
    history = clean()
    plant(history)
    assert {violation.kind for violation in check(history)} == kinds


def test_every_check_has_something_planted() -> None:
    assert {find.__name__ for find in CHECKS} == {kind for _, kinds in PLANTED for kind in kinds}
