"""A dead process is evicted by the coordinator, a dead coordinator by the next candidate; nobody else is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
from structlog.testing import capture_logs

from bucketsched.adapters.memory.leases import MemoryLeaseWorld, MemoryMembership, MemoryPlanStore
from bucketsched.adapters.system_clock import SystemClock
from bucketsched.coordinator.death_watch import DeathWatch
from bucketsched.coordinator.planning import Coordinator, PlanningLimits
from bucketsched.core.cluster import ClusterConstants
from bucketsched.ports import Member

DEADLINE_S = 10.0
RANGES = 8


class FakePeers:
    """Who dies is told by the test. `asked`: the addresses that are watched now."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.dead: dict[str, asyncio.Event] = {}

    def kill(self, name: str) -> None:
        self.dead.setdefault(f"{name}:7401", asyncio.Event()).set()

    async def died(self, address: str) -> None:
        self.asked.append(address)
        try:
            await self.dead.setdefault(address, asyncio.Event()).wait()
        finally:
            self.asked.remove(address)


@pytest.fixture
async def world() -> MemoryLeaseWorld:
    return MemoryLeaseWorld(ClusterConstants(uuid4(), shards=16, ranges=RANGES, lanes=6))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - what it waits for is told by no event
            await asyncio.sleep(0.002)


async def join(world: MemoryLeaseWorld, name: str, lane: bool = True, address: str | None = None) -> MemoryMembership:
    membership = MemoryMembership(world)
    where = f"{name}:7401" if address is None else address
    await membership.join(Member(name, ("poller",), internal_address=where), wants_lane=lane)
    return membership


