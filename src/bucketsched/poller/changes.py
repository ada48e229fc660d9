"""Changes of single tasks, near or far: every one is the owner's, and is journaled in the lane's stream."""

from __future__ import annotations

import asyncio

from ..core import task_id as ids
from ..core.errors import Unavailable
from ..core.task import FactKind, RowRef, StoredTask, TaskRow
from ..core.waiting import first_of
from ..ports import CancelResult, Clock, HintAnswer, TaskStore
from .batch import Mutation
from .dispatcher import Dispatcher
from .limits import ADMISSION_S_MAX
from .marker import Marker
from .owned_range import QUEUED, OwnedRange, Phase, kind_of

HOPS_MAX = 8
SHOWN_S_MAX = 1.0
"""How long a confirmed change waits to be visible to readers of the store."""

_RESULTS = {
    FactKind.DISPATCHED: CancelResult.ALREADY_DISPATCHED,
    FactKind.CANCELLED: CancelResult.ALREADY_CANCELLED,
    FactKind.FAILED: CancelResult.ALREADY_FAILED,
}


class Changes:
    """One per lane."""

    def __init__(self, store: TaskStore, dispatcher: Dispatcher, marker: Marker, clock: Clock) -> None:
        self._store, self._dispatcher, self._marker, self._clock = store, dispatcher, marker, clock

    async def cancel(self, owned: OwnedRange, namespace_id: bytes, task_id: bytes) -> CancelResult:
        """Raises Refused where the range was lost meanwhile, Unavailable."""
        due_ms, generation = ids.home_of(task_id).due_ms, 0
        for _ in range(HOPS_MAX):
            read = owned.begin_read()
            try:
                ref = RowRef(due_ms, namespace_id, task_id, generation, 1).pack()
                if owned.status(ref) != QUEUED:
                    stored = await self._store.get(due_ms, namespace_id, task_id)
                    if stored is None:
                        return CancelResult.NOT_FOUND
                    if stored.facts.moved_to_ms is not None:
                        due_ms, generation = stored.facts.moved_to_ms, generation + 1
                        continue
                    if stored.facts.settled:
                        return _RESULTS[kind_of(stored.facts)]
                kind, offset = await self._journal(Mutation(owned, ref, FactKind.CANCELLED, _future()))
            finally:
                owned.end_read(read)
            if kind is FactKind.MOVED:
                await self._shown(owned, self._dispatcher.last[0])
                continue
            if offset < 0:
                return _RESULTS[kind]
            await self._shown(owned, offset)
            return CancelResult.CANCELLED
        raise Unavailable("the task moves too often")

    async def admit(self, owned: OwnedRange, row: TaskRow) -> HintAnswer:
        """Sees to it that a stored row, late or unknown here, is dispatched. Raises Refused, Unavailable.

        TAKEN is proved by a committed record: that it was dispatched, cancelled or moved. A memory could be that of a
        former owner, whose successor has closed the bucket. Into a closed bucket nothing is admitted any more: the row
        moves to now.
        """
        read = owned.begin_read()
        try:
            stored = await self._store.get(row.due_ms, row.namespace_id, row.task_id)
            if stored is None:
                return HintAnswer.NO_ROW
            if owned.phase is not Phase.ACTIVE:
                return HintAnswer.NOT_READY
            if stored.facts.settled or owned.status(stored.row.ref) not in (None, QUEUED):
                return HintAnswer.TAKEN
            if owned.is_open(row.bucket):
                owned.admit(stored)
                self._dispatcher.wake.set()
                return await self._settled(owned, stored.row.ref)
            if row.due_ms > self._clock.now_ms():
                return HintAnswer.NOT_READY  # its bucket was closed while the clock was ahead: it will be open again
            return await self._move(owned, stored)
        finally:
            owned.end_read(read)

    async def _settled(self, owned: OwnedRange, ref: bytes) -> HintAnswer:
        """Waits for the record; NOT_READY where it does not come in time (the row stays queued all the same)."""
        settled = asyncio.Event()
        owned.watch(ref, settled.set)
        try:
            await first_of(settled, self._clock, ADMISSION_S_MAX)
        finally:
            owned.unwatch(ref, settled.set)
        return HintAnswer.TAKEN if settled.is_set() else HintAnswer.NOT_READY

    async def _move(self, owned: OwnedRange, stored: StoredTask) -> HintAnswer:
        """To now, one generation up: journal, then the new row, then the home row's pointer, then the answer."""
        row = stored.row
        now_ms = self._clock.now_ms()
        successor = TaskRow(now_ms, row.namespace_id, row.task_id, row.body, row.generation + 1, row.attempt)
        change = Mutation(owned, row.ref, FactKind.MOVED, _future(), successor)
        self._dispatcher.submit(change)
        answered = asyncio.Event()

        def note(done: asyncio.Future[tuple[FactKind, int]]) -> None:
            done.exception()  # whoever stops waiting must not leave it unseen
            answered.set()

        change.done.add_done_callback(note)
        await first_of(answered, self._clock, ADMISSION_S_MAX)
        if not answered.is_set():
            return HintAnswer.NOT_READY
        _, offset = change.done.result()
        if offset >= 0:
            await self._marker.reached(owned, offset)
        return HintAnswer.TAKEN

    async def _journal(self, change: Mutation) -> tuple[FactKind, int]:
        self._dispatcher.submit(change)
        return await change.done

    async def _shown(self, owned: OwnedRange, offset: int) -> None:
        try:
            await asyncio.wait_for(self._marker.reached(owned, offset), SHOWN_S_MAX)
        except TimeoutError:
            pass  # it is confirmed by the journal; the store will show it once it can be reached


def _future() -> asyncio.Future[tuple[FactKind, int]]:
    return asyncio.get_running_loop().create_future()
