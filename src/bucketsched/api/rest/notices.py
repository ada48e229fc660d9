"""Rules of notices as JSON has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ...core.notice_check import asked_rule
from ...core.notice_rule import NoticeEvent, NoticeRule
from . import models
from .content import length_or_none_ms


def notices_of(bodies: Sequence[models.Notice] | None) -> tuple[NoticeRule, ...]:
    """What was asked for. Raises InvalidArgument where it is no length of time."""
    return tuple(_rule_of(body, f"notices[{at}]") for at, body in enumerate(bodies or ()))


def _rule_of(body: models.Notice, where: str) -> NoticeRule:
    events = {NoticeEvent(name) for name in body.events}
    return asked_rule(events, body.queue, length_or_none_ms(body.late_after, f"{where}.late_after"))


def notices_json(rules: Iterable[NoticeRule]) -> list[dict[str, Any]]:
    """As they are shown, lengths in seconds."""
    return [{"events": rule.events, "queue": rule.queue, "late_after": rule.late_ms / 1000} for rule in rules]
