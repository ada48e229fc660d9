"""Rules of notices as messages of bucketsched.v1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..core.errors import InvalidArgument
from ..core.notice_rule import NoticeEvent
from ..stubs.v1 import task_pb2 as pb
from .fields import check_text, length_message, seconds_of
from .notice_rule import NoticeRule

_NUMBERS: dict[str, pb.NoticeEvent.ValueType] = {
    NoticeEvent.SUCCEEDED: pb.NOTICE_EVENT_SUCCEEDED,
    NoticeEvent.ATTEMPT_FAILED: pb.NOTICE_EVENT_ATTEMPT_FAILED,
    NoticeEvent.DEAD_LETTERED: pb.NOTICE_EVENT_DEAD_LETTERED,
    NoticeEvent.EXPIRED: pb.NOTICE_EVENT_EXPIRED,
    NoticeEvent.LATE: pb.NOTICE_EVENT_LATE,
}
_EVENTS: dict[int, NoticeEvent] = {number: NoticeEvent(name) for name, number in _NUMBERS.items()}


def to_messages(rules: Sequence[NoticeRule]) -> list[pb.NoticeRule]:
    """As they are sent. Raises InvalidArgument for what no message can hold; the rest is up to the server."""
    if not isinstance(rules, list | tuple):
        raise InvalidArgument("notices", f"must be a list of NoticeRule, is {type(rules).__name__}")
    return [_to_message(rule, f"notices[{at}]") for at, rule in enumerate(rules)]


def from_messages(messages: Iterable[pb.NoticeRule]) -> tuple[NoticeRule, ...]:
    """As the server shows them. Events that a newer one has are left out."""
    return tuple(
        NoticeRule(
            tuple(_EVENTS[number] for number in message.events if number in _EVENTS),
            message.queue,
            seconds_of(message.late_after),
        )
        for message in messages
    )


def _to_message(rule: NoticeRule, where: str) -> pb.NoticeRule:
    if not isinstance(rule, NoticeRule):
        raise InvalidArgument(where, f"must be a NoticeRule, is {type(rule).__name__}")
    check_text(f"{where}.queue", rule.queue)
    return pb.NoticeRule(
        events=_numbers(rule, f"{where}.events"),
        queue=rule.queue,
        late_after=length_message(f"{where}.late_after", rule.late_after),
    )


def _numbers(rule: NoticeRule, field: str) -> list[pb.NoticeEvent.ValueType]:
    if isinstance(rule.events, str) or not isinstance(rule.events, list | tuple | set | frozenset):
        raise InvalidArgument(field, f"must be a list, is {type(rule.events).__name__}")
    unknown = [event for event in rule.events if not isinstance(event, str) or event not in _NUMBERS]
    if unknown:
        raise InvalidArgument(field, f"must be of {', '.join(NoticeEvent)}; {unknown[0]!r} is unknown")
    return [_NUMBERS[event] for event in rule.events]
