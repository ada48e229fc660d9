"""bucketsched.v1.NoticeRule from and to what the core knows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..core.durations import duration_ms
from ..core.errors import InvalidArgument
from ..core.notice_check import asked_rule
from ..core.notice_rule import NoticeEvent, NoticeRule
from ..stubs.v1 import task_pb2 as pb
from .retries import length

_EVENTS: dict[int, NoticeEvent] = {
    pb.NOTICE_EVENT_SUCCEEDED: NoticeEvent.SUCCEEDED,
    pb.NOTICE_EVENT_ATTEMPT_FAILED: NoticeEvent.ATTEMPT_FAILED,
    pb.NOTICE_EVENT_DEAD_LETTERED: NoticeEvent.DEAD_LETTERED,
    pb.NOTICE_EVENT_EXPIRED: NoticeEvent.EXPIRED,
    pb.NOTICE_EVENT_LATE: NoticeEvent.LATE,
}
_EVENT_NUMBERS: dict[NoticeEvent, pb.NoticeEvent.ValueType] = {
    NoticeEvent.SUCCEEDED: pb.NOTICE_EVENT_SUCCEEDED,
    NoticeEvent.ATTEMPT_FAILED: pb.NOTICE_EVENT_ATTEMPT_FAILED,
    NoticeEvent.DEAD_LETTERED: pb.NOTICE_EVENT_DEAD_LETTERED,
    NoticeEvent.EXPIRED: pb.NOTICE_EVENT_EXPIRED,
    NoticeEvent.LATE: pb.NOTICE_EVENT_LATE,
}


def notices_of(messages: Sequence[pb.NoticeRule]) -> tuple[NoticeRule, ...]:
    """What was asked for. Raises InvalidArgument for unknown events and for what is no length of time."""
    return tuple(_rule_of(message, f"notices[{at}]") for at, message in enumerate(messages))


def _rule_of(message: pb.NoticeRule, where: str) -> NoticeRule:
    for number in message.events:
        if number not in _EVENTS:
            raise InvalidArgument(f"{where}.events", f"must be of {', '.join(NoticeEvent)}; {number} is unknown")
    late = message.late_after
    late_ms = duration_ms(late.seconds, late.nanos, f"{where}.late_after") if message.HasField("late_after") else None
    return asked_rule({_EVENTS[number] for number in message.events}, message.queue, late_ms)


def notice_messages(rules: Iterable[NoticeRule]) -> list[pb.NoticeRule]:
    """As they are shown."""
    return [
        pb.NoticeRule(
            events=[_EVENT_NUMBERS[event] for event in rule.events], queue=rule.queue, late_after=length(rule.late_ms)
        )
        for rule in rules
    ]
