"""Changes of single tasks, near or far: every one is the owner's, and is journaled in the lane's stream."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from ..core import task_id as ids
from ..core.errors import Unavailable
from ..core.execution import Attempt, AttemptEnd, AttemptReport, EndResult
from ..core.notice_rule import NoticeEvent
from ..core.retry import DEFAULT_RETRY, RetryPolicy, next_try_ms
from ..core.task import FactKind, RowRef, Stage, StoredTask, TaskRow, at_stage, bucket_of
from ..core.task_change import ChangeResult, TaskChange
from ..core.waiting import first_of
from ..encoding.attempts import encode_outcome
from ..encoding.rows import encode_body
from ..ports import CancelResult, Changed, Clock, HintAnswer, TaskStore
from .batch import Mutation, Refused
from .dispatcher import Dispatcher
from .limits import ADMISSION_S_MAX
from .marker import Marker
from .notifier import Notifier
from .owned_range import MARKED, QUEUED, OwnedRange, Phase, kind_of
from .queue_directory import QueueDirectory
from .successors import successor

TRIES_MAX = 8
"""How often a change is tried again because another one came before it."""
HOPS_MAX = 32
"""Places of one task that a look-up follows. Home rows name the newest place, so that one is usual."""
PLACES_TRIED_MAX = 64
SHOWN_S_MAX = 1.0
"""How long a confirmed change waits to be visible to readers of the store."""
DISPATCHED = (FactKind.DISPATCHED, FactKind.DISPATCHED + MARKED)
RETRIED_ENDS = (AttemptEnd.FAILED, AttemptEnd.TIMED_OUT)
"""Those that may be followed by another attempt."""
EVENTS = {
    AttemptEnd.SUCCEEDED: NoticeEvent.SUCCEEDED,
    AttemptEnd.EXPIRED: NoticeEvent.EXPIRED,
    AttemptEnd.FAILED: NoticeEvent.DEAD_LETTERED,
    AttemptEnd.TIMED_OUT: NoticeEvent.DEAD_LETTERED,
}
AGAIN = (FactKind.FAILED, FactKind.EXPIRED)
"""What a task is that can be done all over."""

_CANCEL_RESULTS = {
    FactKind.DISPATCHED: CancelResult.ALREADY_DISPATCHED,
    FactKind.CANCELLED: CancelResult.ALREADY_CANCELLED,
    FactKind.FAILED: CancelResult.ALREADY_FAILED,
    FactKind.SUCCEEDED: CancelResult.ALREADY_SUCCEEDED,
    FactKind.EXPIRED: CancelResult.ALREADY_EXPIRED,
}
_CHANGE_RESULTS = {
    FactKind.DISPATCHED: ChangeResult.ALREADY_DISPATCHED,
    FactKind.CANCELLED: ChangeResult.ALREADY_CANCELLED,
    FactKind.FAILED: ChangeResult.ALREADY_FAILED,
    FactKind.SUCCEEDED: ChangeResult.ALREADY_SUCCEEDED,
    FactKind.EXPIRED: ChangeResult.ALREADY_EXPIRED,
}


class Changes:
    """One per lane."""

    def __init__(
        self,
        store: TaskStore,
        dispatcher: Dispatcher,
        marker: Marker,
        queues: QueueDirectory,
        notifier: Notifier,
        clock: Clock,
    ) -> None:
        self._store, self._dispatcher, self._marker, self._clock = store, dispatcher, marker, clock
        self._queues, self._notifier = queues, notifier

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
                    if _went_on(owned, stored.row.ref):
                        await self._shown(owned, self._dispatcher.last[0])
                        continue
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
                if _went_on(owned, row.ref):
                    await self._shown(owned, self._dispatcher.last[0])
                    continue
                again = change.again and stored.facts.settled and kind_of(stored.facts) in AGAIN
                if stored.facts.settled and not again:
                    return Changed(_CHANGE_RESULTS[kind_of(stored.facts)], row)
                body = change.applied_to(row.body)
                if change.generation not in (None, row.generation):
                    made = change.generation == row.generation - 1 and body == row.body  # its answer was lost
                    return Changed(ChangeResult.CHANGED if made else ChangeResult.OTHER_GENERATION, row)
                as_asked = body == row.body or change.again  # of one that waits nothing is done again
                if as_asked and not again and owned.status(row.ref) in (None, QUEUED):
                    return Changed(ChangeResult.CHANGED, row)
                ref = at_stage(row.ref, Stage.REDRIVE) if again else row.ref
                waits_on = change.due_ms is None and not again and row.attempt > 1  # a retry, for its own due time
                wanted_ms = row.due_ms if waits_on else body.nominal_due_ms
                due_ms = await self._place(owned, row, max(wanted_ms, self._clock.now_ms()))
                moved = successor(ref, due_ms, body)
                mutation = Mutation(owned, ref, FactKind.MOVED, _future(), moved, encode_body(body))
                kind, offset = await self._journal(mutation)
            finally:
                owned.end_read(read)
            if offset >= 0:
                await self._shown(owned, offset)
                return Changed(ChangeResult.CHANGED, moved)
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

    async def finish(self, owned: OwnedRange, report: AttemptReport) -> EndResult:
        """How a dispatched attempt has ended: the first report of it that is journaled counts.

        One that is repeated because its answer was lost is taken again. Raises Refused, Unavailable.
        """
        attempt = report.attempt
        place = report.row_due_ms, attempt.namespace_id, attempt.task_id
        ref = RowRef(*place, attempt.generation, attempt.attempt).pack()
        read = owned.begin_read()
        try:
            ended = owned.status(at_stage(ref, Stage.OUTCOME)) is not None
            row: TaskRow | None = None
            if not ended and (owned.status(ref) not in DISPATCHED or await self._concerns_row(report)):
                stored = await self._store.get(*place)
                if stored is None or stored.row.ref != ref:
                    if owned.status(ref) in DISPATCHED:
                        raise Unavailable("the attempt's row is yet to be stored")
                    return EndResult.NOT_FOUND
                if not stored.facts.settled and owned.status(ref) not in DISPATCHED:
                    if stored.row.due_ms <= self._clock.now_ms():
                        raise Unavailable("it is not known yet whether the attempt was dispatched")
                    return EndResult.NOT_FOUND
                row, ended = stored.row, stored.facts.settled and kind_of(stored.facts) is not FactKind.DISPATCHED
            if not ended:
                mutation = await self._outcome(owned, ref, report, row)
                _, offset = await self._journal(mutation)
                if offset >= 0:
                    if mutation.successor is not None:
                        await self._shown(owned, offset)  # as it may be dispatched soon, and end
                    return EndResult.TAKEN
        finally:
            owned.end_read(read)
        return await self._repeated(owned, attempt)

    async def _concerns_row(self, report: AttemptReport) -> bool:
        """True if the row has to be known: there may be another attempt, or somebody is told. Raises Unavailable."""
        attempt = report.attempt
        assert attempt.end is not None, attempt
        if attempt.end in RETRIED_ENDS or report.notices:
            return True
        await self._know(attempt.namespace_id, report.queue)
        return self._notifier.queue_wants(attempt.namespace_id, report.queue, EVENTS[attempt.end])

    async def _know(self, namespace_id: bytes, queue: str) -> None:
        """Its policy and its notices can be asked for afterwards. Raises Unavailable."""
        if not self._queues.known(namespace_id, queue) and not await self._queues.fetch(namespace_id, queue):
            raise Unavailable("the queue can't be read now")

    async def _outcome(self, owned: OwnedRange, ref: bytes, report: AttemptReport, row: TaskRow | None) -> Mutation:
        """What is journaled of a report. `row`: the attempt's, where its failure may be followed by another one."""
        attempt, outcome = report.attempt.clipped(), at_stage(ref, Stage.OUTCOME)
        assert attempt.end is not None, attempt
        if row is not None:
            await self._know(row.namespace_id, row.body.queue)  # a taker may not have met it
        if attempt.end not in RETRIED_ENDS:
            kind = FactKind.SUCCEEDED if attempt.end is AttemptEnd.SUCCEEDED else FactKind.EXPIRED
            told = self._notifier.of(row, EVENTS[attempt.end], attempt) if row is not None else ()
            return Mutation(owned, outcome, kind, _future(), None, encode_outcome(attempt), attempt, told)
        assert row is not None, report
        due_ms = self._retry_due_ms(report, row, self._policy(row))
        if due_ms is None:
            told = self._notifier.of(row, NoticeEvent.DEAD_LETTERED, attempt)
            return Mutation(owned, outcome, FactKind.FAILED, _future(), None, encode_outcome(attempt), attempt, told)
        due_ms = await self._place(owned, row, due_ms)
        attempt = replace(attempt, retry_ms=due_ms)
        told = self._notifier.of(row, NoticeEvent.ATTEMPT_FAILED, attempt)
        again = successor(outcome, due_ms, row.body)
        return Mutation(owned, outcome, FactKind.RETRIED, _future(), again, encode_outcome(attempt), attempt, told)

    def _retry_due_ms(self, report: AttemptReport, row: TaskRow, policy: RetryPolicy) -> int | None:
        """When the next attempt is due; None: there is none any more."""
        attempt = report.attempt
        if report.final or attempt.error_type in policy.final_errors:
            return None
        elapsed_ms = max(0, attempt.ended_ms - row.body.nominal_due_ms)
        pause_ms = next_try_ms(policy, row.attempt, elapsed_ms, report.pause_ms_least, row.ref)
        if pause_ms is None:
            return None
        due_ms = max(attempt.ended_ms + pause_ms, self._clock.now_ms())
        return None if 0 < row.body.expires_ms < due_ms else due_ms

    def _policy(self, row: TaskRow) -> RetryPolicy:
        """The task's, or its queue's, which is known."""
        if row.body.retry is not None:
            return row.body.retry
        queue = self._queues.get(row.namespace_id, row.body.queue)
        return queue.retry_policy if queue is not None else DEFAULT_RETRY

    async def _repeated(self, owned: OwnedRange, attempt: Attempt) -> EndResult:
        """Whether it was this report that was taken before."""
        await self._shown(owned, self._dispatcher.last[0])
        for known in await self._store.attempts(attempt.namespace_id, attempt.task_id):
            if (known.generation, known.attempt) == (attempt.generation, attempt.attempt):
                same = replace(known, retry_ms=0) == replace(attempt.clipped(), retry_ms=0)
                return EndResult.TAKEN if same else EndResult.ALREADY_ENDED
        return EndResult.ALREADY_ENDED

    async def _place(self, owned: OwnedRange, row: TaskRow, due_ms: int) -> int:
        """Where a task that was in this row goes: at that time, or a little later where it has been before."""
        if not owned.is_open(bucket_of(due_ms)):
            raise Refused(HintAnswer.NOT_READY)  # it is closing, or was closed while the clock was ahead
        if owned.begun(bucket_of(due_ms)) and not owned.spare_rows:
            raise Unavailable("too many tasks are due about then: no memory for another")
        for _ in range(PLACES_TRIED_MAX):
            if due_ms != row.due_ms and await self._store.get(due_ms, row.namespace_id, row.task_id) is None:
                return due_ms
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
        moved = successor(row.ref, now_ms, row.body)
        change = Mutation(owned, row.ref, FactKind.MOVED, _future(), moved)
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
        """Returns once the store shows it, or some time later: the journal has confirmed it, the store will."""
        shown = asyncio.Event()
        waiting = asyncio.create_task(self._marker.reached(owned, offset))
        waiting.add_done_callback(lambda _: shown.set())
        try:
            await first_of(shown, self._clock, SHOWN_S_MAX)
        finally:
            waiting.cancel()


def _went_on(owned: OwnedRange, ref: bytes) -> bool:
    """True if the task has gone on from this row, by a record that the store may not show yet."""
    later = (owned.status(at_stage(ref, stage)) for stage in Stage)
    return any(status is not None and status % MARKED in (FactKind.RETRIED, FactKind.MOVED) for status in later)


def _future() -> asyncio.Future[tuple[FactKind, int]]:
    return asyncio.get_running_loop().create_future()
