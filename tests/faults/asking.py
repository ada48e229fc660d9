"""Requests, written down: what is asked before it goes out, what was answered right after its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from bucketsched import Client, CreatedTask, TaskInfo
from bucketsched.client.model import EPOCH
from bucketsched.errors import AlreadyExists, BucketschedError, FailedPrecondition, NotFound, RequestError, Unavailable

from .drawing import Alteration, Wanted
from .history import HistoryWriter, now_ms
from .model import Op, Outcome, Version, body_of

NOTE_MAX = 200
TOO_LATE = {
    "ALREADY_CANCELLED": Outcome.CANCELLED,
    "ALREADY_DISPATCHED": Outcome.TOO_LATE,
    "ALREADY_SUCCEEDED": Outcome.TOO_LATE,
    "ALREADY_EXPIRED": Outcome.TOO_LATE,
    "ALREADY_FAILED": Outcome.FAILED,
}
CANCELS = {"CANCELLED": Outcome.CANCELLED, **TOO_LATE}
UPDATES = {"UPDATED": Outcome.UPDATED, **TOO_LATE}
STATES = {
    "PENDING": Outcome.PENDING,
    "RETRYING": Outcome.PENDING,
    "DISPATCHED": Outcome.DISPATCHED,
    "RUNNING": Outcome.DISPATCHED,
    "SUCCEEDED": Outcome.DISPATCHED,
    "CANCELLED": Outcome.CANCELLED,
    "FAILED": Outcome.FAILED,
}
"""What answers mean, by the names that clients see."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`version`: what the task is said to be."""

    outcome: Outcome
    version: Version | None = None


class Asking:
    """Makes requests of any client, and counts them."""

    def __init__(self, history: HistoryWriter) -> None:
        self._history = history
        self.requests = 0

    async def create(self, wanted: list[Wanted], client: Client) -> None:
        """Asks for all of them at once. Of those with a key it notes what id they were told."""
        numbers = [self._next() for _ in wanted]
        await self._history.record(*(self._create_event(n, w) for n, w in zip(numbers, wanted, strict=True)))
        answers = await client.create_many([each.task for each in wanted])
        at_ms = now_ms()
        for number, each, answer in zip(numbers, wanted, answers, strict=True):
            if isinstance(answer, BucketschedError):
                self._end(number, outcome_of(answer), at_ms, note=str(answer)[:NOTE_MAX])
                continue
            if each.task.idempotency_key:
                each.task_id, each.due_ms = answer.id, answer.due_ms
            self._end(number, Outcome.OK, at_ms, **_told(each, answer))

    def _create_event(self, number: int, wanted: Wanted) -> dict[str, Any]:
        key = wanted.task.idempotency_key
        event = self._start(number, Op.CREATE, "" if key else wanted.task_id)
        event |= {"queue": wanted.task.queue, "body": wanted.body}
        if key:
            event |= {"key": key} | ({} if wanted.delay_ms is None else {"delay": wanted.delay_ms})
        return event

    async def cancel(self, wanted: Wanted, client: Client) -> None:
        """Whatever it is by now."""

        async def call() -> Answer:
            return Answer(CANCELS[await client.cancel(wanted.task_id)])

        await self._ask(Op.CANCEL, wanted, call)

    async def get(self, wanted: Wanted, client: Client) -> None:
        """Reads it."""

        async def call() -> Answer:
            info = await client.get(wanted.task_id)
            return Answer(STATES[info.state], version_of(info))

        await self._ask(Op.GET, wanted, call)

    async def update(self, wanted: Wanted, alteration: Alteration, client: Client) -> None:
        """Changes it."""

        async def call() -> Answer:
            result = await client.update(wanted.task_id, **alteration.given)
            return Answer(UPDATES[result.outcome], version_of(result.task) if result.task else None)

        await self._ask(Op.UPDATE, wanted, call, change=alteration.change)

    async def run_now(self, wanted: Wanted, client: Client) -> None:
        """Makes it due."""

        async def call() -> Answer:
            return Answer(UPDATES[await client.run_now(wanted.task_id)])

        await self._ask(Op.RUN_NOW, wanted, call)

    async def _ask(self, op: Op, wanted: Wanted, call: Callable[[], Awaitable[Answer]], **about: Any) -> None:
        number = self._next()
        await self._history.record(self._start(number, op, wanted.task_id) | about)
        told: dict[str, Any] = {}
        try:
            answer = await call()
        except BucketschedError as error:
            answer, told = Answer(outcome_of(error)), {"note": str(error)[:NOTE_MAX]}
        if answer.version is not None:
            wanted.generation = max(wanted.generation, answer.version.generation)
            told = {"version": answer.version}
        self._end(number, answer.outcome, now_ms(), **told)

    def _next(self) -> int:
        self.requests += 1
        return self.requests

    def _start(self, number: int, op: Op, task_id: str) -> dict[str, Any]:
        return {"e": "start", "n": number, "op": op, "id": task_id, "t": now_ms()}

    def _end(self, number: int, outcome: Outcome, at_ms: int, **told: Any) -> None:
        self._history.note({"e": "end", "n": number, "outcome": outcome, "t": at_ms} | told)


def _told(wanted: Wanted, answer: CreatedTask) -> dict[str, Any]:
    return {"id": answer.id, "due": answer.due_ms} if wanted.task.idempotency_key else {}


def version_of(info: TaskInfo) -> Version:
    """What a client is shown, in the checker's terms."""
    body = body_of(
        info.namespace,
        info.queue,
        info.type,
        info.payload,
        info.metadata,
        info.content_type,
        info.priority,
        (info.due - EPOCH) // timedelta(milliseconds=1),
    )
    return Version(info.generation, body)


def outcome_of(error: BucketschedError) -> Outcome:
    """What an error means for the task."""
    if isinstance(error, NotFound) and error.field in ("", "task_id"):
        return Outcome.NOT_FOUND
    if isinstance(error, AlreadyExists) and error.field == "idempotency_key":
        return Outcome.EXISTS
    if isinstance(error, FailedPrecondition) and error.field == "expected_generation":
        return Outcome.CONFLICT
    if isinstance(error, RequestError):
        return Outcome.REJECTED
    assert isinstance(error, Unavailable), f"an error that a client should not meet: {error!r}"
    return Outcome.UNKNOWN
