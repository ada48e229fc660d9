"""Updates of tasks that wait: the new version goes, the old one never does, whatever comes between."""

from __future__ import annotations

import asyncio
import random

import pytest
from lane_world import NAMESPACE, Process, World

from bucketsched.adapters.memory.journal import Stage
from bucketsched.core import task_id as ids
from bucketsched.core.journal_record import decode
from bucketsched.core.task import BUCKET_MS, FactKind, Priority, RowRef, TaskRow
from bucketsched.core.task_change import ChangeResult, TaskChange, home_pointer
from bucketsched.poller import dispatcher
from bucketsched.poller.changes import HOPS_MAX
from bucketsched.poller.consequence import Consequence
from bucketsched.ports import CancelResult, Changed

FAR_MS = 4 * BUCKET_MS
"""Beyond what is loaded."""


async def change(world: World, process: Process, row: TaskRow, **what: object) -> Changed:
    """Lets time pass until the owner has answered."""
    asked = asyncio.create_task(process.lane.change(NAMESPACE, row.task_id, TaskChange(**what)))  # type: ignore[arg-type]
    await world.until(asked.done)
    changed = asked.result()
    assert isinstance(changed, Changed), changed
    return changed


async def cancel(world: World, process: Process, row: TaskRow) -> object:
    """Likewise."""
    asked = asyncio.create_task(process.lane.cancel(NAMESPACE, row.task_id))
    await world.until(asked.done)
    return asked.result()


def gone(world: World) -> list[tuple[int, int]]:
    """Generation and time of what was dispatched."""
    return [(RowRef.unpack(ref).generation, at_ms) for at_ms, ref in world.visible]


async def payload_of(world: World, generation: int) -> bytes:
    return next(
        c.message.value for c in world.journal.committed if RowRef.unpack(c.message.ref).generation == generation
    )


@pytest.mark.parametrize("delay_ms", [5_000, FAR_MS])
@pytest.mark.parametrize("to_ms", [200, 20_000, FAR_MS, 2 * FAR_MS])
async def test_a_task_moves_forward_and_back(delay_ms: int, to_ms: int) -> None:
    world = await World().prepare()
    process = await world.process("a")
    row = world.row(delay_ms)
    await world.create(row, hint=process)
    await world.pass_ms(100)
    due_ms = world.clock.now_ms() + to_ms
    changed = await change(world, process, row, due_ms=due_ms)
    assert changed.result is ChangeResult.CHANGED
    assert changed.row is not None
    assert (changed.row.due_ms, changed.row.generation, changed.row.body.payload) == (due_ms, 1, row.body.payload)
    await world.pass_ms(max(delay_ms, to_ms) + 5_000, step_ms=500)
    ((generation, at_ms),) = gone(world)
    assert generation == 1
    assert due_ms <= at_ms < due_ms + 1_000
    world.check()
    await world.close()


async def test_a_body_is_changed_at_the_same_due_time() -> None:
    world = await World().prepare()
    process = await world.process("a")
    row = world.row(3_000)
    await world.create(row, hint=process)
    changed = await change(
        world, process, row, payload=b"new", metadata={"k": "v"}, priority=Priority.HIGH, content_type="text/plain"
    )
    assert changed.row is not None
    assert changed.row.due_ms == row.due_ms + 1, "a row is written once: the new one has a place of its own"
    assert changed.row.body.nominal_due_ms == row.body.nominal_due_ms
    await world.pass_ms(5_000)
    (committed,) = world.journal.committed
    assert committed.message.value == b"new"
    assert dict(committed.message.headers)["bs-meta-k"] == b"v"
    assert dict(committed.message.headers)["ce_priority"] == b"0"
    world.check()
    await world.close()


async def test_what_is_so_already_is_not_changed_again() -> None:
    world = await World().prepare()
    process = await world.process("a")
    row = world.row(FAR_MS)
    await world.create(row)
    first = await change(world, process, row, payload=b"new")
    records = len(world.records())
    assert await change(world, process, row, payload=b"new") == first
    assert len(world.records()) == records
    await world.close()


