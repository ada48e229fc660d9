"""What is journaled is stored beside the rows, and one partition that can't be written to holds up nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from lane_world import NAMESPACE

from bucketsched.adapters.memory.clock import ManualClock
from bucketsched.adapters.memory.store import MemoryTaskStore
from bucketsched.core import task_id as ids
from bucketsched.core.errors import NotWritten, OutcomeUnknown, Unavailable
from bucketsched.core.task import FactKind, Mark, TaskBody, TaskRow
from bucketsched.poller.limits import LaneLimits
from bucketsched.poller.marker import (
    BATCH_MARKS_MAX,
    RETRY_S_MAX,
    SUSPECT_MARKS_MAX,
    SUSPECTS_IN_FLIGHT_MAX,
    Consequence,
    Marker,
)
from bucketsched.poller.owned_range import OwnedRange
from bucketsched.ports import Lease

INTERVAL_MS = 1_000


class PartlyAway(MemoryTaskStore):
    """Some shards can't be written to; a call that touches one of them fails as a whole. Notes the order of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.away: set[int] = set()
        self.hanging: set[int] = set()
        self.in_flight = self.in_flight_max = 0
        self.order: list[str] = []

    async def insert(self, rows: Sequence[TaskRow]) -> list[NotWritten | OutcomeUnknown | None]:
        self.order += [f"row {row.generation}" for row in rows]
        return await super().insert(rows)

    async def mark(self, marks: Sequence[Mark]) -> None:
        shards = {ids.shard_in(mark.ref[24:40]) for mark in marks}
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            while shards & self.hanging:  # noqa: ASYNC110 - what it waits for is set by the test
                await asyncio.sleep(0)
        finally:
            self.in_flight -= 1
        if shards & self.away:
            raise Unavailable("no quorum")
        self.order += [f"mark {mark.kind.name}" for mark in marks]
        await super().mark(marks)


class Scene:
    """Two ranges of four shards each, and a marker that runs."""

    def __init__(self) -> None:
        self.clock, self.store = ManualClock(), PartlyAway()
        self.marker = Marker(self.store, self.clock, LaneLimits(mark_interval_ms=INTERVAL_MS))
        self.marker.restart(0, b"first")
        self.low = OwnedRange(Lease(0, 1, ()), range(4), 100)
        self.high = OwnedRange(Lease(1, 1, ()), range(4, 8), 100)
        self.offset = 0
        self.rows: list[TaskRow] = []

    def row(self, shard: int, generation: int = 0) -> TaskRow:
        due = self.clock.now_ms()
        task_id = ids.mint(due, shard, len(self.rows))
        self.rows.append(TaskRow(due, NAMESPACE, task_id, TaskBody("ns", "q", "t"), generation))
        return self.rows[-1]

    def record(self, *shards: int) -> int:
        """A record that dispatches one row of each of these shards; its offset."""
        self.offset += 1
        consequences = [
            Consequence(Mark(self.row(shard).ref, FactKind.DISPATCHED, 1), self.low if shard < 4 else self.high)
            for shard in shards
        ]
        self.marker.add(self.offset, b"%d" % self.offset, consequences)
        return self.offset

    async def pass_s(self, seconds: float) -> None:
        end = self.clock.now_ms() + int(seconds * 1000)
        await self.settle()
        while self.clock.now_ms() < end:
            self.clock.advance_ms(10)
            await self.settle()

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    running = asyncio.create_task(scene.marker.run())
    yield scene
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_partition_without_a_quorum_holds_up_its_own_range_only(scene: Scene) -> None:
    scene.store.away = {0}
    first = scene.record(0, 1, 4)
    for _ in range(50):
        scene.record(1, 5)
    await scene.pass_s(3)
    assert scene.marker.marks_waiting == 1, "everything else is stored, also of the same range and the same record"
    assert scene.marker.applied(scene.high) == (scene.offset, b"%d" % scene.offset)
    assert scene.marker.applied(scene.low) == (first - 1, b"first"), "the checkpoint must not pass what is unwritten"
    scene.store.away = set()
    await scene.pass_s(RETRY_S_MAX + 0.1)
    assert scene.marker.marks_waiting == 0
    assert scene.marker.applied(scene.low)[0] == scene.offset


async def test_progress_stops_before_the_first_unwritten_record_of_the_range(scene: Scene) -> None:
    scene.record(1)
    scene.record(4)
    await scene.pass_s(1.1)
    scene.store.away = {0}
    stuck = scene.record(0)
    scene.record(1)
    scene.record(1)
    await scene.pass_s(2)
    assert scene.marker.applied(scene.low) == (stuck - 1, b"%d" % (stuck - 1))
    assert scene.marker.marks_waiting == 1


async def test_whoever_waits_for_a_range_waits_for_its_own_rows_only(scene: Scene) -> None:
    scene.store.away = {0}
    stuck, other = scene.record(0), scene.record(4)
    low = asyncio.create_task(scene.marker.reached(scene.low, other))
    before = asyncio.create_task(scene.marker.reached(scene.low, stuck - 1))
    high = asyncio.create_task(scene.marker.reached(scene.high, other))
    await scene.pass_s(0.2)
    assert (low.done(), before.done(), high.done()) == (False, True, True)
    scene.store.away = set()
    await scene.pass_s(RETRY_S_MAX + 0.1)
    assert low.done()


async def test_marks_are_gathered_and_written_together(scene: Scene) -> None:
    for shard in range(8):
        scene.record(shard)
        await scene.pass_s(0.05)
    await scene.pass_s(1)
    assert scene.store.calls["mark"] == 1
    assert scene.marker.applied(scene.low)[0] == scene.offset


