"""A task service over the memory adapters, with owners that answer as a test says."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from bucketsched.adapters.memory.clock import ManualClock
from bucketsched.adapters.memory.keys import MemoryKeyStore
from bucketsched.adapters.memory.store import MemoryCatalog, MemoryTaskStore
from bucketsched.core.catalog import Namespace, Queue, QueueKind
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.errors import Unavailable
from bucketsched.core.task import TaskRow, bucket_start_ms
from bucketsched.core.task_change import ChangeResult, TaskChange
from bucketsched.core.validation import Limits
from bucketsched.ports import CancelResult, Changed, HintAnswer
from bucketsched.service.directory import Directory
from bucketsched.service.queries import TaskQueries
from bucketsched.service.tasks import TaskService

NOW_MS = bucket_start_ms(29_407_868) + 30_123
NAMESPACE_ID = b"default-namespac"
CLUSTER = ClusterConstants(uuid.UUID(int=7))


class ImpatientClock(ManualClock):
    """Lets the time that somebody sleeps pass at once."""

    async def sleep(self, seconds: float) -> None:
        self.advance_ms(math.ceil(max(0.0, seconds) * 1000))
        await asyncio.sleep(0)


class ScriptedOwners:
    """Owners that take everything, unless a test replaces the answers. Keeps what it was asked."""

    def __init__(self) -> None:
        self.on_hint: Callable[[TaskRow], HintAnswer | None] = lambda row: HintAnswer.TAKEN
        self.on_admit: Callable[[TaskRow], HintAnswer | None] = lambda row: HintAnswer.TAKEN
        self.on_cancel: Callable[[bytes], CancelResult | None] = lambda task_id: CancelResult.CANCELLED
        self.on_change: Callable[[bytes, TaskChange], Changed | None] = lambda task_id, change: Changed(
            ChangeResult.NOT_FOUND
        )
        self.hinted: list[list[TaskRow]] = []
        self.admitted: list[TaskRow] = []
        self.silent = False
        """While True hints are taken in and never answered."""

    async def hint(self, rows: Sequence[TaskRow]) -> list[HintAnswer | None]:
        self.hinted.append(list(rows))
        if self.silent:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        return [self.on_hint(row) for row in rows]

    async def admit(self, row: TaskRow) -> HintAnswer:
        self.admitted.append(row)
        return _or_unavailable(self.on_admit(row))

    async def cancel(self, namespace_id: bytes, task_id: bytes) -> CancelResult:
        return _or_unavailable(self.on_cancel(task_id))

    async def change(self, namespace_id: bytes, task_id: bytes, change: TaskChange) -> Changed:
        return _or_unavailable(self.on_change(task_id, change))


def _or_unavailable(answer: Any) -> Any:
    if answer is None:
        raise Unavailable("no owner")
    return answer


class ServiceWorld:
    """The service and all that it stands on."""

    def __init__(
        self, constants: ClusterConstants = CLUSTER, limits: Limits | None = None, clock_error_ms: int = 0
    ) -> None:
        self.clock = ImpatientClock(NOW_MS, clock_error_ms)
        self.store = MemoryTaskStore()
        self.keys = MemoryKeyStore()
        self.catalog = MemoryCatalog(constants)
        self.owners = ScriptedOwners()
        self.directory = Directory(self.catalog, self.clock)
        self.limits = limits or Limits()
        self.tasks = TaskService(self.store, self.keys, self.directory, self.owners, self.clock, constants, self.limits)
        self.queries = TaskQueries(self.store, self.catalog, self.directory, self.clock, constants, self.limits)

    async def prepare(self) -> ServiceWorld:
        """The default namespace and queue."""
        await self.catalog.create_namespace(Namespace("default", NAMESPACE_ID, 0))
        await self.catalog.create_queue(Queue(NAMESPACE_ID, "default", "default", QueueKind.WORKER))
        return self

    async def rows(self, bucket: int, constants: ClusterConstants = CLUSTER) -> list[TaskRow]:
        """All rows of one bucket."""
        pages = [
            await self.store.read_partition(bucket, shard, None, 1 << 62, 10_000) for shard in range(constants.shards)
        ]
        return [stored.row for page in pages for stored in page.tasks]


async def until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    """Waits until a condition holds. Raises TimeoutError."""

    async def poll() -> None:
        while not condition():  # noqa: ASYNC110 - a condition of any kind
            await asyncio.sleep(0.002)

    await asyncio.wait_for(poll(), timeout_s)
