"""What says on the command line which events of tasks are told, and where."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..core.notice_rule import NoticeEvent
from .parameters import LENGTH

if TYPE_CHECKING:
    from ..client import NoticeRule

    RuleType = click.ParamType[NoticeRule]
else:  # generic only since click 8.2
    RuleType = click.ParamType

Command = TypeVar("Command", bound=Callable[..., Any])


class Rule(RuleType):
    """EVENT[,EVENT]=QUEUE[:LATE]."""

    name = "event[,event]=queue[:late]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> NoticeRule:
        """As a rule; the server says whether the queue can be one."""
        from ..client import NoticeRule

        if isinstance(value, NoticeRule):
            return value
        names, equals, target = str(value).partition("=")
        queue, colon, late = target.partition(":")
        events = [name.strip().upper().replace("-", "_") for name in names.split(",")]
        if not (equals and queue and set(events) <= set(NoticeEvent)):
            known = ", ".join(event.lower().replace("_", "-") for event in NoticeEvent)
            self.fail(f"{value!r} must be EVENT[,EVENT]=QUEUE[:LATE], events of {known}", param, ctx)
        late_after = LENGTH.convert(late, param, ctx) if colon else None
        return NoticeRule([NoticeEvent(event) for event in events], queue, late_after)


def notify_option(command: Command) -> Command:
    """Adds the option `notices`."""
    return click.option(
        "--notify",
        "notices",
        type=Rule(),
        multiple=True,
        help="Which events are told, to which queue; a dispatch later than LATE [1s] is late. May be given many times.",
    )(command)


def described_notices(rules: tuple[NoticeRule, ...]) -> list[dict[str, Any]]:
    """As they are shown: lengths in seconds."""
    return [
        {"events": list(map(str, rule.events)), "queue": rule.queue, "late_after": _plain(rule.late_after)}
        for rule in rules
    ]


def _plain(length: float | timedelta | None) -> float | None:
    return length.total_seconds() if isinstance(length, timedelta) else length
