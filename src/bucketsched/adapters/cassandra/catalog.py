"""Cluster constants, namespaces and queues in Cassandra.

Their rows are written by lightweight transactions only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.catalog import Namespace, Queue, QueueKind
from ...core.cluster import ClusterConstants
from ...core.errors import ConfigError, NotWritten, OutcomeUnknown, Unavailable
from ...encoding.queue_policy import decode_policy, encode_policy
from ...encoding.queue_settings import decode_settings, encode_settings
from ...encoding.webhook import decode_webhook, encode_webhook
from .insert_once import insert_once
from .session import CassandraSession, Row

_CONSTANTS = "cluster_id, shards, ranges, horizon_ms, grace_ms, retention_ms, lanes"
_NAMESPACE = "name, namespace_id, created_at"
_QUEUE = (
    "namespace_id, namespace, name, kind, topic, partitions, replication, priority_topics, created_at, webhook, "
    "policy, settings"
)
_CONSTANTS_ID = "cluster"

_STATEMENTS = {
    "constants": f"SELECT {_CONSTANTS} FROM @cluster_constants WHERE id = ?",
    "set_constants": f"INSERT INTO @cluster_constants (id, {_CONSTANTS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS",
    "namespace": f"SELECT {_NAMESPACE} FROM @namespaces WHERE name = ?",
    "namespaces": f"SELECT {_NAMESPACE} FROM @namespaces",
    "create_namespace": f"INSERT INTO @namespaces ({_NAMESPACE}) VALUES (?, ?, ?) IF NOT EXISTS",
    "queue": f"SELECT {_QUEUE} FROM @queues WHERE namespace_id = ? AND name = ?",
    "queues": f"SELECT {_QUEUE} FROM @queues WHERE namespace_id = ? AND name > ? LIMIT ?",
    "create_queue": f"INSERT INTO @queues ({_QUEUE}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS",
    "update_policy": "UPDATE @queues SET policy = ? WHERE namespace_id = ? AND name = ? IF EXISTS",
    "update_settings": "UPDATE @queues SET settings = ? WHERE namespace_id = ? AND name = ? IF kind = ?",
    "update_webhook": "UPDATE @queues SET webhook = ? WHERE namespace_id = ? AND name = ? IF kind = ?",
}
_SERIAL_READS = ("constants", "namespace", "queue")


class CassandraCatalog:
    """Implements Catalog. Made by `open`."""

    def __init__(self, session: CassandraSession, statements: dict[str, Any]) -> None:
        self._session = session
        self._statements = statements

    @classmethod
    async def open(cls, session: CassandraSession) -> CassandraCatalog:
        """Prepares its statements. Raises ConfigError where tables are missing, Unavailable."""
        statements = {name: await session.prepare(cql) for name, cql in _STATEMENTS.items()}
        for name in _SERIAL_READS:
            statements[f"serial {name}"] = await session.prepare(_STATEMENTS[name], serial=True)
        return cls(session, statements)

    async def constants(self) -> ClusterConstants | None:
        """See Catalog."""
        rows = await self._read("constants", (_CONSTANTS_ID,))
        return _constants(rows[0]) if rows else None

    async def constants_in(self, keyspace: str) -> ClusterConstants:
        """The constants, which must be there. Raises ConfigError that names the keyspace as its settings do."""
        constants = await self.constants()
        if constants is None:
            raise ConfigError(f"keyspace {keyspace} is empty: run `bucketsched admin migrate` first")
        return constants

    async def set_constants(self, constants: ClusterConstants) -> ClusterConstants:
        """What is stored afterwards: the given ones, or those that were there before. Raises Unavailable."""
        values = (
            _CONSTANTS_ID,
            constants.cluster_id.bytes,
            constants.shards,
            constants.ranges,
            constants.horizon_ms,
            constants.grace_ms,
            constants.retention_ms,
            constants.lanes,
        )
        row = await self._create("set_constants", values, "constants", (_CONSTANTS_ID,))
        return constants if row is None else _constants(row)

    async def get_namespace(self, name: str) -> Namespace | None:
        """See Catalog."""
        rows = await self._read("namespace", (name,))
        return Namespace(*rows[0]) if rows else None

    async def list_namespaces(self) -> list[Namespace]:
        """See Catalog."""
        rows = await self._read("namespaces", ())
        return sorted((Namespace(*row) for row in rows), key=lambda namespace: namespace.name)

    async def create_namespace(self, namespace: Namespace) -> Namespace:
        """See Catalog. Raises Unavailable."""
        values = (namespace.name, namespace.namespace_id, namespace.created_ms)
        row = await self._create("create_namespace", values, "namespace", (namespace.name,))
        return namespace if row is None else Namespace(*row)

    async def get_queue(self, namespace_id: bytes, name: str) -> Queue | None:
        """See Catalog."""
        rows = await self._read("queue", (namespace_id, name))
        return _queue(rows[0]) if rows else None

    async def list_queues(self, namespace_id: bytes, after: str, limit: int) -> list[Queue]:
        """See Catalog."""
        return [_queue(row) for row in await self._read("queues", (namespace_id, after, limit))]

    async def create_queue(self, queue: Queue) -> Queue:
        """See Catalog. Raises Unavailable."""
        values = (
            queue.namespace_id,
            queue.namespace,
            queue.name,
            str(queue.kind),
            queue.topic,
            queue.partitions,
            queue.replication,
            queue.priority_topics,
            queue.created_ms,
            encode_webhook(queue.webhook),
            encode_policy(queue.policy),
            encode_settings(queue),
        )
        row = await self._create("create_queue", values, "queue", (queue.namespace_id, queue.name))
        return queue if row is None else _queue(row)

    async def update_webhook(self, queue: Queue) -> None:
        """See Catalog. Raises Unavailable."""
        values = (encode_webhook(queue.webhook), queue.namespace_id, queue.name, QueueKind.WEBHOOK.value)
        try:
            await self._session.write(self._statements["update_webhook"], values)
        except (NotWritten, OutcomeUnknown) as error:
            raise Unavailable(str(error)) from error

    async def update_settings(self, queue: Queue) -> None:
        """See Catalog. Raises Unavailable."""
        values = (encode_settings(queue), queue.namespace_id, queue.name, queue.kind.value)
        try:
            await self._session.write(self._statements["update_settings"], values)
        except (NotWritten, OutcomeUnknown) as error:
            raise Unavailable(str(error)) from error

    async def update_policy(self, queue: Queue) -> None:
        """See Catalog. Raises Unavailable."""
        values = (encode_policy(queue.policy), queue.namespace_id, queue.name)
        try:
            await self._session.write(self._statements["update_policy"], values)
        except (NotWritten, OutcomeUnknown) as error:
            raise Unavailable(str(error)) from error

    async def _read(self, name: str, values: Sequence[Any]) -> list[Row]:
        return await self._session.read(self._statements[name], values)

    async def _create(self, insert: str, values: Sequence[Any], read: str, key: Sequence[Any]) -> Row | None:
        """Inserts if not there. None: it was not; else the row as it is stored."""
        statements = self._statements
        return await insert_once(self._session, statements[insert], values, statements[f"serial {read}"], key, insert)


def _constants(row: Row) -> ClusterConstants:
    from uuid import UUID

    return ClusterConstants(UUID(bytes=row[0]), *row[1:])


def _queue(row: Row) -> Queue:
    namespace_id, namespace, name, kind, topic, partitions, replication, priority_topics, *rest = row
    created_ms, webhook, policy, settings = rest
    if kind not in set(QueueKind):
        raise Unavailable(f"queue {name!r} is of kind {kind!r}, which this version does not know: upgrade it")
    topic_settings = (topic, partitions, replication, priority_topics)
    its = (decode_webhook(webhook), decode_policy(policy), *decode_settings(QueueKind(kind), settings))
    return Queue(namespace_id, namespace, name, QueueKind(kind), *topic_settings, created_ms, *its)
