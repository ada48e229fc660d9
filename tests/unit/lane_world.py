"""A small world for tests of the poller: in-memory store, journal and leases, and a clock that is moved by hand."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from uuid import UUID

from bucketsched.adapters.memory.clock import ManualClock
from bucketsched.adapters.memory.journal import MemoryJournal, MemoryJournalWorld
from bucketsched.adapters.memory.leases import MemoryLeases, MemoryLeaseWorld, MemoryMembership
from bucketsched.adapters.memory.store import MemoryCatalog, MemoryCheckpointStore, MemoryTaskStore
from bucketsched.core import task_id as ids
from bucketsched.core.catalog import Queue, QueueKind
from bucketsched.core.checkpoint import NO_OFFSET, Checkpoint
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.journal_record import JournalRecord, decode
from bucketsched.core.task import Priority, RowRef, TaskBody, TaskRow, bucket_of
from bucketsched.poller.lane import Lane
from bucketsched.poller.limits import LaneLimits
from bucketsched.ports import HintAnswer, Member

NAMESPACE = bytes(range(16))
STEPS_MAX = 200_000
ROUNDS_MAX = 60
"""Of the event loop, without time passing: who waits for others looks anew each time."""


class Process:
    """One poller: a lane in a slot, with a session."""

    def __init__(self, world: World, name: str, limits: LaneLimits) -> None:
        self.world, self.name, self.limits = world, name, limits
        self.membership = MemoryMembership(world.leases)
        self.running: asyncio.Task[None] | None = None

    async def start(self, ranges: range | None = None) -> Process:
        member = await self.membership.join(Member(self.name, ("poller",)), wants_lane=True)
        self.slot = member.lane
        self.leases: MemoryLeases = self.membership.leases()
        self.journal = MemoryJournal(self.world.journal, self.slot)
        world = self.world
        self.lane = Lane(
            world.constants, self.journal, self.leases, world.store, world.checkpoints, world.catalog, world.clock,
            self.limits,
        )  # fmt: skip
        await self.lane.start()
        self.running = asyncio.create_task(self.lane.run())
        for range_id in ranges if ranges is not None else range(world.constants.ranges):
            await self.lane.take(range_id)
        return self

    async def crash(self) -> None:
        """As by kill -9, with the session's end known at once."""
        await self.halt()
        self.membership.expire()

    async def halt(self) -> None:
        """The loops end; nothing is handed over, the session lives."""
        assert self.running is not None
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)


class World:
    """Stores, journal, leases and clock, shared by any number of processes."""

    def __init__(self, **constants: int) -> None:
        numbers = {"shards": 4, "ranges": 2, "lanes": 4} | constants
        self.constants = ClusterConstants(UUID(int=7), **numbers)
        self.clock = ManualClock()
        self.store, self.checkpoints = MemoryTaskStore(), MemoryCheckpointStore()
        self.catalog = MemoryCatalog(self.constants)
        self.journal = MemoryJournalWorld(self.constants.lanes)
        self.leases = MemoryLeaseWorld(self.constants)
        self.random = random.Random(1)
        self.visible: list[tuple[int, bytes]] = []
        self.journal.on_commit.append(self._saw)
        self._seen = 0
        self.processes: list[Process] = []

    def _saw(self) -> None:
        for committed in self.journal.committed[self._seen :]:
            self.visible.append((self.clock.now_ms(), committed.message.ref))
        self._seen = len(self.journal.committed)

    async def prepare(self) -> World:
        await self.catalog.create_queue(Queue(NAMESPACE, "ns", "q", QueueKind.KAFKA, "topic"))
        for range_id in range(self.constants.ranges):
            first = bucket_of(self.clock.now_ms())
            checkpoint = Checkpoint(0, 0, self.journal.name, 0, NO_OFFSET, b"", first)
            await self.checkpoints.save(range_id, checkpoint)
        return self

    async def process(self, name: str = "p", ranges: range | None = None, **limits: float) -> Process:
        process = Process(self, name, LaneLimits(**limits))  # type: ignore[arg-type]
        self.processes.append(process)
        return await process.start(ranges)

    async def close(self) -> None:
        for process in self.processes:
            if process.running is not None:
                await process.halt()  # also if it has failed: nobody else takes note of that

    # ---- rows

    def row(
        self,
        delay_ms: int,
        shard: int = 0,
        queue: str = "q",
        priority: Priority = Priority.NORMAL,
        payload: bytes = b"x",
    ) -> TaskRow:
        due = self.clock.now_ms() + delay_ms
        task_id = ids.mint(due, shard, self.random.getrandbits(62))
        return TaskRow(due, NAMESPACE, task_id, TaskBody("ns", queue, "t", payload, {}, priority, due, due))

    async def create(self, *rows: TaskRow, hint: Process | None = None) -> None:
        assert await self.store.insert(rows) == [None] * len(rows)
        if hint is not None:
            assert set(await hint.lane.hint(rows)) <= {HintAnswer.TAKEN}

    # ---- time

    async def settle(self) -> None:
        """Lets everything run that needs no time, until nobody else would."""
        ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]  # nothing public tells
        for _ in range(ROUNDS_MAX):
            await asyncio.sleep(0)
            if not ready:
                return

    async def pass_ms(self, ms: int, step_ms: int = 10) -> None:
        """Lets time pass, waking every sleeper at its time."""
        end = self.clock.now_ms() + ms
        await self.settle()
        while self.clock.now_ms() < end:
            wake = self.clock.next_wake_ms()
            self.clock.advance_ms(max(1, min(wake or step_ms, step_ms, end - self.clock.now_ms())))
            await self.settle()

    async def until(self, condition: Callable[[], bool], within_ms: int = 60_000) -> None:
        """Lets time pass until the condition holds."""
        end = self.clock.now_ms() + within_ms
        while not condition():
            assert self.clock.now_ms() < end, "not within the time"
            await self.pass_ms(10)

    # ---- what came of it

    def dispatched(self) -> list[bytes]:
        """References in commit order."""
        return [ref for _, ref in self.visible]

    def check(self) -> None:
        """Nothing early (I2), nothing twice (I3), journal and messages say the same (I5)."""
        assert all(at_ms >= RowRef.unpack(ref).due_ms for at_ms, ref in self.visible)
        assert max(Counter(self.dispatched()).values(), default=1) == 1
        journaled = [ref for record in self.records() for section in record.sections for ref in section.dispatched]
        assert sorted(journaled) == sorted(self.dispatched())

    def records(self) -> list[JournalRecord]:
        lanes = (self.journal.lane(k).records for k in range(self.constants.lanes))
        return [decode(entry.value) for lane in lanes for entry in lane]
