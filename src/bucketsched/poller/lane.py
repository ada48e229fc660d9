"""A lane: the façade of the poller. It takes and gives up ranges, and answers for them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import structlog

from ..core import task_id as ids
from ..core.cluster import ClusterConstants
from ..core.errors import OwnershipLost, Unavailable
from ..core.journal_record import JournalCorrupt
from ..core.task import TaskRow
from ..ports import (
    CancelResult,
    Catalog,
    CheckpointStore,
    Clock,
    HintAnswer,
    Journal,
    Leases,
    TaskStore,
)
from .batch import Refused
from .changes import Changes
from .checkpointer import Checkpointer
from .closer import Closer
from .dispatcher import Dispatcher, LaneLost
from .figures import LaneCounters, LaneState
from .limits import HAND_OVER_S_MAX, LaneLimits
from .loader import Loader, resident_bytes
from .marker import Marker
from .owned_range import OwnedRange, Phase
from .queue_directory import QueueDirectory
from .rescanner import Rescanner
from .takeover import JournalMismatch, Takeover
from .waiting import first_of

log = structlog.get_logger(__name__)
RETRY_S_MIN, RETRY_S_MAX = 0.1, 2.0
ADMISSIONS_AT_ONCE_MAX = 32


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
        self._ranges: dict[int, OwnedRange] = {}
        self._marker = Marker(store, clock, limits)
        self._queues = QueueDirectory(catalog, clock)
        self.dispatcher = Dispatcher(
            self._ranges, journal, leases, self._marker, self._queues, clock, limits, self._counters
        )
        wake = self.dispatcher.wake.set
        self._loader = Loader(self._ranges, store, clock, limits, constants.horizon_ms, wake)
        self.dispatcher.drained = self._loader.drained
        self._rescanner = Rescanner(self._ranges, store, clock, limits, self._counters)
        self._checkpointer = Checkpointer(self._ranges, checkpoints, journal, self._marker, clock, limits)
        self._closer = Closer(self._ranges, store, self.dispatcher, self._marker, clock, constants.grace_ms)
        self._changes = Changes(store, self.dispatcher, self._marker, clock)
        self._takeover = Takeover(
            journal, leases, store, checkpoints, clock, self.dispatcher.reinitialise, lambda: self.dispatcher.last
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

    def state(self) -> LaneState:
        """How it stands now, for metrics."""
        now_ms, owned = self._clock.now_ms(), list(self._ranges.values())
        active = [one for one in owned if one.phase is Phase.ACTIVE]
        oldest_ms = min((one.oldest_undone_ms(now_ms) for one in active), default=now_ms)
        return LaneState(
            ranges=Counter(one.phase.value for one in owned),
            heap_rows=sum(len(one.heap) for one in owned),
            ready_rows=self.dispatcher.ready_rows,
            resident_bytes=resident_bytes(self._ranges),
            marks_waiting=self._marker.marks_waiting,
            changes_waiting=self.dispatcher.changes_waiting,
            checkpoint_age_s=self._checkpointer.age_s(),
            oldest_undispatched_age_s=(now_ms - oldest_ms) / 1000,
        )

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
        """Hands every range over: dispatch stops at a transaction's end, facts and checkpoint are stored, released.

        Goes on trying where the store or the lease service can't be reached: the caller bounds it.
        """
        while active := self.active():
            await asyncio.gather(*(self.give_up(range_id) for range_id in active))
            if self.active():
                log.warning("hand-over waits for the store or the lease service", ranges=len(self.active()))
                await self._clock.sleep(RETRY_S_MIN)
        log.info("every range is handed over")

    async def close(self) -> None:
        """Lets go of the journal. After `run` has ended."""
        await self._journal.close()

    # ---- ranges

    async def take(self, range_id: int) -> None:
        """Becomes the owner of a range. Raises LeaseHeld, Unavailable (no lease taken), OwnershipLost."""
        if range_id in self._ranges:
            return
        lease, began = await self._leases.acquire(range_id), self._clock.monotonic()
        shards = self._constants.shards_of(range_id)
        owned = OwnedRange(lease, shards, self._limits.heap_rows_max, self._crowded, self._queues.expect)
        self._ranges[range_id] = owned
        pause = RETRY_S_MIN
        while owned.phase is Phase.RECOVERING:
            try:
                await self._takeover.recover(owned)
            except Unavailable as error:
                log.warning("takeover waits", range=range_id, error=str(error), recurring=True)
                await self._clock.sleep(pause)
                pause = min(2 * pause, RETRY_S_MAX)
            except (JournalMismatch, JournalCorrupt) as error:
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
        if owned.phase is Phase.ACTIVE:
            self._counters.taken("fenced" if lease.predecessors else "released", self._clock.monotonic() - began)
        self._loader.wake.set()

    def _crowded(self) -> bool:
        """True while there is no memory for hinted rows: the loader comes back for them."""
        return 2 * resident_bytes(self._ranges) >= 3 * self._limits.heap_bytes_max

    async def give_up(self, range_id: int) -> None:
        """Hands a range over cleanly, or drops it where it is lost already.

        Where the store can't be reached the range goes on being served, and this returns: ask again. What was loaded
        must not stand still while nobody can take it.
        """
        owned = self._ranges.get(range_id)
        if owned is None or owned.phase is not Phase.ACTIVE:
            return
        try:
            if not await self._store_progress(owned):
                return
            owned.phase = Phase.STOPPING
            if await self._store_progress(owned):
                await self._leases.release(owned.lease)
                log.debug("range released", range=range_id, epoch=owned.epoch)
                owned.phase = Phase.GONE
                self._ranges.pop(range_id, None)
        except Unavailable as error:
            log.debug("release waits", range=range_id, error=str(error))
        except OwnershipLost:
            self.dispatcher.drop(owned)
        finally:
            if owned.phase is Phase.STOPPING:
                owned.phase = Phase.ACTIVE
                self.dispatcher.wake.set()

    async def _store_progress(self, owned: OwnedRange) -> bool:
        """Marks and checkpoint of what is committed by now; False where the store does not answer in time."""
        async with self.dispatcher.turn:
            offset = self.dispatcher.last[0]
        reached = asyncio.create_task(self._marker.reached(owned, offset))
        stored = asyncio.Event()
        reached.add_done_callback(lambda _: stored.set())
        try:
            await first_of(stored, self._clock, HAND_OVER_S_MAX)
        finally:
            reached.cancel()
        if not stored.is_set():
            log.debug("release waits for the store", range=owned.range_id)
            return False
        await self._checkpointer.save(owned)
        return True

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
        for index, row in enumerate(rows):
            owned = self._owned(row.task_id)
            answer = owned if isinstance(owned, HintAnswer) else owned.hint(row)
            answers.append(answer)
            if answer is None:
                unclear.append(index)
        self.dispatcher.wake.set()
        if unclear:
            for index, late in zip(unclear, await asyncio.gather(*(self.admit(rows[i]) for i in unclear)), strict=True):
                answers[index] = late
        return [answer or HintAnswer.NOT_READY for answer in answers]

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
        owned = self._owned(task_id)
        if isinstance(owned, HintAnswer):
            return owned
        try:
            return await self._changes.cancel(owned, namespace_id, task_id)
        except Refused as refused:
            return refused.answer
        except Unavailable:
            return HintAnswer.NOT_READY
