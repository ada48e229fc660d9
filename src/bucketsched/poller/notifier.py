"""Which notices come of what a lane journals."""

from __future__ import annotations

import random

from ..core.execution import Attempt
from ..core.notice_rule import NoticeEvent, NoticeRule, wants
from ..core.notices import notices
from ..core.task import TaskRow
from ..ports import Clock
from .queue_directory import QueueDirectory


class Notifier:
    """One per lane. By the rules of each task and of its queue, as far as that is known here."""

    def __init__(self, queues: QueueDirectory, clock: Clock) -> None:
        self._queues, self._clock = queues, clock
        self._random_bits = random.SystemRandom().getrandbits

    def queue_wants(self, namespace_id: bytes, queue: str, event: NoticeEvent) -> bool:
        """True if this is told of all tasks of the queue."""
        return wants(self._rules_of(namespace_id, queue), event)

    def of(self, row: TaskRow, event: NoticeEvent, attempt: Attempt | None = None) -> tuple[TaskRow, ...]:
        """The rows of its notices, due now."""
        rules = (*row.body.notices, *self._rules_of(row.namespace_id, row.body.queue))
        if not rules:
            return ()
        return notices(row, rules, event, self._clock.now_ms(), self._random_bits, attempt)

    def of_late(self, row: TaskRow, dispatched_ms: int) -> tuple[TaskRow, ...]:
        """The same for a row that is dispatched only now."""
        rules = (*row.body.notices, *self._rules_of(row.namespace_id, row.body.queue))
        late_ms = dispatched_ms - row.due_ms
        due = [rule for rule in rules if late_ms > rule.late_ms]
        if not due:
            return ()
        now_ms, more = self._clock.now_ms(), {"late_ms": late_ms}
        return notices(row, due, NoticeEvent.LATE, now_ms, self._random_bits, more=more)

    def _rules_of(self, namespace_id: bytes, queue: str) -> tuple[NoticeRule, ...]:
        known = self._queues.get(namespace_id, queue)
        return known.policy.notices if known is not None else ()
