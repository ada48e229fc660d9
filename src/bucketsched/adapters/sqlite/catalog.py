"""Cluster constants, namespaces and queues."""

from __future__ import annotations

import sqlite3
from typing import Any
from uuid import UUID, uuid4

from ...core.catalog import DEFAULT_NAMESPACE, DEFAULT_QUEUE, Namespace, Queue, QueueKind
from ...core.checkpoint import NO_OFFSET, Checkpoint
from ...core.cluster import ClusterConstants
from ...core.errors import Unavailable
from ...core.task import bucket_of
from ...encoding.queue_policy import decode_policy, encode_policy
from ...encoding.queue_settings import decode_settings, encode_settings
from ...encoding.webhook import decode_webhook, encode_webhook
from .checkpoints import SAVE, save_parameters
from .database import Database, as_unavailable

EMBEDDED_SHARDS = 4
EMBEDDED_RANGES = 1
EMBEDDED_LANES = 1

_CONSTANTS = "cluster_id, shards, ranges, horizon_ms, grace_ms, retention_ms, lanes"
_NAMESPACE = "name, namespace_id, created_ms"
_QUEUE = (
    "namespace_id, namespace, name, kind, topic, partitions, replication, priority_topics, created_ms, webhook, "
    "policy, settings"
)


def embedded_constants() -> ClusterConstants:
    """Those of a new data directory."""
    return ClusterConstants(uuid4(), shards=EMBEDDED_SHARDS, ranges=EMBEDDED_RANGES, lanes=EMBEDDED_LANES)


