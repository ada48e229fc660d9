"""The checker finds what was planted, and nothing in a history that is as it should be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.faults.checker import CHECKS, check
from tests.faults.model import (
    Body,
    Change,
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
    Version,
)

DUE_MS = 600_000
BUCKET = 10
SENT, JOB, GONE, REFUSED, MOVED, KEYED = "sent", "job", "gone", "refused", "moved", "keyed"
KEY = "a key"
LATER_MS = DUE_MS + 1_000
"""When MOVED is due by its update."""
CHANGE = Change(payload="another", due_ms=LATER_MS)


def once(task_id: str, generation: int = 0) -> Dispatch:
    return Dispatch(task_id, generation, 1)


def body(task_id: str) -> Body:
    return Body("default/orders/a", f"payload of {task_id}", "", "text/plain", 1, DUE_MS)


def create(task_id: str, outcome: Outcome = Outcome.OK, queue: str = "orders") -> Request:
    return Request(Op.CREATE, task_id, 1_000, 1_100, outcome, queue, body(task_id))


def keyed(task_id: str = KEYED, outcome: Outcome = Outcome.OK, start_ms: int = 1_000) -> Request:
    """A create with KEY; what it asks for is the same whatever it is answered."""
    told = task_id if outcome is Outcome.OK else ""
    due_ms = DUE_MS if told else 0
    end_ms = start_ms + 100
    return Request(Op.CREATE, told, start_ms, end_ms, outcome, "orders", body(KEYED), KEY, due_ms=due_ms)


def asked(op: Op, task_id: str, outcome: Outcome, start_ms: int = 2_000) -> Request:
    return Request(op, task_id, start_ms, start_ms + 100, outcome)


def update(
    task_id: str,
    outcome: Outcome = Outcome.UPDATED,
    change: Change = CHANGE,
    start_ms: int = 2_000,
    generation: int = 1,
    told: Body | None = None,
) -> Request:
    """A change of a task that it was told to be of a generation now, if it was confirmed."""
    version = Version(generation, told or body(task_id).changed(change)) if outcome is Outcome.UPDATED else None
    return replace(asked(Op.UPDATE, task_id, outcome, start_ms), change=change, version=version)


def message(task_id: str, offset: int = 0, generation: int = 0, of: Body | None = None) -> Message:
    sent = of or body(task_id)
    late_ms = sent.due_ms + 5
    return Message("orders", 0, offset, once(task_id, generation), sent, late_ms, late_ms + 3)


def section(*facts: Fact, offset: int = 0, epoch: int = 4, partition: int = 0, append_ms: int | None = None) -> Section:
    append_ms = DUE_MS + 5 + offset if append_ms is None else append_ms
    return Section(partition, offset, append_ms, range_id=1, epoch=epoch, facts=facts)


def fact(task_id: str, kind: EntryKind = EntryKind.DISPATCHED, generation: int = 0) -> Fact:
    return Fact(kind, once(task_id, generation), DUE_MS)


def moved(task_id: str, generation: int = 0, to: Body | None = None) -> Fact:
    """As a journal tells of an update."""
    return Fact(EntryKind.MOVED, once(task_id, generation), DUE_MS, to or body(task_id).changed(CHANGE))


def row(task_id: str, *facts: EntryKind, generation: int = 0) -> Row:
    return Row(1, BUCKET, once(task_id, generation), True, frozenset(facts))


def clean() -> History:
    """Two tasks that were dispatched, one of them to a worker; one that was cancelled; one that was rejected; one that
    was changed; one that was created with a key, and again behind its dispatch, and something else under its key.
    """
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
            create(MOVED),
            update(MOVED),
            replace(update(MOVED, start_ms=3_000), change=CHANGE._replace(expected=1)),
            update(MOVED, Outcome.CONFLICT, Change(priority=0, expected=0), 3_000),
            update(MOVED, Outcome.TOO_LATE, start_ms=LATER_MS + 50),
            replace(asked(Op.GET, MOVED, Outcome.PENDING), version=Version(1, body(MOVED).changed(CHANGE))),
            keyed(),
            keyed(start_ms=LATER_MS),
            replace(keyed(outcome=Outcome.EXISTS), body=body("something else")),
        ],
        messages=[message(SENT), message(JOB, 1), message(KEYED, 2), message(MOVED, 3, 1, body(MOVED).changed(CHANGE))],
        deliveries=[Delivery(once(JOB), body(JOB), DUE_MS + 9)],
        journal=[
            section(moved(MOVED), offset=0, append_ms=2_050),
            section(fact(SENT), fact(JOB), fact(KEYED)),
            section(fact(GONE, EntryKind.CANCELLED), offset=1),
            replace(section(fact(MOVED, generation=1), append_ms=LATER_MS + 5, offset=2), closed=(BUCKET,)),
        ],
        rows=[
            row(SENT, EntryKind.DISPATCHED),
            row(JOB),
            row(GONE, EntryKind.CANCELLED),
            row(MOVED, EntryKind.MOVED),
            row(MOVED, generation=1),
        ],
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
    history.requests.append(Request(Op.CREATE, "written late", 1_000, body=body("written late")))
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


def test_an_update_whose_answer_was_lost_may_have_worked_or_not() -> None:
    """Whether its record is there decides which of the two versions has to come."""
    for worked in (False, True):
        history = clean()
        history.requests += [create("asked"), update("asked", Outcome.UNKNOWN)]
        newest = body("asked").changed(CHANGE) if worked else body("asked")
        if worked:
            history.journal.append(section(moved("asked"), append_ms=DUE_MS - 50))
        history.messages.append(message("asked", 8, int(worked), newest))
        history.journal.append(section(fact("asked", generation=int(worked)), append_ms=newest.due_ms + 5))
        assert check(history) == [], worked


def test_an_earlier_try_may_have_worked_whatever_the_last_one_was_told() -> None:
    for outcome, expected in ((Outcome.TOO_LATE, None), (Outcome.CONFLICT, 0)):
        history = clean()
        change = CHANGE._replace(expected=expected)
        long = replace(update("asked", outcome, change), end_ms=LATER_MS + 50)
        history.requests += [create("asked"), long]
        history.messages.append(message("asked", 8, 1, body("asked").changed(change)))
        history.journal.append(section(moved("asked"), append_ms=2_050))
        history.journal.append(section(fact("asked", generation=1), append_ms=LATER_MS + 5))
        assert check(history) == [], outcome


def test_what_is_so_already_is_confirmed_as_it_is() -> None:
    history = clean()
    history.requests.append(update(SENT, change=Change(priority=1, expected=0), generation=0, told=body(SENT)))
    assert check(history) == []


def test_a_task_that_is_run_now_goes_before_its_time() -> None:
    history = clean()
    now = body("asked")._replace(due_ms=2_040)
    history.requests += [create("asked"), asked(Op.RUN_NOW, "asked", Outcome.UPDATED)]
    history.messages.append(message("asked", 8, 1, now))
    history.journal.append(section(moved("asked", to=now), append_ms=2_043))
    history.journal.append(section(fact("asked", generation=1)._replace(due_ms=2_040), append_ms=2_044))
    assert check(history) == []


def test_a_run_now_at_about_its_due_time_made_no_version_that_was_replaced_before() -> None:
    """It is told of no generation: that it made is told by when it is due, and an older one may be due just then."""
    history, change = clean(), Change(payload="another", due_ms=DUE_MS - 1)
    changed = body("asked").changed(change)
    now = changed._replace(due_ms=DUE_MS - 40)
    history.requests += [create("asked"), update("asked", change=change)]
    history.requests.append(asked(Op.RUN_NOW, "asked", Outcome.UPDATED, DUE_MS - 50))
    history.messages.append(message("asked", 8, 2, now))
    history.journal.append(section(moved("asked", to=changed), append_ms=2_050))
    history.journal.append(section(moved("asked", 1, to=now)._replace(due_ms=DUE_MS - 1), append_ms=DUE_MS - 38))
    history.journal.append(section(fact("asked", generation=2)._replace(due_ms=DUE_MS - 40), append_ms=DUE_MS - 37))
    assert check(history) == []


def test_what_has_failed_is_tried_again_and_may_be_cancelled_or_changed_in_between() -> None:
    for op in (None, Op.CANCEL, Op.UPDATE):
        history = clean()
        attempted(history, EntryKind.RETRIED)
        if op is None:
            again(history)
            attempted(history, EntryKind.SUCCEEDED, attempt=2, at_ms=DUE_MS + 1_500)
        elif op is Op.CANCEL:
            history.requests.append(asked(Op.CANCEL, SENT, Outcome.CANCELLED, DUE_MS + 600))
            attempted(history, EntryKind.CANCELLED, attempt=2, at_ms=DUE_MS + 650)
        else:
            changed = body(SENT).changed(CHANGE)
            history.requests.append(update(SENT, start_ms=DUE_MS + 600))
            history.journal.append(
                section(Fact(EntryKind.MOVED, Dispatch(SENT, 0, 2), DUE_MS, changed), append_ms=DUE_MS + 650)
            )
            history.messages.append(replace(message(SENT, 30, of=changed), dispatch=Dispatch(SENT, 1, 2)))
            fact_ = Fact(EntryKind.DISPATCHED, Dispatch(SENT, 1, 2), LATER_MS)
            history.journal.append(section(fact_, append_ms=LATER_MS + 5))
        assert check(history) == [], op


def test_what_comes_late_may_be_moved_as_it_is() -> None:
    history = clean()
    late_ms = DUE_MS + 2 * 60_000
    history.requests.append(replace(create("late"), start_ms=late_ms, end_ms=late_ms + 50))
    history.messages.append(replace(message("late", 8, 1), append_ms=late_ms + 20, seen_ms=late_ms + 22))
    history.journal.append(section(moved("late")._replace(body=None), append_ms=late_ms + 10))
    history.journal.append(section(fact("late", generation=1), append_ms=late_ms + 20))
    assert check(history) == []


def test_creates_with_a_key_whose_ids_nobody_was_told() -> None:
    """One of two was the first; which, shows by what comes, and when."""
    history = clean()
    first = replace(keyed(outcome=Outcome.UNKNOWN), key="unknown", body=body("one"))
    delay = replace(first, body=body("two")._replace(due_ms=0), delay_ms=DUE_MS - 1_000)
    later = replace(first, body=body("two")._replace(due_ms=LATER_MS))
    history.requests += [first, later, delay, replace(later, body=body("two"))]
    history.messages.append(message("asked", 8, of=body("two")))
    history.journal.append(section(fact("asked"), offset=8))
    assert check(history) == []


def test_a_delay_ends_when_it_ended_for_the_first_create() -> None:
    history = clean()
    history.requests += [delayed("waits", 5_000, 6_050), delayed("waits", 8_000, 6_050)]
    history.messages.append(message("waits", 8, of=body("waits")._replace(due_ms=6_050)))
    history.journal.append(section(fact("waits"), offset=8))
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
    history.journal[1] = section(fact(JOB), fact(KEYED))
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
    history.messages[0] = replace(history.messages[0], body=body("another"))


def another_body_for_a_worker(history: History) -> None:
    history.deliveries[0] = replace(history.deliveries[0], body=body("another"))


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


def journal(history: History, *facts: Fact, at_ms: int) -> None:
    history.journal.append(section(*facts, offset=90, append_ms=at_ms))


def old_version_dispatched(history: History) -> None:
    """The guard that is left out: a row that was moved goes all the same, instead of the new one."""
    history.messages[3] = message(MOVED, 3)
    history.journal[3] = replace(history.journal[3], facts=(fact(MOVED),), append_ms=DUE_MS + 5)
    history.messages[3] = replace(history.messages[3], body=body(MOVED))
    history.requests = [r for r in history.requests if r.outcome is not Outcome.TOO_LATE or r.task_id != MOVED]


def old_version_cancelled(history: History) -> None:
    history.requests += [
        create("waits"),
        update("waits", Outcome.UNKNOWN),
        asked(Op.CANCEL, "waits", Outcome.CANCELLED),
    ]
    journal(history, moved("waits"), at_ms=2_050)
    journal(history, fact("waits", EntryKind.CANCELLED), at_ms=2_060)


def moved_twice(history: History) -> None:
    journal(history, moved(MOVED), at_ms=2_070)


def generation_left_out(history: History) -> None:
    history.journal[0] = replace(history.journal[0], facts=(moved(MOVED, 1),))
    history.journal[3] = replace(history.journal[3], facts=(fact(MOVED, generation=1),))
    history.requests = [r for r in history.requests if r.op is not Op.GET or r.task_id != MOVED]


def moved_after_its_dispatch(history: History) -> None:
    history.requests += [create("late"), update("late", start_ms=DUE_MS + 50)]
    history.messages.append(message("late", 8))
    history.journal.append(section(fact("late"), append_ms=DUE_MS + 5, offset=8))
    journal(history, moved("late"), at_ms=DUE_MS + 60)


def old_contents_in_the_new_version(history: History) -> None:
    sent = history.messages[3]
    history.messages[3] = replace(sent, body=body(MOVED)._replace(due_ms=LATER_MS))


def early_by_the_update(history: History) -> None:
    """It goes with the new generation, but when it was due before."""
    sent = history.messages[3]
    sent = replace(sent, body=sent.body._replace(due_ms=DUE_MS), append_ms=DUE_MS + 5, seen_ms=DUE_MS + 8)
    history.messages[3] = sent
    history.journal[3] = replace(history.journal[3], append_ms=DUE_MS + 5)


def waiting(history: History, *facts: Fact, at_ms: int = 2_050) -> None:
    """A task of which nothing else is known, not even whether it was created."""
    history.requests.append(create("waits", Outcome.UNKNOWN))
    if facts:
        journal(history, *facts, at_ms=at_ms)


def confirmed_without_a_record(history: History) -> None:
    waiting(history)
    history.requests.append(update("waits"))


def confirmed_before_its_record(history: History) -> None:
    waiting(history, moved("waits"), at_ms=2_200)
    history.requests += [update("waits"), update("waits", Outcome.UNKNOWN)]


def confirmed_as_something_else(history: History) -> None:
    """An update that was taken for another one."""
    change = Change(priority=2)
    waiting(history, moved("waits", to=body("waits").changed(change)))
    history.requests += [
        update("waits", Outcome.UNKNOWN, change),
        update("waits", told=body("waits").changed(change)),
    ]


def confirmed_as_it_is_not_journaled(history: History) -> None:
    change = CHANGE._replace(priority=2)
    waiting(history, moved("waits", to=body("waits").changed(change)))
    history.requests += [update("waits", Outcome.UNKNOWN, change), update("waits")]


def confirmed_against_its_expectation(history: History) -> None:
    waiting(history, moved("waits"))
    history.requests += [update("waits"), update("waits", change=CHANGE._replace(expected=4))]


def confirmed_behind_a_newer_version(history: History) -> None:
    """Read from a store that does not show the newer one yet, and found to be as it is wanted."""
    waiting(history, moved("waits"))
    history.requests += [
        update("waits"),
        update("waits", change=Change(priority=1), start_ms=3_000, generation=0, told=body("waits")),
    ]


def confirmed_behind_its_dispatch(history: History) -> None:
    history.requests.append(
        update(SENT, change=Change(priority=1), start_ms=DUE_MS + 100, generation=0, told=body(SENT))
    )


def confirmed_behind_a_cancel(history: History) -> None:
    history.requests += [update(GONE, change=Change(priority=1), start_ms=3_000, generation=0, told=body(GONE))]
    history.journal[2] = replace(history.journal[2], facts=())
    history.rows.pop(2)
    history.requests = [r for r in history.requests if r.op is not Op.GET or r.task_id != GONE]


def too_late_before_its_dispatch(history: History) -> None:
    history.requests.append(update(SENT, Outcome.TOO_LATE))


def too_late_for_a_cancel_that_was_not(history: History) -> None:
    waiting(history)
    history.requests.append(update("waits", Outcome.CANCELLED))


def too_late_for_a_failure_that_was_not(history: History) -> None:
    waiting(history)
    history.requests.append(update("waits", Outcome.FAILED))


def conflict_with_nothing(history: History) -> None:
    waiting(history)
    history.requests.append(update("waits", Outcome.CONFLICT, Change(priority=0, expected=0)))


def conflict_with_what_it_was_told(history: History) -> None:
    """By a store that does not show the move yet."""
    waiting(history, moved("waits"))
    history.requests += [
        update("waits"),
        update("waits", Outcome.CONFLICT, Change(priority=0, expected=1), start_ms=3_000),
    ]


def changed_by_nobody(history: History) -> None:
    waiting(history, moved("waits"))


def changed_by_a_refused_update(history: History) -> None:
    waiting(history, moved("waits"))
    history.requests.append(update("waits", Outcome.REJECTED))


def changed_after_the_answer(history: History) -> None:
    """An earlier try that was held up on its way, and takes back what was asked for since."""
    other = CHANGE._replace(payload="newer")
    newest = body("waits").changed(other)
    waiting(history, moved("waits"), moved("waits", 1, newest))
    history.requests += [update("waits"), update("waits", change=other, generation=2)]
    journal(history, moved("waits", 2), at_ms=5_000)


def changed_against_its_expectation(history: History) -> None:
    waiting(history, moved("waits"))
    history.requests.append(update("waits", Outcome.UNKNOWN, CHANGE._replace(expected=1)))


def moved_by_nobody(history: History) -> None:
    """As what comes late is moved; this was in time."""
    waiting(history, moved("waits")._replace(body=None))


def run_now_without_a_record(history: History) -> None:
    waiting(history)
    history.requests.append(asked(Op.RUN_NOW, "waits", Outcome.UPDATED))


def run_then(history: History) -> None:
    """Moved to a time that was not now."""
    waiting(history, moved("waits", to=body("waits")._replace(due_ms=9_000)))
    history.requests.append(asked(Op.RUN_NOW, "waits", Outcome.UPDATED))


def old_version_run(history: History) -> None:
    now = body("waits")._replace(due_ms=2_040)
    waiting(history, moved("waits", to=now))
    history.requests.append(asked(Op.RUN_NOW, "waits", Outcome.UPDATED))
    history.messages.append(message("waits", 8))
    history.journal.append(section(fact("waits"), offset=8))


def update_did_not_find_it(history: History) -> None:
    history.requests.append(update(SENT, Outcome.NOT_FOUND))


def read_as_it_never_was(history: History) -> None:
    history.requests.append(replace(asked(Op.GET, SENT, Outcome.PENDING), version=Version(0, body("another"))))


def attempted(history: History, *kinds: EntryKind, attempt: int = 1, at_ms: int = DUE_MS + 500) -> None:
    """What becomes of an attempt at SENT."""
    facts = [Fact(kind, Dispatch(SENT, 0, attempt), DUE_MS, None, DUE_MS + 1_000) for kind in kinds]
    history.journal.append(section(*facts, offset=20 + attempt, append_ms=at_ms))


def again(history: History, attempt: int = 2, at_ms: int = DUE_MS + 1_005) -> None:
    """Another attempt at SENT."""
    sent = replace(message(SENT, 20 + attempt), dispatch=Dispatch(SENT, 0, attempt), append_ms=at_ms, seen_ms=at_ms + 3)
    history.messages.append(sent)
    fact_ = Fact(EntryKind.DISPATCHED, Dispatch(SENT, 0, attempt), DUE_MS + 1_000)
    history.journal.append(section(fact_, offset=40 + attempt, append_ms=at_ms))


def two_outcomes(history: History) -> None:
    attempted(history, EntryKind.SUCCEEDED, EntryKind.ATTEMPT_FAILED)


def tried_again_after_a_success(history: History) -> None:
    attempted(history, EntryKind.SUCCEEDED)
    again(history)


def tried_again_at_once(history: History) -> None:
    """Before the pause that was decided is over."""
    attempted(history, EntryKind.RETRIED)
    again(history, at_ms=DUE_MS + 999)


def tried_again_twice(history: History) -> None:
    attempted(history, EntryKind.RETRIED)
    again(history)
    history.messages.append(replace(history.messages[-1], offset=99))


def never_tried_again(history: History) -> None:
    attempted(history, EntryKind.RETRIED)
    history.journal.append(section(offset=98, append_ms=DUE_MS + 100_000))


def outcome_of_nothing(history: History) -> None:
    attempted(history, EntryKind.SUCCEEDED, attempt=2)


def cancelled_and_tried_again(history: History) -> None:
    attempted(history, EntryKind.RETRIED)
    history.requests.append(asked(Op.CANCEL, SENT, Outcome.CANCELLED, DUE_MS + 600))
    attempted(history, EntryKind.CANCELLED, attempt=2, at_ms=DUE_MS + 650)
    again(history)


def read_before_it_was_so(history: History) -> None:
    version = Version(1, body(MOVED).changed(CHANGE))
    history.requests.append(replace(asked(Op.GET, MOVED, Outcome.PENDING, 1_500), version=version))


def two_tasks_of_a_key(history: History) -> None:
    history.requests.append(keyed("another"))


def a_key_dispatched_as_an_unknown_task(history: History) -> None:
    """The id of the second try, which nobody was told."""
    history.messages.append(message("another", 8, of=body(KEYED)))
    history.journal.append(section(fact("another"), offset=8))
    history.requests.append(keyed(outcome=Outcome.UNKNOWN))


def a_key_taken_by_two(history: History) -> None:
    history.requests.append(replace(keyed("another"), body=body("another")))


def another_due_time_for_a_key(history: History) -> None:
    history.requests.append(replace(keyed(), due_ms=DUE_MS - 1))


def delayed(task_id: str, start_ms: int, due_ms: int) -> Request:
    asks = replace(keyed(task_id, start_ms=start_ms), key="another", delay_ms=1_000, due_ms=due_ms)
    return replace(asks, body=body(task_id)._replace(due_ms=0))


def a_delay_that_began_before(history: History) -> None:
    history.requests.append(delayed("waits", 5_000, 5_600))


def a_delay_that_began_again(history: History) -> None:
    """The second create is told when its own delay would end."""
    history.requests += [delayed("waits", 5_000, 6_050), delayed("waits", 8_000, 9_050)]
    history.messages.append(message("waits", 8, of=body("waits")._replace(due_ms=6_050)))
    history.journal.append(section(fact("waits"), offset=8))


def refused_for_no_other(history: History) -> None:
    refused = keyed(outcome=Outcome.EXISTS)
    history.requests.append(replace(refused, key="a third one"))


def refused_for_itself(history: History) -> None:
    history.requests.append(keyed(outcome=Outcome.EXISTS))


def dispatched_as_refused(history: History) -> None:
    history.messages[2] = replace(history.messages[2], body=body("something else"))
    history.requests.append(keyed(outcome=Outcome.UNKNOWN))


PLANTED: list[tuple[Callable[[History], None], set[str]]] = [
    (drop_message, {"lost", "journal_mismatches", "cancel_violations", "read_violations"}),
    (never_dispatched, {"lost"}),
    (never_delivered, {"lost"}),
    (failed_instead, {"lost"}),
    (seen_early, {"early"}),
    (appended_early, {"early"}),
    (delivered_early, {"early"}),
    (committed_twice, {"duplicate_commits", "generation_violations"}),
    (two_generations, {"duplicate_commits", "generation_violations"}),
    (dispatched_after_cancel, {"cancel_violations", "generation_violations"}),
    (too_late_for_nothing, {"cancel_violations"}),
    (told_that_it_failed, {"cancel_violations"}),
    (cancelled_by_nobody, {"cancel_violations"}),
    (cancel_without_record, {"cancel_violations"}),
    (rejected_and_sent, {"rejected_fired"}),
    (created_by_nobody, {"rejected_fired"}),
    (message_without_record, {"journal_mismatches"}),
    (record_without_message, {"journal_mismatches"}),
    (journaled_twice, {"journal_mismatches", "generation_violations"}),
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
    (old_version_dispatched, {"update_violations", "generation_violations", "unsettled_rows"}),
    (old_version_cancelled, {"generation_violations"}),
    (moved_twice, {"generation_violations"}),
    (generation_left_out, {"generation_violations", "update_violations", "unsettled_rows"}),
    (moved_after_its_dispatch, {"generation_violations", "update_violations"}),
    (old_contents_in_the_new_version, {"changed_bodies"}),
    (early_by_the_update, {"early", "changed_bodies"}),
    (confirmed_without_a_record, {"update_violations"}),
    (confirmed_before_its_record, {"update_violations"}),
    (confirmed_as_something_else, {"update_violations"}),
    (confirmed_as_it_is_not_journaled, {"update_violations"}),
    (confirmed_against_its_expectation, {"update_violations"}),
    (confirmed_behind_a_newer_version, {"update_violations"}),
    (confirmed_behind_its_dispatch, {"update_violations"}),
    (confirmed_behind_a_cancel, {"cancel_violations", "update_violations"}),
    (too_late_before_its_dispatch, {"update_violations"}),
    (too_late_for_a_cancel_that_was_not, {"update_violations"}),
    (too_late_for_a_failure_that_was_not, {"update_violations"}),
    (conflict_with_nothing, {"update_violations"}),
    (conflict_with_what_it_was_told, {"update_violations"}),
    (changed_by_nobody, {"update_violations"}),
    (changed_by_a_refused_update, {"update_violations"}),
    (changed_after_the_answer, {"update_violations"}),
    (changed_against_its_expectation, {"update_violations"}),
    (moved_by_nobody, {"update_violations"}),
    (run_now_without_a_record, {"update_violations"}),
    (run_then, {"update_violations"}),
    (old_version_run, {"update_violations", "generation_violations"}),
    (update_did_not_find_it, {"read_violations"}),
    (read_as_it_never_was, {"read_violations"}),
    (read_before_it_was_so, {"read_violations"}),
    (two_outcomes, {"generation_violations"}),
    (tried_again_after_a_success, {"generation_violations", "duplicate_commits"}),
    (tried_again_at_once, {"early"}),
    (tried_again_twice, {"duplicate_commits", "journal_mismatches"}),
    (never_tried_again, {"lost"}),
    (outcome_of_nothing, {"generation_violations"}),
    (cancelled_and_tried_again, {"cancel_violations", "generation_violations"}),
    (two_tasks_of_a_key, {"key_violations", "lost"}),
    (a_key_dispatched_as_an_unknown_task, {"key_violations"}),
    (a_key_taken_by_two, {"key_violations", "lost"}),
    (another_due_time_for_a_key, {"key_violations"}),
    (a_delay_that_began_before, {"key_violations", "lost"}),
    (a_delay_that_began_again, {"key_violations"}),
    (refused_for_no_other, {"key_violations"}),
    (refused_for_itself, {"key_violations"}),
    (dispatched_as_refused, {"key_violations", "changed_bodies"}),
]


@pytest.mark.parametrize(("plant", "kinds"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_what_is_planted_is_found(plant: Callable[[History], None], kinds: set[str]) -> None:
    history = clean()
    plant(history)
    assert {violation.kind for violation in check(history)} == kinds


def test_every_check_has_something_planted() -> None:
    assert {find.__name__ for find in CHECKS} == {kind for _, kinds in PLANTED for kind in kinds}
