"""Numbered CQL files, applied once each, from any number of nodes at once.

A row of the table `schema_lock`, taken by a lightweight transaction with a TTL, makes one node at a time the migrator;
it renews the row while it works, and a dead one's row expires. What was applied is kept in `schema_migrations` with a
checksum. A file's statements can be repeated (IF NOT EXISTS): a migrator that dies between them is followed by another.

The two tables of the migrator itself are made before there is a lock. Their ids are derived from the keyspace's name,
so that nodes that make them at the same moment make the same tables.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid4, uuid5

from ...config import CassandraSettings
from ...core.checkpoint import NO_OFFSET, Checkpoint, CheckpointCorrupt
from ...core.cluster import ClusterConstants
from ...core.errors import ConfigError, NotWritten, OutcomeUnknown, Unavailable
from ...core.task import bucket_of
from ...ports import Clock
from .catalog import CassandraCatalog
from .checkpoints import CassandraCheckpointStore
from .session import CassandraSession

LOCK_TTL_S = 20
LOCK_RENEWAL_S = 5.0
LOCK_POLL_S = 0.25
LOCK_WAIT_S_MAX = 180.0

_FILE = re.compile(r"(\d{4})_[a-z0-9_]+\.cql")
_LOCK_NAME = "schema"
_OWN_TABLES = {
    "schema_lock": "name text PRIMARY KEY, owner uuid",
    "schema_migrations": "name text PRIMARY KEY, checksum text, applied_at timestamp",
}


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What `migrate` did. `constants` are the stored ones, None where nobody has given any yet."""

    applied: tuple[str, ...]
    constants: ClusterConstants | None
    checkpoints_written: int


@dataclass(frozen=True, slots=True)
class Migration:
    """One file of `cql/`."""

    name: str
    statements: tuple[str, ...]
    checksum: str


def files_directory() -> Path:
    """Where the files are: in the installed package, or in the checkout."""
    package = Path(__file__).parents[2]
    installed = package / "cql"
    return installed if installed.is_dir() else package.parents[1] / "cql"


def read_migrations(directory: Path) -> list[Migration]:
    """The files of a directory in their order. Raises ConfigError."""
    names = sorted(path.name for path in directory.glob("*.cql"))
    numbers = [match[1] if (match := _FILE.fullmatch(name)) else "" for name in names]
    if not names:
        raise ConfigError(f"{directory}: there are no .cql files")
    if "" in numbers or len(set(numbers)) < len(numbers):
        raise ConfigError(f"{directory}: names must be NNNN_name.cql with one file a number: {', '.join(names)}")
    return [_migration(directory / name) for name in names]


def _migration(path: Path) -> Migration:
    text = path.read_text(encoding="utf-8")
    code = "\n".join(line.split("--")[0].rstrip() for line in text.splitlines())
    statements = tuple(statement.strip() for statement in code.split(";") if statement.strip())
    return Migration(path.name, statements, hashlib.sha256(text.encode()).hexdigest())


async def migrate(
    settings: CassandraSettings, constants: ClusterConstants | None, directory: Path, clock: Clock
) -> MigrationReport:
    """Brings the keyspace up to date; safe to repeat, and to run from many nodes at once.

    `constants` are stored if there are none; None takes what is stored. The first checkpoint of every range is written
    where there is none. Raises ConfigError where an applied file was changed or a constant differs (the cluster's id,
    which the first migrator chooses, aside), Unavailable.
    """
    migrations = read_migrations(directory)
    session = await CassandraSession.connect(settings, must_exist=False)
    try:
        await _create_keyspace(session, settings)
        migrator = await _Migrator.open(session, clock)
        async with migrator.lock():
            applied = await migrator.apply(migrations)
            stored = await _agree(await CassandraCatalog.open(session), constants)
            written = await _first_checkpoints(await CassandraCheckpointStore.open(session), stored, clock)
    finally:
        await session.close()
    return MigrationReport(applied, stored, written)


async def _create_keyspace(session: CassandraSession, settings: CassandraSettings) -> None:
    datacenter = settings.local_datacenter.replace("'", "''")
    await session.change_schema(
        f"CREATE KEYSPACE IF NOT EXISTS {settings.keyspace} WITH replication = "
        f"{{'class': 'NetworkTopologyStrategy', '{datacenter}': {settings.replication}}} AND durable_writes = true",
        keyspace="",
    )
    for name, columns in _OWN_TABLES.items():
        table_id = uuid5(NAMESPACE_URL, f"bucketsched:{settings.keyspace.lower()}.{name}")
        await session.change_schema(f"CREATE TABLE IF NOT EXISTS {name} ({columns}) WITH id = {table_id}")


async def _agree(catalog: CassandraCatalog, given: ClusterConstants | None) -> ClusterConstants | None:
    if given is None:
        return await catalog.constants()
    stored = await catalog.set_constants(given)
    for field in fields(ClusterConstants):
        old, new = getattr(stored, field.name), getattr(given, field.name)
        if old != new and field.name != "cluster_id":
            raise ConfigError(f"{field.name} of this cluster is {old} for its whole life, not {new}")
    return stored


