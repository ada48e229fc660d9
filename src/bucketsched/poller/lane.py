"""A lane: the façade of the poller. It takes and gives up ranges, and answers for them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog

from ..core import task_id as ids
from ..core.checkpoint import Checkpoint
from ..core.cluster import ClusterConstants
from ..core.errors import OwnershipLost, Unavailable
from ..core.execution import AttemptReport, EndResult
from ..core.journal_record import JournalCorrupt
from ..core.task import TaskRow
from ..core.task_change import TaskChange
from ..ports import (
    CancelResult,
    Catalog,
    Changed,
    CheckpointStore,
    Clock,
    HintAnswer,
    Journal,
    Lease,
    Leases,
    RangeReport,
    TaskStore,
)
from .alarms import Alarms
from .batch import Refused
from .changes import Changes
from .checkpointer import Checkpointer
from .closer import Closer
from .dispatcher import Dispatcher, LaneLost
from .figures import LaneCounters, LaneState
from .hand_over import HandOver
from .limits import HINT_TRUST_MS, LaneLimits
from .loader import Loader
from .marker import Marker
from .owned_range import OwnedRange, Phase
from .preload import Preloads
from .queue_directory import QueueDirectory
from .rescanner import Rescanner
from .takeover import JournalMismatch, PreloadStale, Takeover
from .takings import Taking, Takings

log = structlog.get_logger(__name__)
Result = TypeVar("Result")
RETRY_S_MIN, RETRY_S_MAX = 0.1, 2.0
ADMISSIONS_AT_ONCE_MAX = 256
"""Hinted rows that are late, each of which is read by itself; further ones wait."""


class Lane:
    """One per process with the poller role. `start`, then `run`; `take` and `give_up` at any time in between."""

    def __init__(
        self,
        constants: ClusterConstants,
        journal: Journal,
        leases: Leases,
        store: TaskStore,
        checkpoints: CheckpointStore,
        catalog: Catalog,
        clock: Clock,
        limits: LaneLimits,
        counters: LaneCounters | None = None,
    ) -> None:
        self._counters = counters or LaneCounters()
        self._constants, self._journal, self._leases, self._clock = constants, journal, leases, clock
        self._limits = limits
        self._admissions = asyncio.Semaphore(ADMISSIONS_AT_ONCE_MAX)
        self._ranges: dict[int, OwnedRange] = {}
        self._unwanted: set[int] = set()
        self._takings = Takings(clock, self._counters)
        shadows: dict[int, OwnedRange] = {}
        self._marker = Marker(store, clock, limits)
        self._queues = QueueDirectory(catalog, clock)
        self.dispatcher = Dispatcher(
            self._ranges, journal, leases, self._marker, self._queues, clock, limits, self._counters
        )
        wake = self.dispatcher.wake.set
        self._loader = Loader(self._ranges, shadows, store, clock, limits, constants.horizon_ms, wake)
        self.dispatcher.drained = self._loader.drained
        self._rescanner = Rescanner(self._ranges, store, clock, limits, self._counters)
        self._checkpointer = Checkpointer(self._ranges, checkpoints, journal, self._marker, clock, limits)
        self._closer = Closer(self._ranges, store, self.dispatcher, self._marker, clock, constants.grace_ms)
        self._changes = Changes(store, self.dispatcher, self._marker, self._queues, self.dispatcher.notifier, clock)
        self._preloads = Preloads(shadows, checkpoints, self._loader, clock, self._unread)
        self._hand_over = HandOver(self._ranges, leases, self.dispatcher, self._marker, self._checkpointer, clock)
        self._takeover = Takeover(
            journal,
            leases,
            store,
            checkpoints,
            clock,
            self.dispatcher.reinitialise,
            lambda: self.dispatcher.last,
            self._loader.wake.set,
        )
        self._alarms = Alarms(
            self._ranges, checkpoints, clock, self._takeover.orders, self._retry, constants.retention_ms
        )

    @property
    def ranges(self) -> set[int]:
        """The ranges that this lane holds a lease on, active or not."""
        return set(self._ranges)

    def active(self) -> set[int]:
        """The ranges that it dispatches for."""
        return {owned.range_id for owned in self._ranges.values() if owned.phase is Phase.ACTIVE}

    def alarmed(self) -> set[int]:
        """The ranges that stand still because their journal is not what it was."""
        return {owned.range_id for owned in self._ranges.values() if owned.phase is Phase.ALARMED}

    def stuck_s(self) -> float:
        """For how long none of its transactions has got through; 0 where the last one has."""
        since = self.dispatcher.stuck_since
        return 0.0 if since is None else self._clock.monotonic() - since

    def state(self) -> LaneState:
        """How it stands now, for metrics."""
        now_ms, owned = self._clock.now_ms(), list(self._ranges.values())
        active = [one for one in owned if one.phase is Phase.ACTIVE]
        oldest_ms = min((one.oldest_undone_ms(now_ms) for one in active), default=now_ms)
        return LaneState(
            ranges=Counter(one.phase.value for one in owned),
            heap_rows=sum(len(one.heap) for one in owned),
            ready_rows=self.dispatcher.ready_rows,
            resident_bytes=self._loader.resident_bytes(),
            marks_waiting=self._marker.marks_waiting,
            changes_waiting=self.dispatcher.changes_waiting,
            checkpoint_age_s=self._checkpointer.age_s(),
            oldest_undispatched_age_s=(now_ms - oldest_ms) / 1000,
            retention_used=(now_ms - oldest_ms) / self._constants.retention_ms,
        )

    def reports(self) -> list[RangeReport]:
        """How each range stands, for operators."""
        return [RangeReport(o.range_id, o.epoch, o.phase.value, o.resident_rows) for o in self._ranges.values()]

    # ---- life

    async def start(self) -> None:
        """Fences the slot's former owners. Raises Unavailable, LaneLost."""
        await self.dispatcher.begin()

    async def run(self) -> None:
        """Works until cancelled. Raises LaneLost when the slot or the session is gone."""
        loops = [
            self.dispatcher.run(),
            self._marker.run(),
            self._loader.run(),
            self._checkpointer.run(),
            self._rescanner.run(self._found),
            self._closer.run(),
            self._queues.run(),
            self._alarms.run(),
        ]
        tasks = [asyncio.create_task(loop) for loop in loops]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for owned in self._ranges.values():
                owned.phase = Phase.GONE
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.dispatcher.abandon()

    def _found(self) -> None:
        self.dispatcher.wake.set()
        self._loader.wake.set()

    async def stop(self) -> None:
        """Hands every range over, see HandOver; what was committed is marked.

        Goes on trying where the store or the lease service can't be reached: the caller bounds it.
        """
        while own := [o for o in self._ranges.values() if o.phase in (Phase.ACTIVE, Phase.STOPPING, Phase.ALARMED)]:
            await asyncio.gather(*(self._hand_over.give_up(owned) for owned in own))
            if self.active():
                log.warning(
                    "hand-over waits for the store or the lease service", ranges=len(self.active()), recurring=True
                )
                await self._clock.sleep(RETRY_S_MIN)
        log.info("every range is handed over")

    async def close(self) -> None:
        """Lets go of the journal. After `run` has ended."""
        await self._journal.close()

    # ---- ranges

    async def preload(self, range_id: int) -> bool:
        """Reads what is due soon of a range that is to be taken from a living owner: the move is short then.

        True once that is done; False where it can't be, or the lane has the range.
        """
        return range_id not in self._ranges and await self._preloads.load(range_id)

    @property
    def preloaded(self) -> set[int]:
        """The ranges that it has read ahead of their leases, or is about to."""
        return self._preloads.ranges

    def discard(self, range_id: int) -> None:
        """The range is not to be taken after all."""
        self._preloads.discard([range_id])

    async def take(self, range_id: int) -> None:
        """Becomes the owner of a range. Raises LeaseHeld, Unavailable (no lease taken), OwnershipLost."""
        if range_id in self._ranges:
            return
        taking = self._takings.begin(range_id)
        try:
            owned = await self._take(range_id, taking)
        except BaseException:
            taking.end()
            raise
        if owned.phase is not Phase.ACTIVE:
            taking.end()

    async def _take(self, range_id: int, taking: Taking) -> OwnedRange:
        lease, began = await self._leases.acquire(range_id), self._clock.monotonic()
        taking.done("lease")
        if (preload := self._preloads.taken(range_id)) is not None and preload.owned.epoch < lease.epoch:
            preload.owned.adopt(lease)
            owned, since = preload.owned, preload.checkpoint
        else:
            owned, since = self._unread(lease), None
        self._ranges[range_id] = owned
        owned = await self._recover(owned, taking, since)
        if owned.phase is Phase.ACTIVE:
            taking.kind = "fenced" if lease.predecessors else "released" if since is None else "preloaded"
            self._counters.taken(taking.kind, self._clock.monotonic() - began)
            self._loader.attend(owned, taking.loaded)
            self._found()
            if await self._rescanner.scan(owned):
                self._found()
        return owned

    def _unread(self, lease: Lease) -> OwnedRange:
        shards = self._constants.shards_of(lease.range_id)
        return OwnedRange(lease, shards, self._limits.heap_rows_max, self._crowded, self._queues.expect)

    async def _recover(self, owned: OwnedRange, taking: Taking, since: Checkpoint | None = None) -> OwnedRange:
        """Until the range is served, lost, or stands still. `since`: the checkpoint that its preload began with.

        At a failure what was read ahead is thrown away: the range that is returned may be another object.
        """
        pause = RETRY_S_MIN
        while owned.phase is Phase.RECOVERING:
            try:
                await self._takeover.recover(owned, taking, since)
            except Unavailable as error:
                log.warning("takeover waits", range=owned.range_id, error=str(error), recurring=True)
                owned, since = self._anew(owned), None
                await self._clock.sleep(pause)
                pause = min(2 * pause, RETRY_S_MAX)
                if owned.range_id in self._unwanted and owned.phase is Phase.RECOVERING:
                    owned.phase = Phase.STOPPING  # nothing of it was served, so it need not be fenced for that
            except PreloadStale as stale:
                log.info("a preload is of no use", range=owned.range_id, reason=str(stale))
                owned, since = self._anew(owned), None
            except (JournalMismatch, JournalCorrupt) as error:
                owned, since = self._anew(owned), None  # what was read may be done when it goes on
                owned.phase = Phase.ALARMED
                log.critical("range stands still: its journal does not match its checkpoint", error=str(error))
            except OwnershipLost:
                self.dispatcher.drop(owned)
                raise
            except LaneLost as error:
                self.dispatcher.drop(owned)
                raise OwnershipLost(str(error)) from error
            except Exception:
                self.dispatcher.drop(owned)
                raise
        self._unwanted.discard(owned.range_id)
        if owned.phase is Phase.STOPPING:
            log.warning("a range that could not be taken is given back", range=owned.range_id, epoch=owned.epoch)
            await self._hand_over.give_up(owned)
        return owned

    def _anew(self, owned: OwnedRange) -> OwnedRange:
        """The range without what was read of it before it is served: the next checkpoint may pass some of that."""
        if not owned.opened or owned.phase is not Phase.RECOVERING:
            return owned
        fresh = self._unread(owned.lease)
        fresh.sequence = owned.sequence  # two checkpoints of one order could be mixed
        owned.phase = Phase.GONE
        self._ranges[owned.range_id] = fresh
        return fresh

    async def _retry(self, owned: OwnedRange) -> None:
        """A range that stood still, and whose checkpoint has changed. Raises OwnershipLost."""
        taking = self._takings.begin(owned.range_id)
        try:
            await self._recover(owned, taking)
        finally:
            taking.end()
        self._found()

    def _crowded(self) -> bool:
        """True while there is no memory for hinted rows: the loader comes back for them."""
        return 2 * self._loader.resident_bytes() >= 3 * self._limits.heap_bytes_max

    async def give_up(self, range_id: int) -> None:
        """Hands a range over cleanly, or drops it where it is lost already. See HandOver."""
        self.forgo(range_id)
        if (owned := self._ranges.get(range_id)) is not None:
            await self._hand_over.give_up(owned)

    def forgo(self, range_id: int) -> None:
        """A range that is being taken is not wanted any more: it is given back when the next try to take it fails."""
        if (owned := self._ranges.get(range_id)) is not None and owned.phase is Phase.RECOVERING:
            self._unwanted.add(range_id)

    def want(self, range_id: int) -> None:
        """Takes `forgo` back."""
        self._unwanted.discard(range_id)

    # ---- questions

    def _owned(self, task_id: bytes) -> OwnedRange | HintAnswer:
        owned = self._ranges.get(self._constants.range_of(ids.shard_in(task_id)))
        if owned is None or owned.phase is Phase.GONE:
            return HintAnswer.NOT_OWNER
        return owned if owned.phase is Phase.ACTIVE else HintAnswer.NOT_READY

    async def hint(self, rows: Sequence[TaskRow]) -> list[HintAnswer]:
        """Takes note of stored rows. See RangeOwner."""
        answers: list[HintAnswer | None] = []
        unclear: list[int] = []
        trusted_ms = self._clock.now_ms() - HINT_TRUST_MS
        for index, row in enumerate(rows):
            owned = self._owned(row.task_id)
            answer = owned if isinstance(owned, HintAnswer) else owned.hint(row) if row.due_ms >= trusted_ms else None
            answers.append(answer)
            if answer is None:
                unclear.append(index)
        self.dispatcher.wake.set()
        if unclear:
            late = await asyncio.gather(*(self._admit_in_turn(rows[i]) for i in unclear))
            for index, answered in zip(unclear, late, strict=True):
                answers[index] = answered
        return [answer or HintAnswer.NOT_READY for answer in answers]

    async def _admit_in_turn(self, row: TaskRow) -> HintAnswer:
        async with self._admissions:
            return await self.admit(row)

    async def admit(self, row: TaskRow) -> HintAnswer:
        """Sees to it that a late row is dispatched. See RangeOwner."""
        owned = self._owned(row.task_id)
        if isinstance(owned, HintAnswer):
            return owned
        try:
            return await self._changes.admit(owned, row)
        except Refused as refused:
            return refused.answer
        except Unavailable:
            self._rescanner.hurry()
            return HintAnswer.NOT_READY

    async def cancel(self, namespace_id: bytes, task_id: bytes) -> CancelResult | HintAnswer:
        """Cancels a task, near or far. See RangeOwner."""
        return await self._changed(task_id, lambda owned: self._changes.cancel(owned, namespace_id, task_id))

    async def change(self, namespace_id: bytes, task_id: bytes, change: TaskChange) -> Changed | HintAnswer:
        """Changes a task that waits, near or far. See RangeOwner."""
        return await self._changed(task_id, lambda owned: self._changes.change(owned, namespace_id, task_id, change))

    async def finish(self, reports: Sequence[AttemptReport]) -> list[EndResult | HintAnswer]:
        """How dispatched attempts have ended. See RangeOwner."""
        return list(await asyncio.gather(*(self._finish(report) for report in reports)))

    async def _finish(self, report: AttemptReport) -> EndResult | HintAnswer:
        return await self._changed(report.attempt.task_id, lambda owned: self._changes.finish(owned, report))

    async def _changed(self, task_id: bytes, change: Callable[[OwnedRange], Awaitable[Result]]) -> Result | HintAnswer:
        owned = self._owned(task_id)
        if isinstance(owned, HintAnswer):
            return owned
        try:
            return await change(owned)
        except Refused as refused:
            return refused.answer
        except Unavailable:
            return HintAnswer.NOT_READY
