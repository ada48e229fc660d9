"""What the suites of Leases, Membership and PlanStore share.

Each adapter has a module `factories_cluster_<adapter>.py` with

    open_cluster(request)                 an async context manager giving a `ClusterUnderTest`
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar
from uuid import uuid4

import pytest

from bucketsched.core.checkpoint import Checkpoint
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.errors import Unavailable
from bucketsched.ports import Leases, Member, Membership, OrderStore, PlanStore

DEADLINE_S = 15.0
RANGES, LANES = 4, 3
T = TypeVar("T")

ADAPTERS = ["memory", pytest.param("zookeeper", marks=pytest.mark.stack)]


def constants() -> ClusterConstants:
    """A cluster of its own for each test, with few ranges and lanes."""
    return ClusterConstants(uuid4(), shards=8, ranges=RANGES, lanes=LANES)


class LeasedMembership(Membership, Protocol):
    """A membership that gives out the leases of its lane."""

    def leases(self) -> Leases: ...


class OrderedPlanStore(PlanStore, OrderStore, Protocol):
    """A plan store that keeps the operators' orders, too."""


class ClusterUnderTest(Protocol):
    """One lease service, and everything that may happen to it."""

    def membership(self) -> LeasedMembership: ...

    def plan_store(self, member_id: str = "") -> OrderedPlanStore: ...

    async def raise_epochs(self, checkpoints: dict[int, Checkpoint]) -> None:
        """What a start does with the checkpoints."""

    async def expire(self, membership: LeasedMembership) -> None:
        """The service ends the member's session, and does not tell it."""

    async def expire_candidate(self, store: PlanStore) -> None:
        """The same with a coordinator's session."""

    async def cut(self) -> None:
        """The service can't be reached, by anybody, until `restore`."""

    async def restore(self) -> None: ...


def member(name: str) -> Member:
    return Member(name, ("api", "poller"), internal_address=f"{name}:7401", weight=2, zone="z")


async def joined(cluster: ClusterUnderTest, name: str) -> tuple[LeasedMembership, Leases]:
    """A member with a lane, and its leases."""
    membership = cluster.membership()
    await membership.join(member(name), wants_lane=True)
    return membership, membership.leases()


async def answer(call: Callable[[], Awaitable[T]]) -> T:
    """The call's answer or error, once the service can be reached. Fails after a generous time."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await call()
            except Unavailable:
                await asyncio.sleep(0.02)


async def until(condition: Callable[[], bool]) -> None:
    """Waits until it holds. Fails after a generous time."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - what it waits for is told by no event
            await asyncio.sleep(0.005)


def open_cluster(adapter: str, request: pytest.FixtureRequest) -> AbstractAsyncContextManager[ClusterUnderTest]:
    """One adapter's cluster."""
    module = importlib.import_module(f"factories_cluster_{adapter}")
    cluster: AbstractAsyncContextManager[ClusterUnderTest] = module.open_cluster(request)
    return cluster
