"""What journal and outbox in SQLite do beyond the suites: trimming, a full disk, a restart, bounded memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from bucketsched.adapters.sqlite.database import Database
from bucketsched.adapters.sqlite.deliveries import SqliteDeliveries
from bucketsched.adapters.sqlite.journal import TRIM_RECORDS_MAX, SqliteJournal
from bucketsched.adapters.sqlite.outbox import (
    BYTES_PER_READ_MAX,
    MESSAGES_IN_MEMORY_MAX,
    Outbox,
    pack_headers,
    unpack_headers,
)
from bucketsched.core.catalog import Queue, QueueKind
from bucketsched.core.errors import OutcomeUnknown, OwnershipLost, Unavailable
from bucketsched.core.message import Message
from bucketsched.ports import CommitRefused, JournalEntry, Subscription

QUEUE = Queue(uuid4().bytes, "default", "q", QueueKind.WORKER)
DEADLINE_S = 20.0


def message(value: bytes) -> Message:
    return Message(bytes(48), QUEUE, "", None, [("ce_id", b"1")], value)


@dataclass(slots=True)
class Process:
    """What a process has of a directory."""

    database: Database
    outbox: Outbox
    journal: SqliteJournal
    deliveries: SqliteDeliveries

    @classmethod
    async def start(cls, directory: Path) -> Process:
        database = Database.open(directory)
        outbox = Outbox(database)
        journal = SqliteJournal(database, outbox, "journal")
        await journal.init()
        return cls(database, outbox, journal, SqliteDeliveries(outbox))

    async def records(self) -> list[JournalEntry]:
        start = await self.journal.start(0)
        return [entry async for batch in self.journal.read(0, start) for entry in batch]


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[Process]:
    started = await Process.start(tmp_path)
    yield started
    await started.database.close()


async def fetch(subscription: Subscription, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        found += [d.value for d in await asyncio.wait_for(subscription.fetch(count - len(found)), DEADLINE_S)]
    return found


# ---------------------------------------------------------------- trimming


async def test_trimming_moves_the_start_and_keeps_the_rest(process: Process) -> None:
    for i in range(10):
        await process.journal.commit([message(b"%d" % i)], b"%d" % i)
    await process.journal.trim(0, 7)
    assert (await process.journal.start(0), await process.journal.end(0)) == (7, 10)
    assert [entry.value for entry in await process.records()] == [b"7", b"8", b"9"]
    await process.journal.trim(0, 3)
    assert await process.journal.start(0) == 7
    subscription = await process.deliveries.subscribe(QUEUE)
    assert len(await fetch(subscription, 10)) == 10, "the outbox is not the journal"


async def test_trimming_everything_leaves_the_offsets(process: Process, tmp_path: Path) -> None:
    for _ in range(3):
        await process.journal.commit([], b"r")
    await process.journal.trim(0, 100)
    assert (await process.journal.start(0), await process.journal.end(0)) == (3, 3)
    assert await process.journal.commit([], b"r") == 3


async def test_trimming_is_bounded(process: Process) -> None:
    count = TRIM_RECORDS_MAX + 10
    await asyncio.gather(*(process.journal.commit([], b"r") for _ in range(count)))
    assert await process.journal.trim(0, count)
    assert await process.journal.start(0) == TRIM_RECORDS_MAX
    assert not await process.journal.trim(0, count)
    assert await process.journal.start(0) == count


async def test_a_lane_that_nobody_wrote_can_be_trimmed(process: Process) -> None:
    await process.journal.trim(5, 10)
    assert (await process.journal.start(5), await process.journal.end(5)) == (0, 0)


# ---------------------------------------------------------------- a restart


async def test_after_a_restart_everything_goes_on(tmp_path: Path) -> None:
    first = await Process.start(tmp_path)
    offset = await first.journal.commit([message(b"1"), message(b"2"), message(b"3")], b"first")
    subscription = await first.deliveries.subscribe(QUEUE)
    fetched = await subscription.fetch(3)
    await subscription.ack([fetched[1].token])
    await first.database.close()

    second = await Process.start(tmp_path)
    assert await second.records() == [JournalEntry(offset, b"first")]
    subscription = await second.deliveries.subscribe(QUEUE)
    assert await second.journal.commit([message(b"4")], b"second") == offset + 1
    assert await fetch(subscription, 3) == [b"1", b"3", b"4"]
    await second.database.close()


async def test_numbers_may_start_again_after_a_restart(tmp_path: Path) -> None:
    first = await Process.start(tmp_path)
    await first.journal.commit([message(b"1")], b"r")
    subscription = await first.deliveries.subscribe(QUEUE)
    await subscription.ack([delivery.token for delivery in await subscription.fetch(1)])
    await first.database.close()

    second = await Process.start(tmp_path)
    subscription = await second.deliveries.subscribe(QUEUE)
    await second.journal.commit([message(b"2")], b"r")
    assert await fetch(subscription, 1) == [b"2"]
    await second.database.close()


async def test_in_one_process_no_number_comes_twice(process: Process) -> None:
    subscription = await process.deliveries.subscribe(QUEUE)
    for i in range(3):
        await process.journal.commit([message(b"%d" % i)], b"r")
        (delivery,) = await asyncio.wait_for(subscription.fetch(10), DEADLINE_S)
        assert delivery.value == b"%d" % i
        await subscription.ack([delivery.token])


# ---------------------------------------------------------------- refused


async def fill(database: Database) -> None:
    """No page more from now on."""
    (pages,) = await database.write(lambda c: c.execute("PRAGMA page_count").fetchone())
    await database.write(lambda c: c.execute(f"PRAGMA max_page_count = {pages}").fetchall())


async def test_a_full_disk_refuses_a_commit_whole_and_passes(process: Process) -> None:
    subscription = await process.deliveries.subscribe(QUEUE)
    await process.journal.commit([message(b"before")], b"before")
    await fill(process.database)
    batch = [message(bytes(20_000)) for _ in range(50)]
    with pytest.raises(CommitRefused) as refused:
        await process.journal.commit(batch, b"refused")
    assert refused.value.culprits == {}
    assert [entry.value for entry in await process.records()] == [b"before"]
    await process.database.write(lambda c: c.execute("PRAGMA max_page_count = 1000000").fetchall())
    await process.journal.commit(batch, b"after")
    assert [entry.value for entry in await process.records()] == [b"before", b"after"]
    assert await fetch(subscription, 51) == [b"before", *[bytes(20_000)] * 50]


async def test_a_stale_commit_leaves_no_messages(process: Process) -> None:
    subscription = await process.deliveries.subscribe(QUEUE)
    heir = SqliteJournal(process.database, process.outbox, "journal")
    await heir.init()
    stale = process.journal.commit([message(b"stale")], b"stale")
    sound = heir.commit([message(b"sound")], b"sound")
    answers = await asyncio.gather(stale, sound, return_exceptions=True)
    assert isinstance(answers[0], OwnershipLost)
    assert answers[1] == 0
    assert await fetch(subscription, 1) == [b"sound"]


async def test_a_commit_in_doubt_is_not_delivered_and_not_retried(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def doubt(*_: object, **__: object) -> None:
        raise OutcomeUnknown("a sync failed")

    with monkeypatch.context() as patched:
        patched.setattr(Database, "write", doubt)
        with pytest.raises(OutcomeUnknown):
            await process.journal.commit([message(b"x")], b"r")
        with pytest.raises(Unavailable):
            await process.journal.init()
    await process.journal.init()
    assert await process.records() == []


# ---------------------------------------------------------------- the way through memory


async def test_what_memory_does_not_hold_is_read_from_disk_in_order(process: Process) -> None:
    subscription = await process.deliveries.subscribe(QUEUE)
    await process.journal.commit([message(b"first")], b"r")
    assert len(await subscription.fetch(10)) == 1, "now it has seen all that the table holds"
    total = 3 * MESSAGES_IN_MEMORY_MAX
    sent = [b"%d" % i for i in range(total)]
    for i in range(0, total, 500):
        await process.journal.commit([message(value) for value in sent[i : i + 500]], b"r")
    held = subscription.backlog
    assert len(held.take(total)) == MESSAGES_IN_MEMORY_MAX
    assert held.on_disk
    rest = sent[MESSAGES_IN_MEMORY_MAX:]
    assert await fetch(subscription, len(rest)) == rest
    await process.journal.commit([message(b"last")], b"r")
    assert await fetch(subscription, 1) == [b"last"]


async def test_large_messages_do_not_fill_the_memory(process: Process) -> None:
    subscription = await process.deliveries.subscribe(QUEUE)
    await process.journal.commit([message(b"first")], b"r")
    assert len(await subscription.fetch(10)) == 1, "now it has seen all that the table holds"
    size, count = 64 * 1024, 200
    for i in range(count):
        await process.journal.commit([message(b"%d " % i + bytes(size))], b"r")
    seen, largest = [], 0
    while len(seen) < count:
        batch = await asyncio.wait_for(subscription.fetch(1_000), DEADLINE_S)
        largest = max(largest, sum(len(delivery.value) for delivery in batch))
        seen += [int(delivery.value.split(b" ")[0]) for delivery in batch]
    assert seen == list(range(count))
    assert largest <= BYTES_PER_READ_MAX + 2 * size


async def test_nothing_is_lost_or_doubled_between_disk_and_memory(process: Process) -> None:
    """Commits race with reads of the table: what a read saw must not come from memory too."""
    total = 6_000

    async def publish() -> None:
        for i in range(0, total, 3):
            await process.journal.commit([message(b"%d" % j) for j in range(i, i + 3)], b"r")

    publishing = asyncio.create_task(publish())
    seen: list[int] = []
    while len(seen) < total:
        subscription = await process.deliveries.subscribe(QUEUE)
        for _ in range(7):
            if len(seen) == total:
                break
            batch = await asyncio.wait_for(subscription.fetch(50), DEADLINE_S)
            await subscription.ack([delivery.token for delivery in batch])
            seen += [int(delivery.value) for delivery in batch]
        await subscription.close()
    await publishing
    assert seen == list(range(total))


async def test_a_queue_has_one_subscription_at_a_time(process: Process) -> None:
    subscription = await process.deliveries.subscribe(QUEUE)
    with pytest.raises(Unavailable):
        await process.deliveries.subscribe(QUEUE)
    await subscription.close()
    await (await process.deliveries.subscribe(QUEUE)).close()


def test_headers_survive_packing() -> None:
    headers = [("ce_id", b"1"), ("", b""), ("schlüssel", bytes(range(256))), ("twice", b"a"), ("twice", b"b")]
    assert unpack_headers(pack_headers(headers)) == headers
    assert unpack_headers(pack_headers([])) == []
