"""Ownership within one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bucketsched.adapters.sqlite.checkpoints import SqliteCheckpointStore
from bucketsched.adapters.sqlite.database import Database
from bucketsched.adapters.sqlite.leases import InProcessLeases, InProcessMembership
from bucketsched.core.checkpoint import NO_OFFSET, Checkpoint
from bucketsched.core.errors import OwnershipLost
from bucketsched.ports import Lease, Member, Plan

DEADLINE_S = 10.0


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = Database.open(tmp_path)
    yield opened
    await opened.close()


async def test_epochs_rise_for_ever(tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        database = Database.open(tmp_path)
        assert await InProcessLeases(database).acquire(0) == Lease(0, epoch, ())
        await database.close()


async def test_an_epoch_is_above_that_of_the_checkpoint(database: Database) -> None:
    await SqliteCheckpointStore(database).save(0, Checkpoint(7, 1, "journal", 0, NO_OFFSET, b"", 0))
    leases = InProcessLeases(database)
    assert (await leases.acquire(0)).epoch == 8
    assert (await leases.acquire(1)).epoch == 1


async def test_a_younger_lease_ends_the_older(database: Database) -> None:
    first, second = InProcessLeases(database), InProcessLeases(database)
    old, other = await first.acquire(0), await first.acquire(1)
    young = await second.acquire(0)
    assert await first.validate([old, other]) == {1}
    assert await second.validate([young]) == {0}
    for call in (first.clear_predecessors, first.release):
        with pytest.raises(OwnershipLost):
            await call(old)
    await second.clear_predecessors(young)


async def test_a_released_lease_is_over(database: Database) -> None:
    leases = InProcessLeases(database)
    lease = await leases.acquire(0)
    await leases.release(lease)
    assert await leases.validate([lease]) == set()
    with pytest.raises(OwnershipLost):
        await leases.release(lease)
    assert (await leases.acquire(0)).epoch == lease.epoch + 1


async def test_the_only_member_is_planned_for_everything(database: Database) -> None:
    membership = InProcessMembership(database, ranges=3)
    assert (membership.members(), membership.plan()) == ([], Plan(0))
    member = await membership.join(Member("me", ("api", "poller")), wants_lane=True)
    assert member.lane == 0
    assert membership.members() == [member]
    assert membership.plan() == Plan(1, {0: 0, 1: 0, 2: 0})
    assert membership.owner_of(1) is None
    lease = await membership.leases().acquire(1)
    assert membership.owner_of(1) == member
    await membership.leases().release(lease)
    assert membership.owner_of(1) is None
    assert not membership.session_lost()
    await membership.leave()
    assert membership.members() == []


async def test_changes_are_told_once(database: Database) -> None:
    membership = InProcessMembership(database, ranges=1)
    waiting = asyncio.create_task(membership.changed())
    await asyncio.sleep(0)
    assert not waiting.done()
    await membership.join(Member("me", ("poller",)), wants_lane=True)
    await asyncio.wait_for(waiting, DEADLINE_S)
    await membership.leases().acquire(0)
    await asyncio.wait_for(membership.changed(), DEADLINE_S)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(membership.changed(), 0.05)
