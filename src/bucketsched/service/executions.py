"""What is known of the attempts at tasks: their states as far as the execution log tells them, and the log itself.

Rows alone tell every state but RUNNING. So the log is read only of tasks of which some attempt was dispatched, to
queues of which it is known how attempts end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.errors import InvalidArgument, NotFound
from ..core.execution import Attempt, AttemptEnd
from ..core.task import StoredTask, TaskState, fold
from ..core.validation import check_range
from ..ports import ATTEMPTS_READ_MAX, TaskStore
from .directory import Directory

ATTEMPTS_SHOWN_MAX = 20
"""With a task: the last ones."""
PAGE_DEFAULT = 100
PAGE_MAX = ATTEMPTS_READ_MAX
PAGE_BYTES_MAX = 2 * 1024 * 1024
"""Clients of gRPC take messages of 4 MiB. The attempt that goes beyond it is the last one of a page."""
READS_AT_ONCE_MAX = 32
FAILURES = (AttemptEnd.FAILED, AttemptEnd.TIMED_OUT, AttemptEnd.EXPIRED)


@dataclass(frozen=True, slots=True)
class ShownTask:
    """A task with its state, and the last attempts at it, the newest one last, where they were asked for."""

    stored: StoredTask
    state: TaskState
    attempts: tuple[Attempt, ...] = ()

    @property
    def last_error(self) -> str:
        """Why the last attempt that has failed did, or why it could not be dispatched; "": none has."""
        failures = (attempt.reason for attempt in reversed(self.attempts) if _failed(attempt))
        return next(failures, "") or self.stored.facts.failed_reason


@dataclass(frozen=True, slots=True)
class AttemptPage:
    """Attempts in their order. `next_page_token` "": there are no more."""

    attempts: list[Attempt]
    next_page_token: str


class Executions:
    """Reads the execution log."""

    def __init__(self, store: TaskStore, directory: Directory) -> None:
        self._store, self._directory = store, directory
        self._at_once = asyncio.Semaphore(READS_AT_ONCE_MAX)

    async def shown(self, stored: StoredTask) -> ShownTask:
        """The task with its last attempts. Raises Unavailable."""
        if not _begun(stored) or not await self._tracked(stored):
            return shown_by_facts(stored)
        log = await self._read(stored, ATTEMPTS_SHOWN_MAX)
        return ShownTask(stored, _state(stored, log), tuple(log))

    async def states(self, tasks: Sequence[StoredTask]) -> list[ShownTask]:
        """The tasks without their attempts. Raises Unavailable."""
        return await asyncio.gather(*(self._with_state(stored) for stored in tasks))

    async def page(self, namespace_id: bytes, task_id: bytes, size: int, token: str) -> AttemptPage:
        """A page of at most `size` (0: 100) attempts. Raises InvalidArgument, Unavailable."""
        check_range(size, 0, PAGE_MAX, "page_size")
        after = _place_of(token)
        log = await self._store.attempts(namespace_id, task_id)
        rest = [attempt for attempt in log if (attempt.generation, attempt.attempt) > after]
        page, page_bytes = [], 0
        for attempt in rest[: size or PAGE_DEFAULT]:
            page.append(attempt)
            page_bytes += _bytes(attempt)
            if page_bytes >= PAGE_BYTES_MAX:
                break
        return AttemptPage(page, f"{page[-1].generation}.{page[-1].attempt}" if len(page) < len(rest) else "")

    async def _with_state(self, stored: StoredTask) -> ShownTask:
        shown = shown_by_facts(stored)
        if shown.state is not TaskState.DISPATCHED or not await self._tracked(stored):
            return shown
        async with self._at_once:
            return ShownTask(stored, _state(stored, await self._read(stored, 1)))

    async def _read(self, stored: StoredTask, limit: int) -> list[Attempt]:
        return await self._store.attempts(stored.row.namespace_id, stored.row.task_id, limit)

    async def _tracked(self, stored: StoredTask) -> bool:
        body = stored.row.body
        if not body.queue:  # it can't be decoded
            return False
        try:
            return (await self._directory.queue(body.namespace, body.queue)).tracks_outcomes
        except NotFound:
            return False


def shown_by_facts(stored: StoredTask) -> ShownTask:
    """The task with the state that its row tells."""
    return ShownTask(stored, fold(stored.facts, stored.row.attempt))


def _state(stored: StoredTask, log: Sequence[Attempt]) -> TaskState:
    row, state = stored.row, fold(stored.facts, stored.row.attempt)
    if state is not TaskState.DISPATCHED or not log:
        return state
    last = log[-1]
    at_work = (last.generation, last.attempt) == (row.generation, row.attempt) and last.started_ms and last.end is None
    return TaskState.RUNNING if at_work else state


def _begun(stored: StoredTask) -> bool:
    """True if there may be entries of the log."""
    return stored.facts.dispatched_ms is not None or (stored.row.generation, stored.row.attempt) != (0, 1)


def _failed(attempt: Attempt) -> bool:
    return attempt.end in FAILURES


def _bytes(attempt: Attempt) -> int:
    texts = (attempt.worker, attempt.error_type, attempt.error_message, attempt.error_trace)
    return len(attempt.result) + sum(len(text) if text.isascii() else len(text.encode()) for text in texts)


def _place_of(token: str) -> tuple[int, int]:
    """Generation and attempt behind which a page begins."""
    generation, point, attempt = (token or "0.0").partition(".")
    if not (point and all(part.isascii() and part.isdigit() and len(part) <= 10 for part in (generation, attempt))):
        raise InvalidArgument("page_token", "must be the next_page_token of an answer")
    return int(generation), int(attempt)
