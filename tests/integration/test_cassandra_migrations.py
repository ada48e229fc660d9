"""Migrations on a real Cassandra: from many nodes at once, and what they refuse."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from bucketsched.adapters.cassandra.catalog import CassandraCatalog
from bucketsched.adapters.cassandra.checkpoints import CassandraCheckpointStore
from bucketsched.adapters.cassandra.migrations import (
    LOCK_RENEWAL_S,
    LOCK_TTL_S,
    MigrationReport,
    files_directory,
    migrate,
    read_migrations,
)
from bucketsched.adapters.cassandra.session import CassandraSession
from bucketsched.adapters.system_clock import SystemClock
from bucketsched.config import CassandraSettings, load
from bucketsched.core.checkpoint import NO_OFFSET, Checkpoint
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.errors import ConfigError, Unavailable
from bucketsched.core.task import bucket_of
from bucketsched.ports import Clock

pytestmark = pytest.mark.stack

NAMES = tuple(migration.name for migration in read_migrations(files_directory()))


@pytest.fixture
def settings(stack: object, keyspace_name: str) -> CassandraSettings:
    given = load(str(stack.settings)).cassandra  # type: ignore[attr-defined]
    return given.model_copy(update={"keyspace": keyspace_name, "request_timeout_ms": 10_000})


@pytest.fixture
def clock() -> Clock:
    return SystemClock(error_ms=0)


@pytest.fixture
def constants() -> ClusterConstants:
    return ClusterConstants(uuid4(), shards=16, ranges=4)


@pytest.fixture
async def session(settings: CassandraSettings) -> AsyncIterator[CassandraSession]:
    """A connection for looking into the keyspace, whether it is there yet or not."""
    opened = await CassandraSession.connect(settings, must_exist=False)
    yield opened
    await opened.close()


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(files_directory(), tmp_path / "cql"))


async def run(
    settings: CassandraSettings, constants: ClusterConstants | None, clock: Clock, directory: Path | None = None
) -> MigrationReport:
    return await migrate(settings, constants, directory or files_directory(), clock)


async def test_the_first_migration_makes_everything(
    settings: CassandraSettings, constants: ClusterConstants, clock: Clock, session: CassandraSession
) -> None:
    before = bucket_of(clock.now_ms())
    report = await run(settings, constants, clock)
    assert report == MigrationReport(NAMES, constants, checkpoints_written=4)
    catalog = await CassandraCatalog.open(session)
    assert await catalog.constants() == constants
    checkpoints = await CassandraCheckpointStore.open(session)
    for range_id in range(4):
        first = await checkpoints.load(range_id)
        assert first is not None
        assert before <= first.first_open_bucket <= bucket_of(clock.now_ms())
        assert first == Checkpoint(0, 0, constants.journal_name, 0, NO_OFFSET, b"", first.first_open_bucket)
    assert await checkpoints.load(4) is None


async def test_four_nodes_at_once_do_it_once(
    settings: CassandraSettings, constants: ClusterConstants, clock: Clock
) -> None:
    """Each brings a cluster id of its own: the first one's stays."""
    reports = await asyncio.gather(
        *(run(settings, replace(constants, cluster_id=uuid4()), clock) for _ in range(4)),
    )
    assert sorted(report.applied for report in reports) == [(), (), (), NAMES]
    assert len({report.constants for report in reports}) == 1
    assert sorted(report.checkpoints_written for report in reports) == [0, 0, 0, 4]


async def test_a_second_migration_changes_nothing(
    settings: CassandraSettings, constants: ClusterConstants, clock: Clock, session: CassandraSession
) -> None:
    await run(settings, constants, clock)
    later = Checkpoint(3, 7, "journal", 2, 99, b"h" * 16, 1)
    checkpoints = await CassandraCheckpointStore.open(session)
    await checkpoints.save(2, later)
    assert await run(settings, constants, clock) == MigrationReport((), constants, checkpoints_written=0)
    assert await run(settings, None, clock) == MigrationReport((), constants, checkpoints_written=0)
    assert await checkpoints.load(2) == later


