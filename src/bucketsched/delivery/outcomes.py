"""What became of messages that were to be posted, and who is told."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from ..core.message import TaskEvent

log = logging.getLogger(__name__)


class Ending(StrEnum):
    """How the delivery of one attempt ended for good."""

    DELIVERED = "delivered"
    REJECTED = "rejected"
    """The receiver gave a final answer, or its address must not be connected to."""
    EXHAUSTED = "exhausted"
    """The queue's tries, or its time, were used up."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one attempt: after how many tries and ms, and the last answer in words."""

    ending: Ending
    tries: int
    elapsed_ms: int
    reason: str


class Outcomes(Protocol):
    """Keeps what became of attempts. A message is acknowledged only when its outcome was taken."""

    async def report(self, event: TaskEvent, outcome: Outcome) -> None:
        """Once for each attempt, more often after a crash. Raises Unavailable: report it again."""
        ...


class LoggedOutcomes:
    """Counts all, and logs those that were not delivered, as errors. See Outcomes."""

    def __init__(self) -> None:
        self.counts: Counter[Ending] = Counter()

    async def report(self, event: TaskEvent, outcome: Outcome) -> None:
        """See Outcomes."""
        self.counts[outcome.ending] += 1
        if outcome.ending is not Ending.DELIVERED:
            log.error(
                "webhook task %s: %s after %d tries in %d ms: %s",
                event.task_id,
                outcome.ending.value,
                outcome.tries,
                outcome.elapsed_ms,
                outcome.reason,
                extra={
                    "task": event.task_id,
                    "generation": event.generation,
                    "attempt": event.attempt,
                    "namespace": event.namespace,
                    "queue": event.queue,
                    "type": event.type,
                    "ending": outcome.ending.value,
                },
            )
