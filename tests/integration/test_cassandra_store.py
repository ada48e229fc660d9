"""What of the Cassandra adapters the conformance suites can't see: TTLs, bisecting, paging by size, connecting."""

from __future__ import annotations

import asyncio
import os
import secrets
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from bucketsched.adapters.cassandra.migrations import files_directory, migrate
from bucketsched.adapters.cassandra.session import CassandraSession
from bucketsched.adapters.cassandra.store import (
    EXPIRES_S_MAX,
    FACTS_OUTLIVE_S,
    READ_BYTES_TARGET,
    TTL_S_MIN,
    CassandraTaskStore,
)
from bucketsched.adapters.system_clock import SystemClock
from bucketsched.config import CassandraSettings, load
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.errors import ConfigError, NotWritten, Unavailable
from bucketsched.core.task import FactKind, Mark, TaskBody, TaskRow, bucket_end_ms, bucket_of
from bucketsched.core.task_id import mint, shard_in

pytestmark = pytest.mark.stack

CLOCK = SystemClock()
DAY_S = 86_400
RETENTION_S = 90 * DAY_S
SHARD = 5


@pytest.fixture(scope="module")
def migrated(stack: object) -> Iterator[CassandraSettings]:
    """One keyspace for all tests of this file: each uses a namespace and a bucket of its own."""
    given = load(str(stack.settings)).cassandra  # type: ignore[attr-defined]
    name = f"t_{uuid.uuid4().hex}"
    settings = given.model_copy(update={"keyspace": name, "request_timeout_ms": 20_000})
    constants = ClusterConstants(uuid.uuid4(), shards=16, ranges=1)
    asyncio.run(migrate(settings, constants, files_directory(), CLOCK))
    yield settings
    asyncio.run(_drop(settings))


async def _drop(settings: CassandraSettings) -> None:
    session = await CassandraSession.connect(settings)
    await session.change_schema(f"DROP KEYSPACE {settings.keyspace}", keyspace="")
    await session.close()


@pytest.fixture
def settings(migrated: CassandraSettings) -> CassandraSettings:
    return migrated


@pytest.fixture
async def session(settings: CassandraSettings) -> AsyncIterator[CassandraSession]:
    opened = await CassandraSession.connect(settings)
    yield opened
    await opened.close()


@pytest.fixture
async def tasks(session: CassandraSession, settings: CassandraSettings) -> CassandraTaskStore:
    return await CassandraTaskStore.open(session, settings, CLOCK, RETENTION_S * 1000)


def fresh_due_ms() -> int:
    """The start of a bucket of the coming year."""
    return (bucket_of(CLOCK.now_ms()) + 10 + secrets.randbelow(400_000)) * 60_000


def row(due_ms: int, payload_bytes: int = 10, shard: int = SHARD, namespace: bytes = b"n" * 16) -> TaskRow:
    body = TaskBody("default", "default", "t", os.urandom(payload_bytes))
    return TaskRow(due_ms, namespace, mint(due_ms, shard, secrets.randbits(62)), body)


async def read_back(tasks: CassandraTaskStore, bucket: int, shard: int = SHARD) -> list[TaskRow]:
    found: list[TaskRow] = []
    while True:
        page = await tasks.read_partition(bucket, shard, found[-1].ref if found else None, bucket_end_ms(bucket), 1_000)
        found += [task.row for task in page.tasks]
        if page.complete:
            return found