async def test_without_constants_there_are_no_ranges_yet(settings: CassandraSettings, clock: Clock) -> None:
    assert await run(settings, None, clock) == MigrationReport(NAMES, None, checkpoints_written=0)


async def test_other_constants_are_refused_by_name(
    settings: CassandraSettings, constants: ClusterConstants, clock: Clock
) -> None:
    await run(settings, constants, clock)
    with pytest.raises(ConfigError, match=r"^shards of this cluster is 16 for its whole life, not 32$"):
        await run(settings, replace(constants, shards=32), clock)
    with pytest.raises(ConfigError, match="grace_ms"):
        await run(settings, replace(constants, grace_ms=5_000), clock)


async def test_a_file_that_came_later_is_applied(
    settings: CassandraSettings, constants: ClusterConstants, clock: Clock, copied: Path
) -> None:
    await run(settings, constants, clock, copied)
    (copied / "0099_more.cql").write_text(
        "-- one; with a comment\nCREATE TABLE IF NOT EXISTS more (id int PRIMARY KEY);\n"
    )
    assert (await run(settings, constants, clock, copied)).applied == ("0099_more.cql",)
    assert (await run(settings, constants, clock, copied)).applied == ()


async def test_an_applied_file_must_not_change(
    settings: CassandraSettings, constants: ClusterConstants, clock: Clock, copied: Path
) -> None:
    await run(settings, constants, clock, copied)
    with (copied / NAMES[0]).open("a") as file:
        file.write("\nCREATE TABLE IF NOT EXISTS smuggled (id int PRIMARY KEY);\n")
    with pytest.raises(ConfigError, match=f"{NAMES[0]} was changed"):
        await run(settings, constants, clock, copied)


async def test_a_migrator_that_died_half_way_is_followed_by_another(
    settings: CassandraSettings, constants: ClusterConstants, clock: Clock, copied: Path
) -> None:
    text = (copied / NAMES[0]).read_text()
    (copied / NAMES[0]).write_text(text + "\nCREATE TABLE broken (no_such_type nonsense PRIMARY KEY);\n")
    with pytest.raises(ConfigError, match="Unknown type"):
        await run(settings, constants, clock, copied)
    (copied / NAMES[0]).write_text(text)
    assert (await run(settings, constants, clock, copied)).applied == NAMES


async def test_a_dead_holders_lock_expires(
    settings: CassandraSettings, constants: ClusterConstants, clock: Clock, session: CassandraSession
) -> None:
    assert LOCK_RENEWAL_S * 2 < LOCK_TTL_S <= 30
    await run(settings, constants, clock)
    take = await session.prepare("INSERT INTO @schema_lock (name, owner) VALUES (?, ?) IF NOT EXISTS USING TTL 3")
    taken_s = clock.monotonic()
    assert (await session.write(take, ("schema", uuid4().bytes)) or [])[0][0], "the last migrator freed the lock"
    await run(settings, constants, clock)
    assert clock.monotonic() - taken_s > 2, "the lock was waited for"


async def test_the_holder_keeps_its_lock_by_renewing(
    settings: CassandraSettings, clock: Clock, session: CassandraSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bucketsched.adapters.cassandra import migrations

    await run(settings, None, clock)
    monkeypatch.setattr(migrations, "LOCK_TTL_S", 2)
    monkeypatch.setattr(migrations, "LOCK_RENEWAL_S", 0.5)
    holder = await migrations._Migrator.open(session, clock)
    async with holder.lock():
        await asyncio.sleep(3.5)  # longer than the lock lives by itself
        holder._check_lock()
        other = await migrations._Migrator.open(session, clock)
        assert not await other._change("take", ("schema", other._owner))
    assert await other._change("take", ("schema", other._owner)), "freed at the end"


async def test_a_lost_lock_stops_the_migrator(
    settings: CassandraSettings, clock: Clock, session: CassandraSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bucketsched.adapters.cassandra import migrations

    await run(settings, None, clock)
    holder = await migrations._Migrator.open(session, clock)
    monkeypatch.setattr(migrations, "LOCK_RENEWAL_S", LOCK_TTL_S)  # no renewal comes in time
    async with holder.lock():
        with pytest.raises(Unavailable, match="lock"):
            holder._check_lock()
