"""Rules of notices as they are asked for: bounds, names of fields, which queues they can be of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bucketsched.core.catalog import Queue, QueueKind
from bucketsched.core.durations import DAY_MS
from bucketsched.core.errors import InvalidArgument
from bucketsched.core.idempotency import digest
from bucketsched.core.notice_check import asked_rule, check_events, check_not_itself, check_notices
from bucketsched.core.notice_rule import RULES_MAX, NoticeEvent, NoticeRule
from bucketsched.core.validation import NewTask

DEAD = NoticeRule((NoticeEvent.DEAD_LETTERED,), "dead")
KAFKA = Queue(b"n" * 16, "ns", "topic", QueueKind.KAFKA)


def test_what_is_left_out_is_as_by_default_and_the_order_of_events_means_nothing() -> None:
    asked = asked_rule([NoticeEvent.LATE, NoticeEvent.SUCCEEDED, NoticeEvent.LATE], "q", None)
    assert asked == NoticeRule((NoticeEvent.SUCCEEDED, NoticeEvent.LATE), "q", 1_000)
    assert asked_rule((), "", 0) == NoticeRule((), "", 0)


@pytest.mark.parametrize(
    ("rules", "field"),
    [
        ([DEAD] * (RULES_MAX + 1), "notices"),
        ([DEAD, replace(DEAD, events=())], "notices[1].events"),
        ([replace(DEAD, queue="")], "notices[0].queue"),
        ([DEAD, DEAD, replace(DEAD, queue="a b")], "notices[2].queue"),
        ([replace(DEAD, late_ms=-1)], "notices[0].late_after"),
        ([DEAD, replace(DEAD, late_ms=400 * DAY_MS + 1)], "notices[1].late_after"),
    ],
)
def test_what_can_not_be_is_named(rules: list[NoticeRule], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_notices(rules)
    assert caught.value.field == field


def test_the_bounds_themselves_can_be() -> None:
    widest = NoticeRule(tuple(NoticeEvent), "q" * 100, 400 * DAY_MS)
    check_notices([widest, replace(DEAD, late_ms=0), *[DEAD] * (RULES_MAX - 2)])
    check_notices([])


def test_a_queue_is_not_told_of_itself() -> None:
    check_not_itself([DEAD], "q")
    with pytest.raises(InvalidArgument) as caught:
        check_not_itself([replace(DEAD, queue="other"), DEAD], "dead")
    assert caught.value.field == "notices[1].queue"


@pytest.mark.parametrize("event", list(NoticeEvent))
@pytest.mark.parametrize("kind", list(QueueKind))
def test_how_attempts_end_is_told_where_somebody_says_so(event: NoticeEvent, kind: QueueKind) -> None:
    rules = [DEAD, replace(DEAD, events=(event,))]
    if kind is QueueKind.KAFKA and event in (NoticeEvent.SUCCEEDED, NoticeEvent.ATTEMPT_FAILED):
        with pytest.raises(InvalidArgument, match=f"kind KAFKA.*{event}") as caught:
            check_events(rules, KAFKA)
        assert caught.value.field == "notices[1].events"
    else:
        check_events(rules, replace(KAFKA, kind=kind))


def test_a_key_is_not_to_be_used_with_other_rules() -> None:
    task = NewTask("t", metadata={"a": "b"})
    others = [
        replace(task, notices=rules)
        for rules in (
            (DEAD,),
            (DEAD, DEAD),
            (replace(DEAD, queue="d"),),
            (replace(DEAD, late_ms=7),),
            (replace(DEAD, events=(NoticeEvent.EXPIRED,)),),
            (replace(DEAD, events=(NoticeEvent.DEAD_LETTERED, NoticeEvent.EXPIRED)),),
        )
    ]
    assert len({digest(each) for each in (task, *others)}) == len(others) + 1
