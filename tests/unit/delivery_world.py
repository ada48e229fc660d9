"""A worker queue whose messages a test commits by hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from bucketsched.adapters.memory.clock import START_MS
from bucketsched.adapters.memory.deliveries import MemoryDeliveries
from bucketsched.adapters.memory.journal import MemoryJournalWorld
from bucketsched.core import task_id as ids
from bucketsched.core.catalog import Queue, QueueKind
from bucketsched.core.errors import NotFound
from bucketsched.core.execution import Attempt, AttemptEnd, AttemptReport, EndResult
from bucketsched.core.message import Message, to_message
from bucketsched.core.task import TaskBody, TaskRow
from bucketsched.delivery.outcomes import Done

NAMESPACE_ID = b"n" * 16
QUEUE = Queue(NAMESPACE_ID, "default", "jobs", QueueKind.WORKER)
TOPIC_QUEUE = Queue(NAMESPACE_ID, "default", "events", QueueKind.KAFKA, topic="default.events")


class DeliveryWorld:
    """Committed messages, and the deliveries of them. `first`: number of its first task; ids follow from it."""

    def __init__(self, first: int = 1) -> None:
        self.journal = MemoryJournalWorld()
        self.deliveries = MemoryDeliveries(self.journal)
        self._count = first - 1

    def message(
        self, task_type: str = "greet", payload: bytes = b"hello", due_ms: int = START_MS, expires_ms: int = 0
    ) -> Message:
        """A message of a fresh task."""
        self._count += 1
        body = TaskBody("default", QUEUE.name, task_type, payload, {"k": "v"}, nominal_due_ms=due_ms)
        body.expires_ms = expires_ms
        task_id = ids.mint(due_ms, 0, self._count)
        return to_message(TaskRow(due_ms, NAMESPACE_ID, task_id, body), QUEUE, epoch=7, dispatched_ms=due_ms + 3)

    def commit(self, *messages: Message) -> None:
        """Makes messages visible to the queue's subscription."""
        self.journal.begin(0, messages, b"record")
        self.journal.end_transaction(0, commit=True)

    def dispatch(self, count: int = 1, **attributes: object) -> list[str]:
        """Commits `count` fresh tasks at once; their ids."""
        messages = [self.message(**attributes) for _ in range(count)]  # type: ignore[arg-type]
        self.commit(*messages)
        return [dict(message.headers)["ce_taskid"].decode() for message in messages]

    @property
    def undelivered(self) -> int:
        """Messages that are not acknowledged yet."""
        return len(self.journal.committed) - len(self.deliveries.done)


class KeptOutcomes:
    """Takes every outcome, at once or (`held`) when it is let go. See Outcomes."""

    def __init__(self) -> None:
        self.begun: list[Attempt] = []
        self.reports: list[AttemptReport] = []
        self.held = False
        self.answer = EndResult.TAKEN
        self._waiting: list[Done] = []

    def began(self, attempt: Attempt) -> None:
        """See Outcomes."""
        self.begun.append(attempt)

    def ended(self, report: AttemptReport, done: Done) -> None:
        """See Outcomes."""
        self.reports.append(report)
        self._waiting.append(done)
        if not self.held:
            self.let_go()

    def let_go(self) -> None:
        """Answers all that wait."""
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done(self.answer)

    def ends(self) -> list[tuple[str, AttemptEnd | None]]:
        """Each outcome with its task's id."""
        return [(ids.text(report.attempt.task_id), report.attempt.end) for report in self.reports]


class Names:
    """Knows the two queues."""

    async def queue(self, namespace: str, name: str) -> Queue:
        """See api.worker.QueueNames."""
        for queue in (QUEUE, TOPIC_QUEUE):
            if (queue.namespace, queue.name) == (namespace, name):
                return queue
        raise NotFound("queue", f"{name!r} does not exist in namespace {namespace!r}")


async def until(condition: Callable[[], object], timeout_s: float = 10) -> None:
    """Waits for a condition, giving way to other tasks."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.001)


async def quiet(turns: int = 50) -> None:
    """Lets everything that is ready run: what has not happened after this will not."""
    for _ in range(turns):
        await asyncio.sleep(0)
