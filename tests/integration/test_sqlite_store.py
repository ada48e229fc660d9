"""What the SQLite stores do beyond the suites: the start, expiry, a full disk, a restart."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from bucketsched.adapters.sqlite import store as store_module
from bucketsched.adapters.sqlite.catalog import SqliteCatalog, embedded_constants
from bucketsched.adapters.sqlite.checkpoints import SqliteCheckpointStore
from bucketsched.adapters.sqlite.database import Database
from bucketsched.adapters.sqlite.store import PAGE_BYTES_MAX, ROW_BYTES, SqliteTaskStore
from bucketsched.adapters.sqlite.writer import ROWS_PER_COMMIT_MAX
from bucketsched.core.catalog import Queue, QueueKind
from bucketsched.core.checkpoint import NO_OFFSET
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.errors import NoRoom, NotWritten, Unavailable
from bucketsched.core.task import BUCKET_MS, FactKind, Facts, Mark, TaskBody, TaskRow
from bucketsched.core.task_id import RANDOM_BITS, mint

NAMESPACE = uuid4().bytes
DAY_MS = 86_400_000
NOW_MS = 1_800_000_000_000


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = Database.open(tmp_path)
    yield opened
    await opened.close()


def row(due_ms: int, payload: bytes = b"x") -> TaskRow:
    task_id = mint(due_ms, 1, secrets.randbits(RANDOM_BITS))
    return TaskRow(due_ms, NAMESPACE, task_id, TaskBody("default", "default", "t", payload))


async def still_there(store: SqliteTaskStore, rows: list[TaskRow]) -> list[bool]:
    return [await store.get(r.due_ms, r.namespace_id, r.task_id) is not None for r in rows]


# ---------------------------------------------------------------- the start


async def test_a_new_database_gets_everything_that_a_start_needs(database: Database) -> None:
    catalog = SqliteCatalog(database)
    assert await catalog.constants() is None
    constants = await catalog.establish(embedded_constants(), NOW_MS)
    assert (constants.shards, constants.ranges, constants.lanes) == (4, 1, 1)
    assert await catalog.constants() == constants
    checkpoint = await SqliteCheckpointStore(database).load(0)
    assert checkpoint is not None
    assert (checkpoint.epoch, checkpoint.journal, checkpoint.lane) == (0, constants.journal_name, 0)
    assert (checkpoint.applied_offset, checkpoint.first_open_bucket) == (NO_OFFSET, NOW_MS // BUCKET_MS)
    namespace = await catalog.get_namespace("default")
    assert namespace is not None
    queue = await catalog.get_queue(namespace.namespace_id, "default")
    assert queue is not None
    assert queue.kind is QueueKind.WORKER


async def test_an_established_database_keeps_what_it_has(tmp_path: Path) -> None:
    database = Database.open(tmp_path)
    given = ClusterConstants(uuid4(), shards=8, ranges=2, lanes=1, horizon_ms=5_000)
    assert await SqliteCatalog(database).establish(given, NOW_MS) == given
    await database.close()
    database = Database.open(tmp_path)
    assert await SqliteCatalog(database).establish(embedded_constants(), NOW_MS + DAY_MS) == given
    checkpoint = await SqliteCheckpointStore(database).load(1)
    assert checkpoint is not None
    assert checkpoint.first_open_bucket == NOW_MS // BUCKET_MS
    await database.close()


# ---------------------------------------------------------------- expiry


async def test_settled_rows_go_when_their_retention_is_over(database: Database) -> None:
    store = SqliteTaskStore(database)
    rows = [row(NOW_MS - DAY_MS + offset) for offset in (-BUCKET_MS, -1, 0, BUCKET_MS)]
    await store.insert(rows)
    await store.mark([Mark(r.ref, FactKind.DISPATCHED, r.due_ms) for r in rows])
    assert await store.purge(NOW_MS, DAY_MS) == 2
    assert await still_there(store, rows) == [False, False, True, True]
    assert await store.purge(NOW_MS, DAY_MS) == 0


@pytest.mark.parametrize("kind", [FactKind.DISPATCHED, FactKind.CANCELLED, FactKind.FAILED])
async def test_every_kind_of_end_counts(database: Database, kind: FactKind) -> None:
    store = SqliteTaskStore(database)
    old = row(NOW_MS - 2 * DAY_MS)
    await store.insert([old])
    await store.mark([Mark(old.ref, kind, old.due_ms)])
    assert await store.purge(NOW_MS, DAY_MS) == 1


async def test_what_was_not_dispatched_stays_however_old(database: Database) -> None:
    store = SqliteTaskStore(database)
    old = row(NOW_MS - 100 * DAY_MS)
    await store.insert([old])
    assert await store.purge(NOW_MS, DAY_MS) == 0
    assert await still_there(store, [old]) == [True]


async def test_a_moved_row_stays_as_long_as_its_task(database: Database) -> None:
    store = SqliteTaskStore(database)
    moved = row(NOW_MS - 5 * DAY_MS)
    await store.insert([moved])
    await store.mark([Mark(moved.ref, FactKind.MOVED, NOW_MS)])
    assert await store.purge(NOW_MS, DAY_MS) == 0
    assert await store.purge(NOW_MS + DAY_MS, DAY_MS) == 0
    assert await store.purge(NOW_MS + DAY_MS + 1, DAY_MS) == 1


async def test_facts_without_a_row_go_too(database: Database) -> None:
    store = SqliteTaskStore(database)
    await store.mark([Mark(row(NOW_MS - 2 * DAY_MS).ref, FactKind.CANCELLED, 1)])
    assert await store.purge(NOW_MS, DAY_MS) == 1


async def test_one_purge_is_bounded(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "PURGE_ROWS_MAX", 500)
    store = SqliteTaskStore(database)
    rows = [row(NOW_MS - 2 * DAY_MS + i) for i in range(1_200)]
    await store.insert(rows)
    await store.mark([Mark(r.ref, FactKind.DISPATCHED, r.due_ms) for r in rows])
    assert [await store.purge(NOW_MS, DAY_MS) for _ in range(4)] == [500, 500, 200, 0]


# ---------------------------------------------------------------- rows


async def test_the_first_fact_of_a_kind_stays(database: Database) -> None:
    store = SqliteTaskStore(database)
    there = row(NOW_MS)
    await store.insert([there])
    await store.mark([Mark(there.ref, FactKind.FAILED, 5, "first")])
    await store.mark([Mark(there.ref, FactKind.FAILED, 6, "second")])
    stored = await store.get(there.due_ms, there.namespace_id, there.task_id)
    assert stored is not None
    assert stored.facts == Facts(failed_ms=5, failed_reason="first")


async def test_large_rows_are_written_in_small_operations_and_read_in_small_pages(database: Database) -> None:
    store = SqliteTaskStore(database)
    rows = [row(NOW_MS + i, bytes(64 * 1024)) for i in range(300)]
    before = database.commits
    assert await store.insert(rows) == [None] * 300
    assert database.commits - before >= 300 * 64 * 1024 // (ROWS_PER_COMMIT_MAX * ROW_BYTES)
    seen: list[TaskRow] = []
    complete = False
    while not complete:
        page = await store.read_partition(rows[0].bucket, 1, seen[-1].ref if seen else None, NOW_MS + 300, 1_000)
        assert 1 <= len(page.tasks) <= PAGE_BYTES_MAX // (64 * 1024) + 1
        seen += [task.row for task in page.tasks]
        complete = page.complete
    assert seen == rows


# ---------------------------------------------------------------- a full disk


async def test_on_a_full_disk_rows_are_not_written_and_marks_unavailable(database: Database) -> None:
    store = SqliteTaskStore(database)
    there = row(NOW_MS)
    await store.insert([there])
    (pages,) = await database.write(lambda c: c.execute("PRAGMA page_count").fetchone())
    await database.write(lambda c: c.execute(f"PRAGMA max_page_count = {pages}").fetchall())
    answers = await store.insert([row(NOW_MS + i, bytes(10_000)) for i in range(10)])
    assert {type(answer) for answer in answers} == {NoRoom}
    with pytest.raises(Unavailable):
        await store.mark([Mark(row(NOW_MS + i).ref, FactKind.CANCELLED, 1) for i in range(2_000)])
    assert await still_there(store, [there]) == [True]
    await database.write(lambda c: c.execute("PRAGMA max_page_count = 1000000").fetchall())
    assert await store.insert([row(NOW_MS + 1, bytes(10_000))]) == [None]


async def test_of_a_large_insert_only_what_did_not_fit_is_refused(database: Database) -> None:
    store = SqliteTaskStore(database)
    rows = [row(NOW_MS + i, bytes(1_000)) for i in range(2_000)]
    (pages,) = await database.write(lambda c: c.execute("PRAGMA page_count").fetchone())
    await database.write(lambda c: c.execute(f"PRAGMA max_page_count = {pages + 150}").fetchall())
    answers = await store.insert(rows)
    assert len(answers) == len(rows)
    assert any(answer is None for answer in answers)
    assert any(isinstance(answer, NotWritten) for answer in answers)
    assert await still_there(store, rows) == [answer is None for answer in answers]


async def test_presences_go_a_day_after_the_rows_of_their_partition(database: Database) -> None:
    await SqliteCatalog(database).create_queue(Queue(NAMESPACE, "default", "default", QueueKind.WORKER))
    store = SqliteTaskStore(database)
    long_ago, before, after = (row(NOW_MS - 2 * DAY_MS + ms) for ms in (-DAY_MS, -BUCKET_MS, BUCKET_MS))
    waiting = row(NOW_MS - 4 * DAY_MS)
    await store.insert([long_ago, before, after, waiting])
    await store.mark([Mark(r.ref, FactKind.DISPATCHED, r.due_ms) for r in (long_ago, before, after)])
    window = (NAMESPACE, "default", 0, 1 << 40, 100)
    assert [bucket for bucket, _ in await store.partitions(*window)] == [
        each.bucket for each in (waiting, long_ago, before, after)
    ]
    assert await store.purge(NOW_MS, DAY_MS) == 3
    assert [bucket for bucket, _ in await store.partitions(*window)] == [waiting.bucket, after.bucket]
    await store.insert([before])  # that its presence was stored is forgotten, too
    assert before.bucket in [bucket for bucket, _ in await store.partitions(*window)]


async def test_rows_and_presences_are_stored_together_or_not_at_all(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, stored = SqliteTaskStore(database), row(NOW_MS)

    def fail(connection: sqlite3.Connection, presences: object) -> None:
        raise sqlite3.OperationalError("no")

    with monkeypatch.context() as patched:
        patched.setattr(store_module, "insert_presences", fail)
        (answer,) = await store.insert([stored])
        assert isinstance(answer, NotWritten)
    assert await still_there(store, [stored]) == [False]
    assert await store.insert([stored]) == [None]
    assert await store.partitions(NAMESPACE, "default", 0, 1 << 40, 100) == [(stored.bucket, 1)]
