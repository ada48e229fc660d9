"""What notices may be asked for: one validator for tasks and queues."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from .catalog import Queue
from .durations import DAY_MS, in_words
from .errors import InvalidArgument
from .notice_rule import RULES_MAX, NoticeEvent, NoticeRule
from .validation import check_name

LATE_MS_MAX = 400 * DAY_MS
LATE_MS_DEFAULT = 1_000
EVENTS_OF_ATTEMPTS = frozenset({NoticeEvent.SUCCEEDED, NoticeEvent.ATTEMPT_FAILED})
"""They need somebody who says how attempts end."""


def asked_rule(events: Collection[NoticeEvent], queue: str, late_ms: int | None) -> NoticeRule:
    """The rule that is meant, the same for the same events in another order; None: it was left out. Not checked yet."""
    told = tuple(event for event in NoticeEvent if event in events)
    return NoticeRule(told, queue, LATE_MS_DEFAULT if late_ms is None else late_ms)


def check_notices(rules: Sequence[NoticeRule]) -> None:
    """Raises InvalidArgument with the field at fault. Whether the queues exist is not known here."""
    if len(rules) > RULES_MAX:
        raise InvalidArgument("notices", f"must be at most {RULES_MAX}, are {len(rules)}")
    for at, rule in enumerate(rules):
        if not rule.events:
            raise InvalidArgument(f"notices[{at}].events", f"must be at least one of {_names(NoticeEvent)}")
        check_name(rule.queue, f"notices[{at}].queue")
        if not 0 <= rule.late_ms <= LATE_MS_MAX:
            raise InvalidArgument(f"notices[{at}].late_after", f"must be 0 to {in_words(LATE_MS_MAX)}")


def check_events(rules: Sequence[NoticeRule], queue: Queue) -> None:
    """Raises InvalidArgument for events that tasks of this queue never have."""
    if queue.tracks_outcomes:
        return
    for at, rule in enumerate(rules):
        if never := EVENTS_OF_ATTEMPTS.intersection(rule.events):
            there_are = _names(event for event in NoticeEvent if event not in EVENTS_OF_ATTEMPTS)
            raise InvalidArgument(
                f"notices[{at}].events",
                f"must be of {there_are}: queue {queue.name!r} is of kind {queue.kind}, "
                f"where nobody says of a task that it has {_names(sorted(never))}",
            )


def check_not_itself(rules: Sequence[NoticeRule], name: str) -> None:
    """Raises InvalidArgument for rules of a queue that have its tasks told to itself."""
    for at, rule in enumerate(rules):
        if rule.queue == name:
            raise InvalidArgument(f"notices[{at}].queue", "must be another queue than the one whose tasks are told of")


def _names(events: Iterable[NoticeEvent]) -> str:
    return ", ".join(events)
