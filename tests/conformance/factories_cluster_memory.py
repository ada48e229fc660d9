"""The in-memory lease service for the suites."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from cluster_harness import constants

from bucketsched.adapters.memory.leases import MemoryLeaseWorld, MemoryMembership, MemoryPlanStore
from bucketsched.core.checkpoint import Checkpoint


class MemoryCluster:
    def __init__(self) -> None:
        self.world = MemoryLeaseWorld(constants())

    def membership(self) -> MemoryMembership:
        return MemoryMembership(self.world)

    def plan_store(self, member_id: str = "") -> MemoryPlanStore:
        return MemoryPlanStore(self.world, member_id)

    async def raise_epochs(self, checkpoints: dict[int, Checkpoint]) -> None:
        self.world.raise_epochs(checkpoints)

    async def expire(self, membership: MemoryMembership) -> None:
        membership.expire()

    async def expire_candidate(self, store: MemoryPlanStore) -> None:
        store.expire()

    async def cut(self) -> None:
        self.world.cut()

    async def restore(self) -> None:
        self.world.restore()


@asynccontextmanager
async def open_cluster(request: pytest.FixtureRequest) -> AsyncIterator[MemoryCluster]:
    yield MemoryCluster()
