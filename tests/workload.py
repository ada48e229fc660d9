"""A queue of a test's own, a client that fills it, and a recorder at its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import uuid4

from tests.nodes import Cluster
from tests.recorder import Recorder

from bucketsched import Client, CreatedTask, NewTask, QueueKind


@dataclass
class Workload:
    """`queue` is of kind Kafka; its topic has the same name."""

    client: Client
    recorder: Recorder
    queue: str

    async def create(self, delays_s: Sequence[float], payload: bytes = b"x") -> list[CreatedTask]:
        """One task for each delay, all at once."""
        wanted = [NewTask("t", payload, self.queue, delay=delay) for delay in delays_s]
        created = await self.client.create_many(wanted)
        tasks = [task for task in created if isinstance(task, CreatedTask)]
        assert len(tasks) == len(wanted), [error for error in created if not isinstance(error, CreatedTask)][:3]
        return tasks


def earliest(tasks: Sequence[CreatedTask]) -> list[CreatedTask]:
    """The few that are due first."""
    return sorted(tasks, key=lambda task: task.due_ms)[:3]


@asynccontextmanager
async def workload(cluster: Cluster, address: str) -> AsyncIterator[Workload]:
    """`address`: of one or several processes with the role api."""
    queue = f"{cluster.prefix}-{uuid4().hex[:8]}"
    async with Client(address) as client:
        await client.create_queue(queue, QueueKind.KAFKA, topic=queue, partitions=4)
        async with Recorder(cluster.kafka, (queue,)) as recorder:
            yield Workload(client, recorder, queue)