class TestExpiry:
    async def ttl_s(self, session: CassandraSession, stored: TaskRow, column: str) -> int:
        prepared = await session.prepare(
            f"SELECT TTL({column}) FROM @tasks "
            "WHERE bucket = ? AND shard = ? AND due_at = ? AND namespace_id = ? AND task_id = ?"
        )
        place = (stored.bucket, shard_in(stored.task_id), stored.due_ms, stored.namespace_id, stored.task_id)
        rows = await session.read(prepared, place)
        return int(rows[0][0])

    async def test_a_row_lives_until_due_plus_retention_and_its_facts_longer(
        self, session: CassandraSession, tasks: CassandraTaskStore
    ) -> None:
        stored = row(fresh_due_ms())
        expected = stored.due_ms // 1000 - CLOCK.now_ms() // 1000 + RETENTION_S
        assert await tasks.insert([stored]) == [None]
        await tasks.mark([Mark(stored.ref, FactKind.FAILED, 1, "why")])
        for column in ("body", "generation", "attempt"):
            assert expected - 60 <= await self.ttl_s(session, stored, column) <= expected
        for column in ("failed_at", "failed_reason"):
            ttl_s = await self.ttl_s(session, stored, column)
            assert expected + FACTS_OUTLIVE_S - 60 <= ttl_s <= expected + FACTS_OUTLIVE_S

    async def test_what_is_long_over_is_kept_for_a_while_all_the_same(
        self, session: CassandraSession, tasks: CassandraTaskStore
    ) -> None:
        stored = row(CLOCK.now_ms() - 200 * DAY_S * 1000)
        assert await tasks.insert([stored]) == [None]
        assert 0 < await self.ttl_s(session, stored, "body") <= TTL_S_MIN

    async def test_a_row_that_would_outlive_the_servers_last_date_is_kept_until_then(
        self, tasks: CassandraTaskStore
    ) -> None:
        stored = row((EXPIRES_S_MAX - DAY_S) * 1000)
        assert await tasks.insert([stored]) == [None]
        await tasks.mark([Mark(stored.ref, FactKind.CANCELLED, 1)])

    async def test_a_row_due_after_that_date_is_not_written(self, tasks: CassandraTaskStore) -> None:
        due_ms = fresh_due_ms()
        answers = await tasks.insert([row(due_ms), row((EXPIRES_S_MAX + 1) * 1000), row(due_ms)])
        assert [type(answer) for answer in answers] == [type(None), NotWritten, type(None)]


class TestBisecting:
    """The server refuses batches over 64 KiB (batch_size_fail_threshold of the test's cassandra.yaml)."""

    @pytest.fixture
    async def eager(self, session: CassandraSession, settings: CassandraSettings) -> CassandraTaskStore:
        """Sends batches that the server can't take."""
        large = settings.model_copy(update={"batch_bytes_max": 1024 * 1024, "batch_rows_max": 100})
        return await CassandraTaskStore.open(session, large, CLOCK, RETENTION_S * 1000)

    async def test_a_batch_too_large_is_cut_until_it_fits(self, eager: CassandraTaskStore) -> None:
        due_ms = fresh_due_ms()
        rows = [row(due_ms + i, 5_000 + 1_000 * (i % 7)) for i in range(50)]
        assert await eager.insert(rows) == [None] * 50
        assert await read_back(eager, bucket_of(due_ms)) == rows

    async def test_a_row_that_the_server_refuses_is_refused_alone(self, eager: CassandraTaskStore) -> None:
        """Over half a commit log segment (8 MiB here) no mutation is taken."""
        due_ms = fresh_due_ms()
        sizes = [10, 10, 9 * 1024 * 1024, 10]
        rows = [row(due_ms + i, size) for i, size in enumerate(sizes)]
        answers = await eager.insert(rows)
        assert [answer is None for answer in answers] == [True, True, False, True]
        assert isinstance(answers[2], NotWritten)
        assert await read_back(eager, bucket_of(due_ms)) == [rows[0], rows[1], rows[3]]


class TestPressure:
    async def test_a_full_socket_fails_neither_writes_nor_the_reads_behind_them(
        self, session: CassandraSession, settings: CassandraSettings
    ) -> None:
        many = settings.model_copy(update={"batches_in_flight_max": 512})
        tasks = await CassandraTaskStore.open(session, many, CLOCK, RETENTION_S * 1000)
        due_ms = fresh_due_ms()
        rows = [row(due_ms + i, 100_000, shard=i % 4) for i in range(400)]
        writing = asyncio.create_task(tasks.insert(rows))
        reads = 0
        while not writing.done():
            await tasks.get(rows[0].due_ms, rows[0].namespace_id, rows[0].task_id)
            reads += 1
        assert await writing == [None] * 400
        assert reads > 0


class TestReading:
    async def test_pages_of_large_rows_are_short(self, tasks: CassandraTaskStore) -> None:
        due_ms = fresh_due_ms()
        rows = [row(due_ms + i, 100_000) for i in range(120)]
        assert await tasks.insert(rows) == [None] * 120
        bucket = bucket_of(due_ms)
        assert await read_back(tasks, bucket) == rows
        page = await tasks.read_partition(bucket, SHARD, None, bucket_end_ms(bucket), 1_000)
        assert not page.complete
        assert sum(len(task.row.body.payload) for task in page.tasks) <= READ_BYTES_TARGET

    async def test_uuids_and_timestamps_survive_a_lightweight_transactions_answer(
        self, session: CassandraSession
    ) -> None:
        """Its columns come with the answer, not with the prepared statement."""
        await session.change_schema("CREATE TABLE IF NOT EXISTS probe (id uuid PRIMARY KEY, at timestamp)")
        insert = await session.prepare("INSERT INTO @probe (id, at) VALUES (?, ?) IF NOT EXISTS")
        key = secrets.token_bytes(16)
        assert await session.write(insert, (key, 1_700_000_000_123)) == [(True,)]
        assert await session.write(insert, (key, 5)) == [(False, key, 1_700_000_000_123)]


