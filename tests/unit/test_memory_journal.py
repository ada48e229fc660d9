"""The faults that the in-memory journal can be asked for: the simulation stands on them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bucketsched.adapters.memory.journal import Fault, MemoryJournal, MemoryJournalWorld, Stage
from bucketsched.core.catalog import Queue, QueueKind
from bucketsched.core.errors import OutcomeUnknown, OwnershipLost, Unavailable
from bucketsched.core.message import Message
from bucketsched.ports import CommitRefused

QUEUE = Queue(bytes(16), "default", "q", QueueKind.WORKER)
MESSAGE = Message(bytes(48), QUEUE, "", None, [], b"x")


@pytest.fixture
def world() -> MemoryJournalWorld:
    return MemoryJournalWorld(lanes=2)


@pytest.fixture
async def journal(world: MemoryJournalWorld) -> MemoryJournal:
    opened = MemoryJournal(world, 0)
    await opened.init()
    return opened


async def records(journal: MemoryJournal, lane: int = 0) -> list[bytes]:
    return [entry.value async for batch in journal.read(lane, 0) for entry in batch]


async def test_control_markers_take_offsets(journal: MemoryJournal) -> None:
    assert [await journal.commit([], b"r") for _ in range(3)] == [0, 2, 4]
    assert await journal.end(0) == 6


async def test_a_refused_commit_leaves_a_gap_and_a_sound_stream(
    world: MemoryJournalWorld, journal: MemoryJournal
) -> None:
    world.fail_next(0, Fault.REFUSED, {0: "unknown topic"})
    with pytest.raises(CommitRefused) as refused:
        await journal.commit([MESSAGE], b"refused")
    assert refused.value.culprits == {0: "unknown topic"}
    assert await journal.commit([MESSAGE], b"r") == 2
    assert await records(journal) == [b"r"]
    assert len(world.committed) == 1


@pytest.mark.parametrize(("fault", "stored"), [(Fault.COMMITTED, [b"doubt"]), (Fault.LOST, [])])
async def test_an_unknown_outcome_is_one_or_the_other(
    world: MemoryJournalWorld, journal: MemoryJournal, fault: Fault, stored: list[bytes]
) -> None:
    world.fail_next(0, fault)
    with pytest.raises(OutcomeUnknown):
        await journal.commit([MESSAGE], b"doubt")
    with pytest.raises(OwnershipLost):
        await journal.commit([MESSAGE], b"without init")
    await journal.init()
    assert await records(journal) == stored
    assert len(world.committed) == len(stored)


async def test_a_delayed_commit_lands_unless_an_init_comes_first(
    world: MemoryJournalWorld, journal: MemoryJournal
) -> None:
    for _ in range(2):
        world.fail_next(0, Fault.PENDING)
        with pytest.raises(OutcomeUnknown):
            await journal.commit([MESSAGE], b"delayed")
        if not await records(journal):
            assert await journal.end(0) == 0
            assert world.land(0)
        await journal.init()
    assert not world.land(0)
    assert await records(journal) == [b"delayed"]
    assert len(world.committed) == 1


async def test_readers_stop_at_an_open_transaction(world: MemoryJournalWorld, journal: MemoryJournal) -> None:
    await journal.commit([], b"before")
    world.fail_next(0, Fault.PENDING)
    with pytest.raises(OutcomeUnknown):
        await journal.commit([], b"delayed")
    assert await journal.end(0) == 2
    assert await records(journal) == [b"before"]


async def test_what_looks_like_fencing_is_over_after_init(world: MemoryJournalWorld, journal: MemoryJournal) -> None:
    world.fail_next(0, Fault.FENCED)
    with pytest.raises(OwnershipLost):
        await journal.commit([MESSAGE], b"aborted")
    await journal.init()
    await journal.commit([MESSAGE], b"r")
    assert await records(journal) == [b"r"]


async def test_an_unreachable_broker_leaves_the_outcome_unknown(
    world: MemoryJournalWorld, journal: MemoryJournal
) -> None:
    world.reachable = False
    with pytest.raises(OutcomeUnknown):
        await journal.commit([MESSAGE], b"lost")
    calls: list[Callable[[], Awaitable[object]]] = [
        journal.init,
        lambda: journal.fence(1),
        lambda: journal.start(0),
        lambda: journal.end(0),
        lambda: records(journal),
    ]
    for call in calls:
        with pytest.raises(Unavailable):
            await call()
    world.reachable = True
    await journal.init()
    assert await records(journal) == []


async def test_a_fence_between_produce_and_commit_aborts(world: MemoryJournalWorld, journal: MemoryJournal) -> None:
    produced, go_on = asyncio.Event(), asyncio.Event()

    async def pause(lane: int, stage: Stage) -> None:
        if stage is Stage.PRODUCED:
            produced.set()
            await go_on.wait()

    world.pause = pause
    committing = asyncio.create_task(journal.commit([MESSAGE], b"stale"))
    await produced.wait()
    await MemoryJournal(world, 1).fence(0)
    go_on.set()
    with pytest.raises(OwnershipLost):
        await committing
    assert await records(journal) == []
    assert world.committed == []


async def test_close_aborts_what_is_open(world: MemoryJournalWorld, journal: MemoryJournal) -> None:
    async def stop(lane: int, stage: Stage) -> None:
        raise ConnectionResetError

    world.pause = stop
    with pytest.raises(ConnectionResetError):
        await journal.commit([MESSAGE], b"open")
    assert await journal.end(0) == 0
    await journal.close()
    assert await journal.end(0) == 2
    assert world.committed == []


async def test_trimming_moves_the_start(world: MemoryJournalWorld, journal: MemoryJournal) -> None:
    for i in range(3):
        await journal.commit([], b"%d" % i)
    world.trim(0, 2)
    assert await journal.start(0) == 2
    assert await records(journal) == [b"1", b"2"]