@asynccontextmanager
async def running(
    world: MemoryLeaseWorld, membership: MemoryMembership, name: str, peers: FakePeers
) -> AsyncIterator[None]:
    """A process that may coordinate: campaigns, plans, watches."""
    store, clock = MemoryPlanStore(world, name), SystemClock(0)
    limits = PlanningLimits(settle_s=0.02, poll_s=30, look_s_min=0.001)
    tasks = [
        asyncio.create_task(Coordinator(store, clock, limits, membership).run()),
        asyncio.create_task(DeathWatch(membership, store, peers, clock, name).run()),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def names(world: MemoryLeaseWorld) -> set[str]:
    return set(world.joined)


async def test_the_ranges_of_a_dead_process_are_planned_away_at_once(world: MemoryLeaseWorld) -> None:
    one = await join(world, "one")
    dead = await join(world, "dead")
    peers = FakePeers()
    async with running(world, one, "one", peers):
        await until(lambda: set(world.plan.assignment.values()) == {0, 1})
        peers.kill("dead")
        await until(lambda: set(world.plan.assignment.values()) == {0})
        assert names(world) == {"one"}
        assert dead.session_lost()
    assert peers.asked == []


async def test_it_watches_others_with_an_address_and_nobody_for_longer_than_he_is_a_member(
    world: MemoryLeaseWorld,
) -> None:
    one = await join(world, "one")
    api = await join(world, "api", lane=False, address="")
    coordinator = await join(world, "coordinator", lane=False)
    peers = FakePeers()
    async with running(world, one, "one", peers):
        await until(lambda: peers.asked == ["coordinator:7401"])
        second = await join(world, "second")
        await until(lambda: sorted(peers.asked) == ["coordinator:7401", "second:7401"])
        await coordinator.leave()
        await until(lambda: peers.asked == ["second:7401"])
        await second.leave()
        await until(lambda: peers.asked == [])
    await api.leave()


class OddPeers(FakePeers):
    """An address that is none can't be watched."""

    async def died(self, address: str) -> None:
        if ":" not in address:
            raise ValueError(f"invalid literal for int(): {address}")
        await super().died(address)


async def test_one_that_can_not_be_watched_is_said_and_the_others_are_watched_on(world: MemoryLeaseWorld) -> None:
    one = await join(world, "one")
    peers = OddPeers()
    with capture_logs() as logs:
        async with running(world, one, "one", peers):
            odd = await join(world, "odd", address="nowhere")
            await until(lambda: any(log["event"] == "a process can't be watched" for log in logs))
            await join(world, "dead")
            await until(lambda: peers.asked == ["dead:7401"])
            peers.kill("dead")
            await until(lambda: names(world) == {"one", "odd"})
            await odd.leave()
    said = [log for log in logs if log["event"] == "a process can't be watched"]
    assert (len(said), said[0]["member"], said[0]["address"]) == (1, "odd", "nowhere")


async def test_an_eviction_that_fails_as_nobody_expects_is_tried_again(
    world: MemoryLeaseWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await join(world, "one")
    await join(world, "dead")
    peers, evict, failures = FakePeers(), MemoryPlanStore.evict, [RuntimeError("once"), RuntimeError("twice")]

    async def failing(store: MemoryPlanStore, member: Member) -> bool:
        if failures:
            raise failures.pop()
        return await evict(store, member)

    monkeypatch.setattr(MemoryPlanStore, "evict", failing)
    async with running(world, one, "one", peers):
        peers.kill("dead")
        await until(lambda: names(world) == {"one"})
    assert failures == []


async def test_a_dead_coordinator_is_evicted_by_the_next(world: MemoryLeaseWorld) -> None:
    members = {name: await join(world, name) for name in ("one", "two", "three")}
    peers = {name: FakePeers() for name in members}
    stalled = MemoryPlanStore(world, "one")
    await stalled.campaign()
    async with running(world, members["two"], "two", peers["two"]):
        await until(lambda: len(world.candidates) == 2)
        async with running(world, members["three"], "three", peers["three"]):
            await until(lambda: len(world.candidates) == 3)
            peers["three"].kill("one")
            await asyncio.sleep(0.1)
            assert names(world) == {"one", "two", "three"}, "it is not the next behind it"
            peers["two"].kill("one")
            await until(lambda: names(world) == {"two", "three"})
            await until(lambda: set(world.plan.assignment.values()) == {1, 2})
            assert world.candidates[0].member_id == "two"


async def test_when_two_candidates_die_the_third_evicts_one_after_the_other(world: MemoryLeaseWorld) -> None:
    members = {name: await join(world, name) for name in ("one", "two", "three")}
    for name in ("one", "two"):
        task = asyncio.create_task(MemoryPlanStore(world, name).campaign())
        await until(lambda name=name: any(c.member_id == name for c in world.candidates))
        task.cancel()
    peers = FakePeers()
    async with running(world, members["three"], "three", peers):
        await until(lambda: len(world.candidates) == 3)
        for name in ("one", "two"):
            peers.kill(name)
        await until(lambda: set(world.plan.assignment.values()) == {2})


async def test_an_eviction_waits_for_the_service(world: MemoryLeaseWorld) -> None:
    one = await join(world, "one")
    await join(world, "dead")
    peers = FakePeers()
    async with running(world, one, "one", peers):
        await until(lambda: set(world.plan.assignment.values()) == {0, 1})
        world.cut()
        peers.kill("dead")
        await asyncio.sleep(0.1)
        assert names(world) == {"one", "dead"}
        world.restore()
        await until(lambda: names(world) == {"one"})


async def test_a_living_process_that_was_evicted_may_join_anew_and_is_watched_again(world: MemoryLeaseWorld) -> None:
    one = await join(world, "one")
    wronged = await join(world, "wronged")
    peers = FakePeers()
    async with running(world, one, "one", peers):
        await until(lambda: peers.asked == ["wronged:7401"])
        peers.kill("wronged")
        await until(wronged.session_lost)
        await until(lambda: peers.asked == [])
        peers.dead.clear()
        await wronged.join(Member("wronged", ("poller",), internal_address="wronged:7401"), wants_lane=True)
        await until(lambda: peers.asked == ["wronged:7401"])
        await asyncio.sleep(0.1)
        assert not wronged.session_lost()