class TestPreparedAnew:
    async def test_a_migration_under_a_running_node_changes_nothing_for_it(
        self, session: CassandraSession, tasks: CassandraTaskStore
    ) -> None:
        """Altering a table makes the server forget its statements; the driver then prepares them again."""
        due_ms = fresh_due_ms()
        rows = [row(due_ms + i) for i in range(30)]
        assert await tasks.insert(rows[:10]) == [None] * 10
        assert len(await read_back(tasks, bucket_of(due_ms))) == 10
        await session.change_schema(f"ALTER TABLE tasks ADD extra_{secrets.token_hex(4)} text")
        assert await tasks.insert(rows[10:]) == [None] * 20
        await tasks.mark([Mark(rows[0].ref, FactKind.DISPATCHED, 1), Mark(rows[1].ref, FactKind.CANCELLED, 2)])
        assert await read_back(tasks, bucket_of(due_ms)) == rows
        stored = await tasks.get(rows[1].due_ms, rows[1].namespace_id, rows[1].task_id)
        assert stored is not None
        assert (stored.row, stored.facts.cancelled_ms) == (rows[1], 2)
        refs = await tasks.pending_refs(bucket_of(due_ms), [SHARD], due_ms, due_ms + 30)
        assert refs == [r.ref for r in rows[2:]]


class TestConnecting:
    async def test_an_unknown_data_centre_stops_the_start(self, settings: CassandraSettings) -> None:
        wrong = settings.model_copy(update={"local_datacenter": "elsewhere"})
        with pytest.raises(ConfigError, match=r"^cassandra.local_datacenter: there is no 'elsewhere' among [^\n]+$"):
            await CassandraSession.connect(wrong)

    async def test_a_missing_keyspace_stops_the_start(self, settings: CassandraSettings) -> None:
        wrong = settings.model_copy(update={"keyspace": "no_such_keyspace"})
        with pytest.raises(ConfigError, match="no_such_keyspace: run `bucketsched admin migrate`"):
            await CassandraSession.connect(wrong)

    async def test_missing_tables_stop_the_start(self, settings: CassandraSettings) -> None:
        wrong = settings.model_copy(update={"keyspace": "system_auth"})
        session = await CassandraSession.connect(wrong)
        try:
            with pytest.raises(ConfigError, match="run `bucketsched admin migrate`"):
                await CassandraTaskStore.open(session, wrong, CLOCK, RETENTION_S * 1000)
        finally:
            await session.close()

    async def test_nobody_there_is_unavailable(self, settings: CassandraSettings) -> None:
        wrong = settings.model_copy(update={"contact_points": ("127.0.0.1:1",)})
        with pytest.raises(Unavailable, match=r"no answer from 127\.0\.0\.1:1"):
            await CassandraSession.connect(wrong)

    async def test_an_unknown_host_stops_the_start(self, settings: CassandraSettings) -> None:
        wrong = settings.model_copy(update={"contact_points": ("no-such-host.invalid:9042",)})
        with pytest.raises(ConfigError, match="contact_points"):
            await CassandraSession.connect(wrong)

    async def test_after_close_nothing_is_written_and_nothing_is_available(
        self, session: CassandraSession, tasks: CassandraTaskStore
    ) -> None:
        await session.close()
        stored = row(fresh_due_ms())
        answers = await tasks.insert([stored, stored])
        assert all(isinstance(answer, NotWritten) for answer in answers)
        with pytest.raises(Unavailable):
            await tasks.get(stored.due_ms, stored.namespace_id, stored.task_id)
        with pytest.raises(Unavailable):
            await tasks.mark([Mark(stored.ref, FactKind.CANCELLED, 1)])


async def test_rows_on_several_replica_sets_are_grouped_by_them(session: CassandraSession) -> None:
    """With one node there is one set; the cache must not grow without bound."""
    from bucketsched.adapters.cassandra import session as module

    groups = {session.group_of(secrets.token_bytes(14)) for _ in range(100)}
    assert len(groups) == 1
    assert groups != {frozenset()}
    session._groups = dict.fromkeys((i.to_bytes(4, "big") for i in range(module.GROUPS_CACHED_MAX)), "x")
    session.group_of(b"one more")
    assert len(session._groups) == 1
