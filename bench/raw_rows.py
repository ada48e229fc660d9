"""The bare cassandra-driver: one prepared insert a row, into the scheduler's own table, so many in flight.

`python -m bench.raw_rows QUEUE`, with the cluster's settings in the environment. Asked {"count", "from_ms", "span_ms"},
it answers {"seconds", "cpu_s"}. The rows carry the columns, the encoded body and the TTL that the scheduler writes, at
the same consistency level; encoding is not part of the time.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import sys
import time
from typing import Any
from uuid import UUID

from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.io.libevreactor import LibevConnection
from cassandra.policies import DCAwareRoundRobinPolicy, TokenAwarePolicy

from bucketsched.config import load, split_address
from bucketsched.core.task import TaskRow
from bucketsched.core.task_id import shard_in
from bucketsched.encoding.rows import encode_body

from . import sample
from .answering import answer

IN_FLIGHT = 200
TTL_S = 90 * 86_400
TIMEOUT_S = 20.0
INSERT = (
    "INSERT INTO tasks (bucket, shard, due_at, namespace_id, task_id, body, generation, attempt) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?) USING TTL ?"
)


def connect() -> Any:
    """A session in the cluster's keyspace."""
    settings = load().cassandra
    addresses = [split_address(point) for point in settings.contact_points]
    profile = ExecutionProfile(
        load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy(settings.local_datacenter)),
        consistency_level=ConsistencyLevel.LOCAL_QUORUM,
        request_timeout=TIMEOUT_S,
    )
    cluster = Cluster(
        [host for host, _ in addresses],
        port=addresses[0][1],
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        connection_class=LibevConnection,
        protocol_version=5,
    )
    return cluster.connect(settings.keyspace)


def values(row: TaskRow) -> tuple[Any, ...]:
    """What is bound for a row."""
    place = (row.bucket, shard_in(row.task_id), row.due_ms, UUID(bytes=row.namespace_id), UUID(bytes=row.task_id))
    return (*place, encode_body(row.body), row.generation, row.attempt, TTL_S)


async def insert(queue: str) -> None:
    """Until stdin ends."""
    session = connect()
    prepared = session.prepare(INSERT)
    namespace_id = secrets.token_bytes(16)

    async def work(asked: dict[str, Any]) -> dict[str, Any]:
        due = [asked["from_ms"] + random.randrange(asked["span_ms"]) for _ in range(asked["count"])]
        rows = [values(sample.row(due_ms, namespace_id, queue)) for due_ms in due]
        began, cpu_began = time.perf_counter(), time.process_time()
        execute_concurrent_with_args(session, prepared, rows, concurrency=IN_FLIGHT)
        return {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - cpu_began}

    await answer(work)
    session.cluster.shutdown()


if __name__ == "__main__":
    asyncio.run(insert(*sys.argv[1:]))