async def test_a_generation_that_is_asked_for_is_the_one_that_is_changed() -> None:
    world = await World().prepare()
    process = await world.process("a")
    row = world.row(FAR_MS)
    await world.create(row)
    assert (await change(world, process, row, payload=b"1", generation=0)).result is ChangeResult.CHANGED
    assert (await change(world, process, row, payload=b"2", generation=0)).result is ChangeResult.OTHER_GENERATION
    assert (await change(world, process, row, payload=b"2", generation=1)).result is ChangeResult.CHANGED
    await world.close()


async def test_a_change_of_a_generation_that_is_asked_for_again_is_confirmed_again() -> None:
    """Its answer was lost; whoever asks must not think that somebody else came before."""
    world = await World().prepare()
    process = await world.process("a")
    row = world.row(FAR_MS)
    await world.create(row)
    first = await change(world, process, row, payload=b"1", generation=0)
    assert await change(world, process, row, payload=b"1", generation=0) == first
    await change(world, process, row, payload=b"2")
    assert (await change(world, process, row, payload=b"1", generation=0)).result is ChangeResult.OTHER_GENERATION
    await world.close()


async def test_a_generation_that_the_store_does_not_show_yet_is_no_other_one() -> None:
    world = await World().prepare()
    process = await world.process("a")
    row = world.row(FAR_MS)
    await world.create(row)
    world.store.hold("insert")
    assert (await change(world, process, row, payload=b"1")).result is ChangeResult.CHANGED
    asked = asyncio.create_task(process.lane.change(NAMESPACE, row.task_id, TaskChange(payload=b"2", generation=1)))
    await world.pass_ms(500)
    world.store.let_go("insert")
    await world.until(asked.done)
    changed = asked.result()
    assert isinstance(changed, Changed)
    assert (changed.result, changed.row and changed.row.generation) == (ChangeResult.CHANGED, 2)
    await world.close()


async def test_it_may_be_too_late() -> None:
    world = await World().prepare()
    process = await world.process("a")
    dispatched, cancelled, failed = world.row(500), world.row(FAR_MS), world.row(500, queue="none")
    await world.create(dispatched, cancelled, failed, hint=process)
    assert await cancel(world, process, cancelled) is CancelResult.CANCELLED
    await world.pass_ms(3_000)
    for row, result in (
        (dispatched, ChangeResult.ALREADY_DISPATCHED),
        (cancelled, ChangeResult.ALREADY_CANCELLED),
        (failed, ChangeResult.ALREADY_FAILED),
        (world.row(1_000), ChangeResult.NOT_FOUND),
    ):
        assert (await change(world, process, row, payload=b"late")).result is result
    await world.close()


async def test_a_change_and_the_dispatch_exclude_each_other() -> None:
    """A change that is asked for while the row is in a transaction is told what came of that."""
    world = await World().prepare()
    process = await world.process("a")
    row = world.row(1_000)
    await world.create(row, hint=process)
    in_flight, go_on = asyncio.Event(), asyncio.Event()

    async def pause(lane: int, stage: Stage) -> None:
        under_way = world.journal.lane(lane).open
        if under_way and any(section.dispatched for section in decode(under_way.record).sections):
            in_flight.set()
            await go_on.wait()

    world.journal.pause = pause
    await world.until(in_flight.is_set)
    asked = asyncio.create_task(process.lane.change(NAMESPACE, row.task_id, TaskChange(payload=b"late")))
    await world.pass_ms(100)
    assert not asked.done()
    go_on.set()
    await world.until(asked.done)
    changed = asked.result()
    assert isinstance(changed, Changed)
    assert changed.result is ChangeResult.ALREADY_DISPATCHED
    assert [generation for generation, _ in gone(world)] == [0]
    await world.close()


