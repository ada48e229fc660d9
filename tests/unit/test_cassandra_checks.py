"""Rows that were not asked for are never handed on."""

from __future__ import annotations

from typing import Any

import pytest

from bucketsched.adapters.cassandra.checkpoints import CassandraCheckpointStore
from bucketsched.adapters.cassandra.executions import ExecutionsTable
from bucketsched.adapters.cassandra.session import CassandraSession
from bucketsched.adapters.cassandra.store import CassandraTaskStore
from bucketsched.adapters.system_clock import SystemClock
from bucketsched.config import CassandraSettings
from bucketsched.core.errors import Unavailable
from bucketsched.core.task import RowRef, TaskBody
from bucketsched.core.task_id import mint
from bucketsched.encoding.rows import encode_body

BUCKET, SHARD, OTHER = 1_000, 12, 13
DUE_MS = BUCKET * 60_000 + 7
NAMESPACE = b"n" * 16
TASK = mint(DUE_MS, SHARD, 1)
STATEMENTS = dict.fromkeys(("insert", "get", "read_start", "read_after", "pending", "scan", "scan_back"))


class Session:
    """A session whose reads all have the same answer."""

    def __init__(self, *rows: tuple[Any, ...]) -> None:
        self.rows = list(rows)
        self.distrusted: list[str] = []

    def group_of(self, _: bytes) -> None: ...

    def write_batch(self, *_: object) -> None: ...

    async def read(self, *_: object) -> list[tuple[Any, ...]]:
        return list(self.rows)

    def distrust(self, what: str) -> Unavailable:
        self.distrusted.append(what)
        return Unavailable(what)


def store(session: Session) -> CassandraTaskStore:
    executions = ExecutionsTable(session, None, None, None)  # type: ignore[arg-type]
    given: Any = (session, CassandraSettings(), SystemClock(0), 1_000, STATEMENTS, {}, None, executions)
    return CassandraTaskStore(*given)


def row(
    due_ms: int = DUE_MS, namespace_id: bytes = NAMESPACE, task_id: bytes = TASK, body: bytes | None = None
) -> tuple[Any, ...]:
    return (due_ms, namespace_id, task_id, body, 0, 0, *[None] * 7)


def pending(**place: Any) -> tuple[Any, ...]:
    return (*row(**place)[:3], 0, 0, *[None] * 6)


async def test_what_was_asked_for_is_handed_on() -> None:
    body = encode_body(TaskBody("default", "q", "t", b""))
    found = await store(Session(row(body=body))).get(DUE_MS, NAMESPACE, TASK)
    assert found is not None
    assert found.row.task_id == TASK
    page = await store(Session(row(body=body))).read_partition(BUCKET, SHARD, None, DUE_MS + 1, 10)
    assert [task.row.task_id for task in page.tasks] == [TASK]
    assert len(await store(Session(pending())).pending_refs(BUCKET, [SHARD, OTHER], 0, DUE_MS + 1)) == 1


OTHERS = [
    {"due_ms": DUE_MS + 60_000},
    {"task_id": mint(DUE_MS, OTHER, 1)},
]


@pytest.mark.parametrize("place", OTHERS, ids=["bucket", "shard"])
async def test_rows_of_another_partition_are_not(place: dict[str, Any]) -> None:
    for rows in ([row(**place)], [row(), row(**place)]):
        session = Session(*rows)
        with pytest.raises(Unavailable):
            await store(session).read_partition(BUCKET, SHARD, None, DUE_MS + 1, 10)
        assert session.distrusted
        for descending in (False, True):
            session = Session(*rows)
            with pytest.raises(Unavailable):
                await store(session).scan([(BUCKET, SHARD)], RowRef(0, NAMESPACE, TASK, 0, 0).pack(), 10, descending)
            assert session.distrusted
    session = Session(pending(), pending(**place))
    with pytest.raises(Unavailable):
        await store(session).pending_refs(BUCKET, [SHARD], 0, DUE_MS + 1)
    assert session.distrusted


@pytest.mark.parametrize(
    "place",
    [*OTHERS, {"due_ms": DUE_MS + 1}, {"namespace_id": b"m" * 16}, {"task_id": mint(DUE_MS, SHARD, 2)}],
    ids=["bucket", "shard", "due", "namespace", "id"],
)
async def test_another_task_is_not(place: dict[str, Any]) -> None:
    session = Session(row(**place))
    with pytest.raises(Unavailable):
        await store(session).get(DUE_MS, NAMESPACE, TASK)
    assert session.distrusted


async def test_another_ranges_checkpoint_is_not() -> None:
    session = Session((4, b"", 1, 1))
    with pytest.raises(Unavailable):
        await CassandraCheckpointStore(session, None, None).load(3)  # type: ignore[arg-type]
    assert session.distrusted


class Driver:
    """A session of the driver with connections, whose answers come from the test."""

    def __init__(self) -> None:
        self.connections = [Connection(), Connection()]
        self._pools = dict.fromkeys(range(1), self)

    def get_connections(self) -> list[Connection]:
        return self.connections


class Connection:
    ended: Exception | None = None

    def defunct(self, error: Exception) -> None:
        self.ended = error


def test_distrust_ends_all_connections() -> None:
    session, driver = object.__new__(CassandraSession), Driver()
    session._session = driver
    assert isinstance(session.distrust("?"), Unavailable)
    assert all(connection.ended for connection in driver.connections)


async def test_attempts_of_another_task_are_not() -> None:
    attempt = (NAMESPACE, TASK, 0, 1, 5, "w", *[None] * 7)
    assert [found.worker for found in await store(Session(attempt)).attempts(NAMESPACE, TASK)] == ["w"]
    session = Session((b"m" * 16, *attempt[1:]))
    with pytest.raises(Unavailable):
        await store(session).attempts(NAMESPACE, TASK)
    assert session.distrusted
