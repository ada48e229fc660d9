"""Writes what the journal says beside the rows: lazily, in the journal's order, until it succeeds."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from ..core import failpoints
from ..core.errors import Unavailable
from ..core.task import Mark, TaskRow
from ..ports import Clock, TaskStore
from .limits import LaneLimits
from .waiting import first_of

log = structlog.get_logger(__name__)
RETRY_S_MAX = 2.0
BATCH_MARKS_MAX = 20_000


@dataclass(slots=True)
class Consequences:
    """What a committed record asks of the store. `successors` are written before the marks that point to them."""

    offset: int
    hash: bytes
    marks: list[Mark]
    successors: list[TaskRow] = field(default_factory=list)
    landed: Callable[[], None] | None = None


class Marker:
    """One per lane. `applied` is the last record whose consequences, and those of all before it, are stored."""

    def __init__(self, store: TaskStore, clock: Clock, limits: LaneLimits) -> None:
        self._store, self._clock, self._limits = store, clock, limits
        self._waiting: deque[Consequences] = deque()
        self._marks_waiting = 0
        self._wake = asyncio.Event()
        self._stored = asyncio.Condition()
        self._hurry = False
        self.applied: tuple[int, bytes] = (-1, b"")

    def restart(self, offset: int, value_hash: bytes) -> None:
        """The lane begins anew behind this record of its own journal."""
        assert not self._waiting
        self.applied = (offset, value_hash)

    def add(self, consequences: Consequences) -> None:
        """Takes the consequences of the next committed record."""
        self._waiting.append(consequences)
        self._marks_waiting += len(consequences.marks)
        if self._marks_waiting >= BATCH_MARKS_MAX:
            self.hurry()

    @property
    def full(self) -> bool:
        """True if so much is unwritten that the lane must wait."""
        return self._marks_waiting >= self._limits.marks_waiting_max

    def hurry(self) -> None:
        """Somebody waits: write now."""
        self._hurry = True
        self._wake.set()

    async def reached(self, offset: int) -> None:
        """Returns when the consequences of all records up to `offset` are stored."""
        self.hurry()
        async with self._stored:
            await self._stored.wait_for(lambda: self.applied[0] >= offset or not self._waiting)

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            if not self._hurry:
                await first_of(self._wake, self._clock, self._limits.mark_interval_ms / 1000)
            self._wake.clear()
            self._hurry = False
            await self.flush()

    async def flush(self) -> None:
        """Writes all that waits. Repeats for as long as the store is unavailable."""
        while self._waiting:
            batch = self._batch()
            await self._write(batch)
            failpoints.reach("dispatch.marked")
            for done in batch:
                self._waiting.popleft()
                self._marks_waiting -= len(done.marks)
                self.applied = (done.offset, done.hash)
                if done.landed:
                    done.landed()
            async with self._stored:
                self._stored.notify_all()

    def _batch(self) -> list[Consequences]:
        batch: list[Consequences] = []
        size = 0
        for waiting in self._waiting:
            if batch and size + len(waiting.marks) > BATCH_MARKS_MAX:
                break
            batch.append(waiting)
            size += len(waiting.marks)
        return batch

    async def _write(self, batch: list[Consequences]) -> None:
        pause = 0.05
        while True:
            try:
                await write_consequences(
                    self._store, [r for c in batch for r in c.successors], [m for c in batch for m in c.marks]
                )
                return
            except Unavailable as error:
                log.warning("marks wait for the store", error=str(error), waiting=self._marks_waiting)
                await self._clock.sleep(pause)
                pause = min(2 * pause, RETRY_S_MAX)


async def write_consequences(store: TaskStore, successors: list[TaskRow], marks: list[Mark]) -> None:
    """Writes successors, then marks. Idempotent. Raises Unavailable."""
    if successors:
        for answer in await store.insert(successors):
            if answer is not None:
                raise Unavailable(f"a moved row could not be written: {answer}")
        failpoints.reach("move.row-written")
    if marks:
        await store.mark(marks)
