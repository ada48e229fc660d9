"""What the suites of the store ports (TaskStore, CheckpointStore, Catalog, KeyStore) ask of a factory module.

A file `factories_store_<name>.py` beside this one makes an adapter known to all three suites. It has

    NAME = "memory"                       the id in the test's name
    MARKS = []                            pytest marks of its tests
    open_stores(request)                  an async context manager giving a `StoresUnderTest`

Rows, ranges and names are made so that no two tests meet, so adapters may share one database between tests. They
come from the system's randomness: hypothesis seeds the `random` module, the same for each of its examples.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from uuid import UUID, uuid4

from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.task import BUCKET_MS, TaskBody, TaskRow
from bucketsched.core.task_id import RANDOM_BITS, mint
from bucketsched.ports import Catalog, CheckpointStore, KeyStore, TaskStore

CONSTANTS = ClusterConstants(cluster_id=UUID("8a3f2f0e-53c8-4b0e-9c57-1f8d3b6a9a11"), horizon_ms=90_000, grace_ms=7_000)
"""What the catalog of every factory holds."""


@dataclass(slots=True)
class StoresUnderTest:
    """One adapter's stores over one database.

    `plant` stores a row with given bytes for its body, `plant_checkpoint` bytes as the checkpoint of a range and order.
    """

    tasks: TaskStore
    checkpoints: CheckpointStore
    catalog: Catalog
    keys: KeyStore
    plant: Callable[[TaskRow, bytes], Awaitable[None]]
    plant_checkpoint: Callable[[int, int, bytes], Awaitable[None]]


class WallClock:
    """A Clock without an error bound."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def earliest_ms(self) -> int:
        return self.now_ms()

    def latest_ms(self) -> int:
        return math.ceil(time.time_ns() / 1_000_000)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def fresh_bucket() -> int:
    """A bucket of the coming year that no other test uses."""
    return WallClock().now_ms() // BUCKET_MS + 10 + secrets.randbelow(500_000)


def namespace_id() -> bytes:
    """A new namespace's id."""
    return uuid4().bytes


def row(
    due_ms: int,
    namespace: bytes,
    shard: int = 3,
    *,
    low_bits: int | None = None,
    generation: int = 0,
    attempt: int = 1,
    body: TaskBody | None = None,
) -> TaskRow:
    """A task row at this place."""
    task_id = mint(due_ms, shard, secrets.randbits(RANDOM_BITS) if low_bits is None else low_bits)
    body = body or TaskBody("default", "default", "greet", payload=b"hello", nominal_due_ms=due_ms, created_ms=7)
    return TaskRow(due_ms, namespace, task_id, body, generation, attempt)
