"""Coordinators plan what the members ask for, one at a time, and followers carry it out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest

from bucketsched.adapters.memory.leases import MemoryLeaseWorld, MemoryMembership, MemoryPlanStore
from bucketsched.adapters.system_clock import SystemClock
from bucketsched.coordinator.planning import Coordinator, PlanningLimits
from bucketsched.core import failpoints
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.errors import OwnershipLost
from bucketsched.ports import Member, Plan

DEADLINE_S = 10.0
RANGES = 8
FAST = PlanningLimits(settle_s=0.05, poll_s=0.02, look_s_min=0.001, retry_s=0.01)


@pytest.fixture
async def world() -> MemoryLeaseWorld:
    return MemoryLeaseWorld(ClusterConstants(uuid4(), shards=16, ranges=RANGES, lanes=6))


@pytest.fixture(autouse=True)
def no_failpoint() -> Iterator[None]:
    yield
    failpoints.install(None)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - what it waits for is told by no event
            await asyncio.sleep(0.002)


async def join(world: MemoryLeaseWorld, name: str, weight: int = 1) -> MemoryMembership:
    membership = MemoryMembership(world)
    await membership.join(Member(name, ("poller",), weight=weight), wants_lane=True)
    return membership


def lanes(world: MemoryLeaseWorld) -> dict[int, int]:
    """How many ranges each lane has in the plan."""
    assigned = list(world.plan.assignment.values())
    return {lane: assigned.count(lane) for lane in set(assigned)}


@asynccontextmanager
async def coordinator(
    store: MemoryPlanStore, limits: PlanningLimits = FAST, membership: MemoryMembership | None = None
) -> AsyncIterator[asyncio.Task[None]]:
    """A running one."""
    task = asyncio.create_task(Coordinator(store, SystemClock(0), limits, membership).run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_all_ranges_go_to_the_members_and_move_with_them(world: MemoryLeaseWorld) -> None:
    first = await join(world, "a")
    async with coordinator(MemoryPlanStore(world)):
        await until(lambda: lanes(world) == {0: 8})
        await join(world, "b")
        await until(lambda: lanes(world) == {0: 4, 1: 4})
        await join(world, "c", weight=2)
        await until(lambda: lanes(world) == {0: 2, 1: 2, 2: 4})
        await first.leave()
        await until(lambda: 0 not in lanes(world))
        assert sum(lanes(world).values()) == RANGES


async def test_members_without_a_lane_get_nothing_and_without_lanes_the_plan_stays(world: MemoryLeaseWorld) -> None:
    await MemoryMembership(world).join(Member("api", ("api",)), wants_lane=False)
    only = await join(world, "a")
    async with coordinator(MemoryPlanStore(world)):
        await until(lambda: lanes(world) == {0: 8})
        await only.leave()
        await asyncio.sleep(0.1)
        assert lanes(world) == {0: 8}


async def test_a_plan_that_needs_no_change_is_not_written(world: MemoryLeaseWorld) -> None:
    await join(world, "a")
    async with coordinator(MemoryPlanStore(world)):
        await until(lambda: world.plan.version == 1)
        await asyncio.sleep(0.1)
        assert world.plan.version == 1


async def test_a_cluster_that_starts_as_a_whole_is_planned_once(world: MemoryLeaseWorld) -> None:
    async with coordinator(MemoryPlanStore(world), PlanningLimits(settle_s=0.6, poll_s=0.01, look_s_min=0.001)):
        for name in "abcd":
            await join(world, name)
            await asyncio.sleep(0.02)
        await until(lambda: bool(lanes(world)))
    assert lanes(world) == {0: 2, 1: 2, 2: 2, 3: 2}
    assert world.plan.version == 1


async def test_lanes_that_keep_coming_do_not_put_the_plan_off_for_ever(world: MemoryLeaseWorld) -> None:
    limits = PlanningLimits(settle_s=60, settle_s_max=0.1, poll_s=0.01, look_s_min=0.001)
    async with coordinator(MemoryPlanStore(world), limits):
        await join(world, "a")
        await until(lambda: lanes(world) == {0: 8})


async def test_the_ranges_of_a_lane_that_left_are_given_away_without_delay(world: MemoryLeaseWorld) -> None:
    first = await join(world, "a")
    watcher = await join(world, "b")
    limits = PlanningLimits(settle_s=0.05, poll_s=60, look_s_min=0.001)
    async with coordinator(MemoryPlanStore(world), limits, watcher):
        await until(lambda: lanes(world) == {0: 4, 1: 4})
        start = asyncio.get_running_loop().time()
        await first.leave()
        await until(lambda: lanes(world) == {1: 8})
        assert asyncio.get_running_loop().time() - start < 5


async def test_who_takes_a_planned_slot_takes_its_ranges_at_once(world: MemoryLeaseWorld) -> None:
    await join(world, "a")
    second = await join(world, "b")
    async with coordinator(MemoryPlanStore(world)):
        await until(lambda: lanes(world) == {0: 4, 1: 4})
    version = world.plan.version
    second.expire()
    await join(world, "b2")
    planner = Coordinator(MemoryPlanStore(world), SystemClock(0), PlanningLimits(settle_s=60))
    await planner._store.campaign()
    await planner.plan_once()
    assert world.plan.version == version


async def test_known_lanes_do_not_wait_for_new_ones(world: MemoryLeaseWorld) -> None:
    await join(world, "a")
    second = await join(world, "b")
    async with coordinator(MemoryPlanStore(world)):
        await until(lambda: lanes(world) == {0: 4, 1: 4})
    async with coordinator(MemoryPlanStore(world), PlanningLimits(settle_s=60, settle_s_max=60, poll_s=0.01)):
        await join(world, "c")
        await second.leave()
        await until(lambda: lanes(world) == {0: 8})


async def test_without_a_plan_ranges_stay_with_those_who_hold_them(world: MemoryLeaseWorld) -> None:
    for name in "ab":
        leases = (await join(world, name)).leases()
        for range_id in range(4) if name == "b" else range(4, 8):
            await leases.acquire(range_id)
    async with coordinator(MemoryPlanStore(world)):
        await until(lambda: world.plan.version == 1)
    assert world.plan.assignment == dict.fromkeys(range(4), 1) | dict.fromkeys(range(4, 8), 0)


async def test_a_coordinator_that_stalls_before_its_write_is_refused(world: MemoryLeaseWorld) -> None:
    """It computed its plan from two lanes; meanwhile one is gone, and its successor has planned that."""
    await join(world, "a")
    second = await join(world, "b")
    stale = StallingStore(world)
    async with coordinator(stale) as running:
        await stale.reached.wait()
        stale.expire()
        second.expire()
        async with coordinator(MemoryPlanStore(world)):
            await until(lambda: lanes(world) == {0: 8})
            stale.go_on.set()
            await stale.refused.wait()
            await asyncio.sleep(0.05)
            assert lanes(world) == {0: 8}
            assert not running.done()
        await until(lambda: world.candidates == [stale._session])


class StallingStore(MemoryPlanStore):
    """Its first write waits."""

    def __init__(self, world: MemoryLeaseWorld) -> None:
        super().__init__(world)
        self.reached, self.go_on, self.refused = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def write(self, plan: Plan) -> Plan:
        self.reached.set()
        await self.go_on.wait()
        try:
            return await super().write(plan)
        except OwnershipLost:
            self.refused.set()
            raise


async def test_a_coordinator_that_dies_in_the_middle_leaves_a_sound_plan(world: MemoryLeaseWorld) -> None:
    class Died(BaseException):
        pass

    def die(name: str) -> None:
        assert name == "plan.computed"
        raise Died

    await join(world, "a")
    async with coordinator(MemoryPlanStore(world)):
        await until(lambda: lanes(world) == {0: 8})
    await join(world, "b")
    failpoints.install(die)
    dying = MemoryPlanStore(world)
    with pytest.raises(Died):
        await asyncio.wait_for(Coordinator(dying, SystemClock(0), FAST).run(), DEADLINE_S)
    assert lanes(world) == {0: 8}
    failpoints.install(None)
    async with coordinator(MemoryPlanStore(world)):
        await until(lambda: lanes(world) == {0: 4, 1: 4})


async def test_a_coordinator_comes_through_the_services_absence(world: MemoryLeaseWorld) -> None:
    await join(world, "a")
    async with coordinator(MemoryPlanStore(world)) as running:
        await until(lambda: lanes(world) == {0: 8})
        world.cut()
        await asyncio.sleep(0.05)
        assert not running.done()
        world.restore()
        await join(world, "b")
        await until(lambda: lanes(world) == {0: 4, 1: 4})


async def test_the_next_coordinator_follows_at_once_when_one_stops(world: MemoryLeaseWorld) -> None:
    await join(world, "a")
    async with coordinator(MemoryPlanStore(world)) as first:
        await until(lambda: lanes(world) == {0: 8})
        async with coordinator(MemoryPlanStore(world)):
            first.cancel()
            await join(world, "b")
            await until(lambda: lanes(world) == {0: 4, 1: 4})