async def test_a_store_that_is_away_is_asked_little_and_all_is_stored_when_it_is_back(scene: Scene) -> None:
    scene.store.away = set(range(8))
    scene.record(*range(8))
    asked = 0
    mark = scene.store.mark

    async def counting(marks: Sequence[Mark]) -> None:
        nonlocal asked
        asked += 1
        await mark(marks)

    scene.store.mark = counting  # type: ignore[method-assign]
    await scene.pass_s(60)
    assert asked < 8 * 60 / RETRY_S_MAX + 60
    scene.store.away = set()
    await scene.pass_s(RETRY_S_MAX + 0.1)
    assert scene.marker.marks_waiting == 0


async def test_calls_that_hang_do_not_pile_up(scene: Scene) -> None:
    scene.store.away = set(range(8))
    for _ in range(3):
        scene.record(*range(8))
        scene.clock.advance_ms(60_000)  # the next minute: other partitions
        await scene.settle()
    await scene.pass_s(1.1)
    scene.store.hanging = set(range(8))
    await scene.pass_s(5)
    assert scene.store.in_flight <= SUSPECTS_IN_FLIGHT_MAX
    scene.store.away, scene.store.hanging = set(), set()
    await scene.pass_s(2 * RETRY_S_MAX)
    assert scene.marker.marks_waiting == 0


async def test_partitions_that_fail_slowly_do_not_take_all_turns(scene: Scene) -> None:
    """There are more of them than are tried at once, and an attempt takes longer than the pause behind it."""
    scene.high = OwnedRange(Lease(1, 1, ()), range(4, 256), 100)
    failing, mark = set(range(4, 4 + 3 * SUSPECTS_IN_FLIGHT_MAX)), scene.store.mark

    async def slow(marks: Sequence[Mark]) -> None:
        if failing & {ids.shard_in(mark.ref[24:40]) for mark in marks}:
            await scene.clock.sleep(RETRY_S_MAX + 0.1)
            raise Unavailable("no quorum")
        await mark(marks)

    scene.store.mark = slow  # type: ignore[method-assign]
    scene.record(*failing, 255)
    await scene.pass_s(INTERVAL_MS / 1000 + 6 * (RETRY_S_MAX + 0.1))
    assert scene.store.order == ["mark DISPATCHED"]


async def test_a_suspect_is_tried_with_little(scene: Scene) -> None:
    scene.store.away = {0}
    scene.record(*([0] * 3 * SUSPECT_MARKS_MAX))
    await scene.pass_s(1.5)
    sizes: list[int] = []
    mark = scene.store.mark

    async def noting(marks: Sequence[Mark]) -> None:
        sizes.append(len(marks))
        await mark(marks)

    scene.store.mark = noting  # type: ignore[method-assign]
    await scene.pass_s(3)
    assert sizes
    assert max(sizes) <= SUSPECT_MARKS_MAX
    scene.store.away = set()
    await scene.pass_s(2 * RETRY_S_MAX)
    assert scene.marker.marks_waiting == 0


async def test_much_is_written_at_once_in_bounded_pieces(scene: Scene) -> None:
    scene.record(*([1] * BATCH_MARKS_MAX), 5)
    await scene.settle()
    assert scene.marker.marks_waiting == 0, "it did not wait for the interval"
    assert scene.store.calls["mark"] == 2


async def test_a_moved_row_is_written_before_the_mark_that_points_to_it(scene: Scene) -> None:
    row = scene.row(1)
    successor = TaskRow(row.due_ms + 5, NAMESPACE, row.task_id, row.body, 1)
    moved = Consequence(Mark(row.ref, FactKind.MOVED, successor.due_ms), scene.low, (successor,))
    scene.marker.add(1, b"1", [moved])
    await scene.pass_s(1.1)
    assert scene.store.order == ["row 1", "mark MOVED"]
    assert await scene.store.get(successor.due_ms, NAMESPACE, row.task_id) is not None


async def test_a_row_that_can_not_be_moved_yet_keeps_its_range_back(scene: Scene) -> None:
    row = scene.row(1)
    successor = TaskRow(row.due_ms + 5, NAMESPACE, row.task_id, row.body, 1)
    scene.store.fail_next("insert", NotWritten("no quorum"), times=2)
    scene.marker.add(1, b"1", [Consequence(Mark(row.ref, FactKind.MOVED, successor.due_ms), scene.low, (successor,))])
    await scene.pass_s(1.02)
    assert scene.marker.applied(scene.low) == (0, b"first")
    assert "mark MOVED" not in scene.store.order
    await scene.pass_s(1)
    assert scene.marker.applied(scene.low) == (1, b"1")


async def test_what_is_stored_is_known_to_its_range(scene: Scene) -> None:
    scene.record(1)
    ref = scene.rows[0].ref
    scene.low.settle(ref, FactKind.DISPATCHED)
    await scene.pass_s(1.1)
    assert scene.low.status(ref) not in (None, FactKind.DISPATCHED)


async def test_an_error_that_is_not_absence_ends_the_marker() -> None:
    scene = Scene()
    running = asyncio.create_task(scene.marker.run())
    scene.store.away = {0}
    scene.record(0)
    await scene.pass_s(1.02)
    scene.store.fail_next("mark", ValueError("a bug"))
    scene.store.away = set()
    await scene.pass_s(RETRY_S_MAX + 1)
    assert isinstance(running.exception(), ValueError)