async def test_many_moves_are_found_by_one_hop_and_cancelled() -> None:
    world = await World().prepare()
    process = await world.process("a")
    row = world.row(FAR_MS)
    await world.create(row)
    for number in range(HOPS_MAX + 5):
        changed = await change(world, process, row, due_ms=row.due_ms + number % 3 * 1_000, payload=b"%d" % number)
        assert changed.result is ChangeResult.CHANGED
    reads = world.store.calls["get"]
    assert await cancel(world, process, row) is CancelResult.CANCELLED
    assert world.store.calls["get"] == reads + 2, "the home row names the newest place"
    await world.pass_ms(FAR_MS + 20_000, step_ms=1_000)
    assert not world.visible
    await world.close()


async def test_a_crash_between_journal_and_store_keeps_the_new_body() -> None:
    """The journal carries the whole new row: who takes the range writes it."""
    world = await World().prepare()
    process = await world.process("a")
    row = world.row(FAR_MS)
    await world.create(row)
    world.store.hold("insert")
    asked = asyncio.create_task(process.lane.change(NAMESPACE, row.task_id, TaskChange(payload=b"new")))
    await world.until(
        lambda: any(o.kind is FactKind.MOVED for r in world.records() for s in r.sections for o in s.others)
    )
    await process.crash()
    asked.cancel()
    world.store.let_go("insert")
    heir = await world.process("b")
    stored = await world.store.get(row.due_ms, NAMESPACE, row.task_id)
    assert stored is not None
    assert stored.facts.moved_to_ms == row.due_ms + 1
    changed = await change(world, heir, row, payload=b"new")
    assert changed.row is not None
    assert changed.row.generation == 1, "it was changed already"
    await world.pass_ms(FAR_MS + 5_000, step_ms=1_000)
    assert [generation for generation, _ in gone(world)] == [1]
    assert await payload_of(world, 1) == b"new"
    await world.close()


async def test_a_row_that_is_stored_late_is_read_at_once() -> None:
    """Its bucket was begun between the record and the row, and the rescan has passed its due time."""
    world = await World().prepare()
    process = await world.process("a")
    row = world.row(4 * BUCKET_MS)
    await world.create(row)
    await world.pass_ms(100)
    world.store.hold("insert")
    due_ms = world.clock.now_ms() + 3 * BUCKET_MS
    changed = await change(world, process, row, due_ms=due_ms)
    assert changed.result is ChangeResult.CHANGED
    await world.pass_ms(4 * BUCKET_MS, step_ms=1_000)
    assert not world.visible
    world.store.let_go("insert")
    await world.pass_ms(2_000)
    assert [generation for generation, _ in gone(world)] == [1]
    world.check()
    await world.close()


async def test_no_checkpoint_passes_a_row_that_is_not_stored() -> None:
    world = await World().prepare()
    process = await world.process("a")
    row = world.row(4 * BUCKET_MS)
    await world.create(row)
    world.store.hold("insert")
    changed = await change(world, process, row, due_ms=world.clock.now_ms() + 3 * BUCKET_MS)
    assert changed.row is not None
    await world.pass_ms(4 * BUCKET_MS, step_ms=1_000)
    checkpoint = await world.checkpoints.load(0)
    assert checkpoint is not None
    assert checkpoint.low_due_ms.get(changed.row.bucket, 0) <= changed.row.due_ms
    await world.close()


async def test_a_place_where_the_task_has_been_is_not_used_again() -> None:
    world = await World().prepare()
    process = await world.process("a")
    row = world.row(FAR_MS)
    await world.create(row)
    there = await change(world, process, row, due_ms=row.due_ms + 1_000)
    back = await change(world, process, row, due_ms=row.due_ms)
    assert there.row is not None
    assert back.row is not None
    assert back.row.due_ms == row.due_ms + 1
    assert back.row.body.nominal_due_ms == row.due_ms
    await world.pass_ms(FAR_MS + 5_000, step_ms=1_000)
    assert [generation for generation, _ in gone(world)] == [2]
    await world.close()