async def _first_checkpoints(
    checkpoints: CassandraCheckpointStore, constants: ClusterConstants | None, clock: Clock
) -> int:
    if constants is None:
        return 0
    first = Checkpoint(0, 0, constants.journal_name, 0, NO_OFFSET, b"", bucket_of(clock.now_ms()))
    ranges = range(constants.ranges)
    there = await asyncio.gather(*(_is_there(checkpoints, range_id) for range_id in ranges))
    missing = [range_id for range_id in ranges if not there[range_id]]
    await asyncio.gather(*(checkpoints.save(range_id, first) for range_id in missing))
    return len(missing)


async def _is_there(checkpoints: CassandraCheckpointStore, range_id: int) -> bool:
    """One that can't be decoded is: it is not for a migration to say what it was."""
    try:
        return await checkpoints.load(range_id) is not None
    except CheckpointCorrupt:
        return True


class _Migrator:
    """The lock and the list of what was applied."""

    def __init__(self, session: CassandraSession, clock: Clock, statements: dict[str, Any]) -> None:
        self._session = session
        self._clock = clock
        self._statements = statements
        self._owner = uuid4().bytes
        self._renewed_s = 0.0

    @classmethod
    async def open(cls, session: CassandraSession, clock: Clock) -> _Migrator:
        ttl = f"USING TTL {LOCK_TTL_S}"
        texts = {
            "take": f"INSERT INTO @schema_lock (name, owner) VALUES (?, ?) IF NOT EXISTS {ttl}",
            "renew": f"UPDATE @schema_lock {ttl} SET owner = ? WHERE name = ? IF owner = ?",
            "free": "DELETE FROM @schema_lock WHERE name = ? IF owner = ?",
            "applied": "SELECT name, checksum FROM @schema_migrations",
            "record": "INSERT INTO @schema_migrations (name, checksum, applied_at) VALUES (?, ?, ?)",
        }
        statements = {name: await session.prepare(text) for name, text in texts.items()}
        statements["owner"] = await session.prepare("SELECT owner FROM @schema_lock WHERE name = ?", serial=True)
        return cls(session, clock, statements)

    # ------------------------------------------------------------ the lock

    @asynccontextmanager
    async def lock(self) -> AsyncIterator[None]:
        """Makes this the only migrator. Raises Unavailable where another one holds on for too long."""
        await self._take()
        renewal = asyncio.create_task(self._renew())
        try:
            yield
        finally:
            renewal.cancel()
            await asyncio.wait([renewal])
            await self._change("free", (_LOCK_NAME, self._owner))

    async def _take(self) -> None:
        deadline_s = self._clock.monotonic() + LOCK_WAIT_S_MAX
        while self._clock.monotonic() < deadline_s:
            asked_s = self._clock.monotonic()
            if await self._change("take", (_LOCK_NAME, self._owner)):
                self._renewed_s = asked_s
                return
            await self._clock.sleep(LOCK_POLL_S)
        raise Unavailable("cassandra: another migration holds the lock")

    async def _renew(self) -> None:
        while True:
            await self._clock.sleep(LOCK_RENEWAL_S)
            asked_s = self._clock.monotonic()
            if await self._change("renew", (self._owner, _LOCK_NAME, self._owner)):
                self._renewed_s = asked_s

    def _check_lock(self) -> None:
        if self._clock.monotonic() > self._renewed_s + LOCK_TTL_S - LOCK_RENEWAL_S:
            raise Unavailable("cassandra: the lock of the migration was lost; run it again")

    async def _change(self, statement: str, values: tuple[Any, ...]) -> bool:
        """Executes a lightweight transaction on the lock; True if this migrator holds it afterwards."""
        try:
            answer = await self._session.write(self._statements[statement], values)
            return bool(answer and answer[0][0])
        except (NotWritten, OutcomeUnknown):
            pass
        try:
            rows = await self._session.read(self._statements["owner"], (_LOCK_NAME,))
        except Unavailable:
            return False
        return bool(rows) and rows[0][0] == self._owner

    # ------------------------------------------------------------ the files

    async def apply(self, migrations: list[Migration]) -> tuple[str, ...]:
        """Applies what is missing; the names of it."""
        checksums: dict[str, str] = dict(await self._session.read(self._statements["applied"], ()))
        for migration in migrations:
            if checksums.get(migration.name, migration.checksum) != migration.checksum:
                raise ConfigError(f"{migration.name} was changed after it was applied: add a new file instead")
        missing = [migration for migration in migrations if migration.name not in checksums]
        for migration in missing:
            await self._apply(migration)
        return tuple(migration.name for migration in missing)

    async def _apply(self, migration: Migration) -> None:
        for statement in migration.statements:
            self._check_lock()
            await self._session.change_schema(statement)
        try:
            values = (migration.name, migration.checksum, self._clock.now_ms())
            await self._session.write(self._statements["record"], values)
        except (NotWritten, OutcomeUnknown) as error:
            raise Unavailable(str(error)) from error
