"""ZooKeeper itself goes away: for a while, and with all that it knew."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import pytest
from tools.stack import DEFAULT_FOLDER, Stack, ZooKeeper
from tools.stack.guard import Guard
from tools.stack.ports import choose

from bucketsched.adapters.system_clock import SystemClock
from bucketsched.adapters.zookeeper.membership import ZooKeeperMembership
from bucketsched.adapters.zookeeper.plan_store import ZooKeeperPlanStore
from bucketsched.adapters.zookeeper.tree import create_tree
from bucketsched.config import ZooKeeperSettings
from bucketsched.coordinator.planning import Coordinator, PlanningLimits
from bucketsched.core.checkpoint import NO_OFFSET, Checkpoint
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.errors import OwnershipLost, Unavailable
from bucketsched.ports import Lease, LeaseHeld, Member

pytestmark = pytest.mark.stack

DEADLINE_S = 30.0
SESSION_MS = 3_000
LONG_SESSION_MS = 12_000
"""So long that a server which is slow to start, and its client, find each other before it ends."""
T = TypeVar("T")


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeper]:
    """A ZooKeeper that nobody else uses."""
    DEFAULT_FOLDER.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="own-", dir=DEFAULT_FOLDER))
    guard = Guard(folder)
    zookeeper = Stack(folder).zookeeper
    zookeeper.ports.update(choose(zookeeper.port_names, {}, set()))
    zookeeper.start()
    yield zookeeper
    zookeeper.kill()
    guard.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def cluster(server: ZooKeeper) -> tuple[ZooKeeperSettings, ClusterConstants]:
    await asyncio.to_thread(server.start)
    settings = ZooKeeperSettings(hosts=server.address, root="/outage", session_timeout_ms=SESSION_MS)
    constants = ClusterConstants(uuid4(), shards=4, ranges=4, lanes=4)
    await persistently(lambda: create_tree(settings, constants, {}))
    return settings, constants


async def persistently(call: Callable[[], Awaitable[T]]) -> T:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await call()
            except (LeaseHeld, Unavailable):
                await asyncio.sleep(0.05)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - what it waits for is told by no event
            await asyncio.sleep(0.01)


async def test_owners_and_sessions_outlast_an_absence_longer_than_the_session(
    server: ZooKeeper, cluster: tuple[ZooKeeperSettings, ClusterConstants]
) -> None:
    """The server counts a session's time only while it is there itself, so nobody has lost anything."""
    settings, constants = cluster
    settings = settings.model_copy(update={"session_timeout_ms": LONG_SESSION_MS})
    membership = ZooKeeperMembership(settings, constants)
    await membership.join(Member("a", ("poller",)), wants_lane=True)
    leases = membership.leases()
    lease = await leases.acquire(0)
    await until(lambda: membership.owner_of(0) is not None)
    await asyncio.to_thread(server.kill)
    gone = time.monotonic()
    while time.monotonic() - gone < 1.5 * LONG_SESSION_MS / 1000:
        assert not membership.session_lost()
        owner = membership.owner_of(0)
        assert owner is not None, "the cache answers"
        asked = time.monotonic()
        with pytest.raises(Unavailable):
            await leases.validate([lease])
        assert time.monotonic() - asked < 8, "calls end in bounded time"
        await asyncio.sleep(0.1)
    await asyncio.to_thread(server.start)
    assert await persistently(lambda: leases.validate([lease])) == {0}
    assert not membership.session_lost()
    other = ZooKeeperMembership(settings, constants)
    await persistently(lambda: other.join(Member("b", ("poller",)), wants_lane=True))
    await other.leases().acquire(1)
    await until(lambda: (m := membership.owner_of(1)) is not None and m.member_id == "b")
    await asyncio.gather(membership.leave(), other.leave())


async def test_a_coordinator_goes_on_after_an_absence(
    server: ZooKeeper, cluster: tuple[ZooKeeperSettings, ClusterConstants]
) -> None:
    membership = ZooKeeperMembership(*cluster)
    await membership.join(Member("a", ("poller",)), wants_lane=True)
    planning = asyncio.create_task(
        Coordinator(ZooKeeperPlanStore(*cluster), SystemClock(0), PlanningLimits(settle_s=0.1), membership).run()
    )
    try:
        await until(lambda: membership.plan().assignment == dict.fromkeys(range(4), 0))
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(0.5)
        await asyncio.to_thread(server.start)
        other = ZooKeeperMembership(*cluster)
        await persistently(lambda: other.join(Member("b", ("poller",)), wants_lane=True))
        await until(lambda: set(membership.plan().assignment.values()) == {0, 1})
        assert not planning.done()
    finally:
        planning.cancel()
        await asyncio.gather(planning, return_exceptions=True)
        await asyncio.gather(membership.leave(), other.leave())


async def test_restored_empty_epochs_go_on_above_the_checkpoints(
    server: ZooKeeper, cluster: tuple[ZooKeeperSettings, ClusterConstants]
) -> None:
    membership = ZooKeeperMembership(*cluster)
    await membership.join(Member("a", ("poller",)), wants_lane=True)
    leases = membership.leases()
    for _ in range(3):
        lease = await leases.acquire(0)
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(shutil.rmtree, server.folder / "data")
    await asyncio.to_thread(server.start)
    await until(membership.session_lost)
    with pytest.raises(OwnershipLost):
        await leases.validate([lease])
    with pytest.raises(Unavailable, match="admin migrate"):
        await persistently_joined(membership)
    checkpoints = {0: Checkpoint(lease.epoch, 9, "journal", 0, NO_OFFSET, b"", 0)}
    await persistently(lambda: create_tree(*cluster, checkpoints))
    await membership.join(Member("a", ("poller",)), wants_lane=True)
    assert await membership.leases().acquire(0) == Lease(0, 4, (0,))
    await membership.leave()


async def persistently_joined(membership: ZooKeeperMembership) -> None:
    """Joins; raises Unavailable only if the server answers."""
    while True:
        try:
            await membership.join(Member("a", ("poller",)), wants_lane=True)
            return
        except Unavailable as error:
            if "no ZooKeeper session" not in str(error):
                raise