async def test_bodies_in_one_record_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "RECORD_BODIES_BYTES_MAX", 3_000)
    world = await World().prepare()
    process = await world.process("a")
    rows = [world.row(FAR_MS + i) for i in range(6)]
    await world.create(*rows)
    sizes = [1_000, 1_000, 1_000, 5_000, 1_000, 1_000]
    asked = [
        asyncio.create_task(process.lane.change(NAMESPACE, row.task_id, TaskChange(payload=b"x" * size)))
        for row, size in zip(rows, sizes, strict=True)
    ]
    await world.until(lambda: all(task.done() for task in asked))
    bodies = [[len(o.body) for s in r.sections for o in s.others] for r in world.records()]
    assert sum(len(record) for record in bodies) == 6
    assert all(sum(record) <= 3_000 or len(record) == 1 for record in bodies), bodies
    await world.close()


@pytest.mark.parametrize("seed", range(6))
async def test_random_changes_cancels_and_crashes(seed: int) -> None:
    """Of each task only its last confirmed version goes, once, and none that was cancelled."""
    draw = random.Random(seed)
    world = await World().prepare()
    process = await world.process("p0")
    rows = [world.row(draw.randrange(2_000, 4 * BUCKET_MS), shard=draw.randrange(4)) for _ in range(12)]
    await world.create(*rows)
    versions: dict[bytes, bytes] = {row.task_id: row.body.payload for row in rows}
    over: set[bytes] = set()
    for number in range(60):
        row = draw.choice(rows)
        if draw.random() < 0.1:
            await process.crash()
            process = await world.process(f"p{number + 1}")
        elif draw.random() < 0.15:
            result = await cancel(world, process, row)
            if result is CancelResult.CANCELLED:
                over.add(row.task_id)
        else:
            due_ms = world.clock.now_ms() + draw.randrange(3 * BUCKET_MS) if draw.random() < 0.7 else None
            payload = b"%d" % number
            changed = await change(world, process, row, due_ms=due_ms, payload=payload)
            if changed.result is ChangeResult.CHANGED:
                versions[row.task_id] = payload
        await world.pass_ms(draw.randrange(2_000), step_ms=100)
    await world.pass_ms(5 * BUCKET_MS, step_ms=1_000)
    world.check()
    sent = {RowRef.unpack(c.message.ref).task_id: c.message.value for c in world.journal.committed}
    assert len(world.journal.committed) == len(sent), "one version of each"
    assert sent == {task_id: payload for task_id, payload in versions.items() if task_id not in over}
    await world.close()


def test_home_pointers_are_for_rows_that_are_not_at_home() -> None:
    task_id = ids.mint(60_000, 3, 1)
    home = RowRef(60_000, NAMESPACE, task_id, 0, 1).pack()
    assert home_pointer(home, 90_000) is None
    pointer = home_pointer(RowRef(90_000, NAMESPACE, task_id, 1, 1).pack(), 120_000)
    assert pointer is not None
    assert (pointer.ref, pointer.kind, pointer.at_ms) == (home, FactKind.MOVED, 120_000)


async def test_a_home_rows_pointer_brings_the_row_that_it_names() -> None:
    """Where partitions are tried alone it may be stored before all else that its record asks for."""
    world = await World().prepare()
    process = await world.process("a")
    row = world.row(FAR_MS)
    await world.create(row)
    first = await change(world, process, row, due_ms=row.due_ms + BUCKET_MS)
    added: list[Consequence] = []
    marker = process.lane._marker
    add, marker.add = marker.add, lambda *record: (added.extend(record[2]), add(*record))  # type: ignore[method-assign]
    second = await change(world, process, row, due_ms=row.due_ms + 2 * BUCKET_MS)
    assert first.row is not None
    assert second.row is not None
    pointers = [consequence for consequence in added if consequence.mark.ref == row.ref]
    assert [(one.mark.at_ms, one.made) for one in pointers] == [(second.row.due_ms, (second.row,))]
    await world.close()
