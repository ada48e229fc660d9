"""Changes of single tasks, near or far: every one is the owner's, and is journaled in the lane's stream."""

from __future__ import annotations

import asyncio

from ..core import task_id as ids
from ..core.errors import Unavailable
from ..core.task import FactKind, RowRef, StoredTask, TaskBody, TaskRow, bucket_of
from ..core.task_change import ChangeResult, TaskChange
from ..core.waiting import first_of
from ..encoding.rows import encode_body
from ..ports import CancelResult, Changed, Clock, HintAnswer, TaskStore
from .batch import Mutation, Refused
from .dispatcher import Dispatcher
from .limits import ADMISSION_S_MAX
from .marker import Marker
from .owned_range import QUEUED, OwnedRange, Phase, kind_of

TRIES_MAX = 8
"""How often a change is tried again because another one came before it."""
HOPS_MAX = 32
"""Places of one task that a look-up follows. Home rows name the newest place, so that one is usual."""
PLACES_TRIED_MAX = 64
SHOWN_S_MAX = 1.0
"""How long a confirmed change waits to be visible to readers of the store."""

_CANCEL_RESULTS = {
    FactKind.DISPATCHED: CancelResult.ALREADY_DISPATCHED,
    FactKind.CANCELLED: CancelResult.ALREADY_CANCELLED,
    FactKind.FAILED: CancelResult.ALREADY_FAILED,
}
_CHANGE_RESULTS = {
    FactKind.DISPATCHED: ChangeResult.ALREADY_DISPATCHED,
    FactKind.CANCELLED: ChangeResult.ALREADY_CANCELLED,
    FactKind.FAILED: ChangeResult.ALREADY_FAILED,
}


class Changes:
    """One per lane."""

    def __init__(self, store: TaskStore, dispatcher: Dispatcher, marker: Marker, clock: Clock) -> None:
        self._store, self._dispatcher, self._marker, self._clock = store, dispatcher, marker, clock

    async def cancel(self, owned: OwnedRange, namespace_id: bytes, task_id: bytes) -> CancelResult:
        """Raises Refused where the range was lost meanwhile, Unavailable."""
        home = RowRef(ids.home_of(task_id).due_ms, namespace_id, task_id, 0, 1).pack()
        for _ in range(TRIES_MAX):
            read = owned.begin_read()
            try:
                ref = home
                if owned.status(home) != QUEUED:
                    stored = await self._live(namespace_id, task_id)
                    if stored is None:
                        return CancelResult.NOT_FOUND
                    if stored.facts.settled:
                        return _CANCEL_RESULTS[kind_of(stored.facts)]
                    ref = stored.row.ref
                kind, offset = await self._journal(Mutation(owned, ref, FactKind.CANCELLED, _future()))
            finally:
                owned.end_read(read)
            if kind is FactKind.MOVED:
                await self._shown(owned, self._dispatcher.last[0])
                continue
            if offset < 0:
                return _CANCEL_RESULTS[kind]
            await self._shown(owned, offset)
            return CancelResult.CANCELLED
        raise Unavailable("the task moves too often")

    async def change(self, owned: OwnedRange, namespace_id: bytes, task_id: bytes, change: TaskChange) -> Changed:
        """The task as it was asked to be: a new row one generation up, and the old one never goes.

        What is so already is not done again. Raises Refused where the range was lost meanwhile, Unavailable.
        """
        for _ in range(TRIES_MAX):
            read = owned.begin_read()
            try:
                stored = await self._live(namespace_id, task_id)
                if stored is None or not stored.row.body.type:
                    return Changed(ChangeResult.NOT_FOUND)
                row = stored.row
                if stored.facts.settled:
                    return Changed(_CHANGE_RESULTS[kind_of(stored.facts)], row)
                if change.generation not in (None, row.generation):
                    return Changed(ChangeResult.OTHER_GENERATION, row)
                body = change.applied_to(row.body)
                if body == row.body and owned.status(row.ref) in (None, QUEUED):
                    return Changed(ChangeResult.CHANGED, row)
                successor = await self._placed(owned, row, body)
                mutation = Mutation(owned, row.ref, FactKind.MOVED, _future(), successor, encode_body(body))
                kind, offset = await self._journal(mutation)
            finally:
                owned.end_read(read)
            if offset >= 0:
                await self._shown(owned, offset)
                return Changed(ChangeResult.CHANGED, successor)
            if kind is not FactKind.MOVED:
                return Changed(_CHANGE_RESULTS[kind], row)
            await self._shown(owned, self._dispatcher.last[0])
        raise Unavailable("the task moves too often")

    async def _live(self, namespace_id: bytes, task_id: bytes) -> StoredTask | None:
        """The task's newest row, as far as the store knows."""
        due_ms = ids.home_of(task_id).due_ms
        for _ in range(HOPS_MAX):
            stored = await self._store.get(due_ms, namespace_id, task_id)
            if stored is None or stored.facts.moved_to_ms is None:
                return stored
            due_ms = stored.facts.moved_to_ms
        raise Unavailable("the task's row is being moved")

    async def _placed(self, owned: OwnedRange, row: TaskRow, body: TaskBody) -> TaskRow:
        """Where the task goes: at its due time, or a little later where the task has been before."""
        due_ms = max(body.nominal_due_ms, self._clock.now_ms())
        if not owned.is_open(bucket_of(due_ms)):
            raise Refused(HintAnswer.NOT_READY)  # it is closing, or was closed while the clock was ahead
        if owned.begun(bucket_of(due_ms)) and not owned.spare_rows:
            raise Unavailable("too many tasks are due about then: no memory for another")
        for _ in range(PLACES_TRIED_MAX):
            if due_ms != row.due_ms and await self._store.get(due_ms, row.namespace_id, row.task_id) is None:
                return TaskRow(due_ms, row.namespace_id, row.task_id, body, row.generation + 1, row.attempt)
            due_ms += 1
        raise Unavailable("the task was moved to about this time too often")

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