class SqliteCatalog:
    """See ports.Catalog."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def establish(self, constants: ClusterConstants, now_ms: int) -> ClusterConstants:
        """Gives a new database its constants, first checkpoints, default namespace and default queue, all at once.

        An established one is left alone. The constants that hold. Raises Unavailable.
        """
        with as_unavailable():
            return await self._database.write(lambda connection: _establish(connection, constants, now_ms))

    async def constants(self) -> ClusterConstants | None:
        """See ports.Catalog."""
        return await self._database.read(_constants)

    async def get_namespace(self, name: str) -> Namespace | None:
        """See ports.Catalog."""
        return await self._database.read(lambda connection: _get_namespace(connection, name))

    async def list_namespaces(self) -> list[Namespace]:
        """See ports.Catalog."""
        query = f"SELECT {_NAMESPACE} FROM namespaces ORDER BY name"
        rows = await self._database.read(lambda connection: connection.execute(query).fetchall())
        return [Namespace(*row) for row in rows]

    async def create_namespace(self, namespace: Namespace) -> Namespace:
        """See ports.Catalog. Raises Unavailable."""
        with as_unavailable():
            return await self._database.write(lambda connection: _create_namespace(connection, namespace))

    async def get_queue(self, namespace_id: bytes, name: str) -> Queue | None:
        """See ports.Catalog."""
        return await self._database.read(lambda connection: _get_queue(connection, namespace_id, name))

    async def list_queues(self, namespace_id: bytes, after: str, limit: int) -> list[Queue]:
        """See ports.Catalog."""
        query = f"SELECT {_QUEUE} FROM queues WHERE namespace_id = ? AND name > ? ORDER BY name LIMIT ?"
        parameters = (namespace_id, after, limit)
        rows = await self._database.read(lambda connection: connection.execute(query, parameters).fetchall())
        return [_queue(row) for row in rows]

    async def create_queue(self, queue: Queue) -> Queue:
        """See ports.Catalog. Raises Unavailable."""
        with as_unavailable():
            return await self._database.write(lambda connection: _create_queue(connection, queue))

    async def update_webhook(self, queue: Queue) -> None:
        """See ports.Catalog. Raises Unavailable."""
        update = "UPDATE queues SET webhook = ? WHERE namespace_id = ? AND name = ? AND kind = ?"
        parameters = (encode_webhook(queue.webhook), queue.namespace_id, queue.name, QueueKind.WEBHOOK.value)
        with as_unavailable():
            await self._database.write(lambda connection: connection.execute(update, parameters).rowcount)

    async def update_settings(self, queue: Queue) -> None:
        """See ports.Catalog. Raises Unavailable."""
        update = "UPDATE queues SET settings = ? WHERE namespace_id = ? AND name = ? AND kind = ?"
        parameters = (encode_settings(queue), queue.namespace_id, queue.name, queue.kind.value)
        with as_unavailable():
            await self._database.write(lambda connection: connection.execute(update, parameters).rowcount)

    async def update_policy(self, queue: Queue) -> None:
        """See ports.Catalog. Raises Unavailable."""
        update = "UPDATE queues SET policy = ? WHERE namespace_id = ? AND name = ?"
        parameters = (encode_policy(queue.policy), queue.namespace_id, queue.name)
        with as_unavailable():
            await self._database.write(lambda connection: connection.execute(update, parameters).rowcount)


def _establish(connection: sqlite3.Connection, constants: ClusterConstants, now_ms: int) -> ClusterConstants:
    if (standing := _constants(connection)) is not None:
        return standing
    c = constants
    values = (c.cluster_id.bytes, c.shards, c.ranges, c.horizon_ms, c.grace_ms, c.retention_ms, c.lanes)
    connection.execute(f"INSERT INTO cluster (only_row, {_CONSTANTS}) VALUES (1, ?, ?, ?, ?, ?, ?, ?)", values)
    first = Checkpoint(0, 0, constants.journal_name, 0, NO_OFFSET, b"", bucket_of(now_ms))
    connection.executemany(SAVE, [save_parameters(range_id, first) for range_id in range(constants.ranges)])
    namespace = _create_namespace(connection, Namespace(DEFAULT_NAMESPACE, uuid4().bytes, now_ms))
    default = Queue(namespace.namespace_id, namespace.name, DEFAULT_QUEUE, QueueKind.WORKER, created_ms=now_ms)
    _create_queue(connection, default)
    return constants


def _constants(connection: sqlite3.Connection) -> ClusterConstants | None:
    row = connection.execute(f"SELECT {_CONSTANTS} FROM cluster").fetchone()
    return ClusterConstants(UUID(bytes=row[0]), *row[1:]) if row else None


def _get_namespace(connection: sqlite3.Connection, name: str) -> Namespace | None:
    row = connection.execute(f"SELECT {_NAMESPACE} FROM namespaces WHERE name = ?", (name,)).fetchone()
    return Namespace(*row) if row else None


def _create_namespace(connection: sqlite3.Connection, namespace: Namespace) -> Namespace:
    values = (namespace.name, namespace.namespace_id, namespace.created_ms)
    connection.execute(f"INSERT INTO namespaces ({_NAMESPACE}) VALUES (?, ?, ?) ON CONFLICT DO NOTHING", values)
    stored = _get_namespace(connection, namespace.name)
    assert stored is not None
    return stored


def _get_queue(connection: sqlite3.Connection, namespace_id: bytes, name: str) -> Queue | None:
    query = f"SELECT {_QUEUE} FROM queues WHERE namespace_id = ? AND name = ?"
    row = connection.execute(query, (namespace_id, name)).fetchone()
    return _queue(row) if row else None


def _create_queue(connection: sqlite3.Connection, queue: Queue) -> Queue:
    q = queue
    values = (
        q.namespace_id,
        q.namespace,
        q.name,
        q.kind.value,
        q.topic,
        q.partitions,
        q.replication,
        int(q.priority_topics),
        q.created_ms,
        encode_webhook(q.webhook),
        encode_policy(q.policy),
        encode_settings(q),
    )
    insert = f"INSERT INTO queues ({_QUEUE}) VALUES ({', '.join('?' * len(values))}) ON CONFLICT DO NOTHING"
    connection.execute(insert, values)
    stored = _get_queue(connection, queue.namespace_id, queue.name)
    assert stored is not None
    return stored


def _queue(row: tuple[Any, ...]) -> Queue:
    namespace_id, namespace, name, kind, topic, partitions, replication, priority_topics, *rest = row
    created_ms, webhook, policy, settings = rest
    if kind not in set(QueueKind):
        raise Unavailable(f"queue {name!r} is of kind {kind!r}, which this version does not know: upgrade it")
    return Queue(
        namespace_id,
        namespace,
        name,
        QueueKind(kind),
        topic,
        partitions,
        replication,
        bool(priority_topics),
        created_ms,
        decode_webhook(webhook),
        decode_policy(policy),
        *decode_settings(QueueKind(kind), settings),
    )
