"""Coordinators plan what the members ask for, one at a time, and followers carry it out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import uuid4

import pytest

from bucketsched.adapters.memory.leases import MemoryLeaseWorld, MemoryMembership, MemoryPlanStore
from bucketsched.adapters.system_clock import SystemClock
from bucketsched.coordinator.planning import Coordinator, PlanningLimits
from bucketsched.core import failpoints
from bucketsched.core.assignment import Move
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.errors import OwnershipLost
from bucketsched.core.flapping import FlappingLimits
from bucketsched.ports import Lease, Member, NodeOrder, Plan, Rebalance, RebalanceState

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


# ---------------------------------------------------------------- orders, zones, flapping


@asynccontextmanager
async def ordered(world: MemoryLeaseWorld, limits: PlanningLimits = FAST) -> AsyncIterator[MemoryPlanStore]:
    """A running coordinator that follows orders; its store."""
    store = MemoryPlanStore(world)
    task = asyncio.create_task(Coordinator(store, SystemClock(0), limits, orders=store).run())
    try:
        yield store
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def order(store: MemoryPlanStore, **nodes: NodeOrder) -> None:
    orders = await store.read_orders()
    assert await store.write_orders(replace(orders, nodes=nodes))


async def take_all(world: MemoryLeaseWorld, *memberships: MemoryMembership) -> asyncio.Task[None]:
    """Members that follow the plan as pollers do."""

    async def follow() -> None:
        leases: dict[int, tuple[int, Lease]] = {}
        owners = {m._lane: m.leases() for m in memberships}
        while True:
            for r, lane in world.plan.assignment.items():
                if r in leases and leases[r][0] != lane:
                    await owners[leases[r][0]].release(leases.pop(r)[1])
                if r not in leases and lane in owners:
                    leases[r] = lane, await owners[lane].acquire(r)
            await asyncio.sleep(0.002)

    return asyncio.create_task(follow())


async def test_a_drained_node_loses_its_ranges_and_gets_them_back(world: MemoryLeaseWorld) -> None:
    await join(world, "a")
    await join(world, "b")
    async with ordered(world) as store:
        await until(lambda: lanes(world) == {0: 4, 1: 4})
        await order(store, b=NodeOrder(drained=True))
        await until(lambda: lanes(world) == {0: 8})
        await order(store)
        await until(lambda: lanes(world) == {0: 4, 1: 4})


async def test_a_member_that_leaves_loses_its_ranges_while_it_still_is_there(world: MemoryLeaseWorld) -> None:
    await join(world, "a")
    leaving = await join(world, "b")
    async with coordinator(MemoryPlanStore(world)):
        await until(lambda: lanes(world) == {0: 4, 1: 4})
        await leaving.announce_leaving()
        await until(lambda: lanes(world) == {0: 8})
        assert len(leaving.members()) == 2


async def test_a_cordoned_node_keeps_what_it_has_and_gets_nothing(world: MemoryLeaseWorld) -> None:
    await join(world, "a")
    await join(world, "b")
    async with ordered(world) as store:
        await until(lambda: lanes(world) == {0: 4, 1: 4})
        before = dict(world.plan.assignment)
        await order(store, b=NodeOrder(cordoned=True))
        await join(world, "c")
        await until(lambda: lanes(world) == {0: 2, 1: 4, 2: 2})
        assert {r for r, lane in before.items() if lane == 1} == {
            r for r, lane in world.plan.assignment.items() if lane == 1
        }


async def test_orders_hold_for_the_name_whatever_process_has_it(world: MemoryLeaseWorld) -> None:
    await join(world, "a")
    first = MemoryMembership(world)
    await first.join(Member("host-1-x", ("poller",), name="b"), wants_lane=True)
    async with ordered(world) as store:
        await until(lambda: lanes(world) == {0: 4, 1: 4})
        await order(store, b=NodeOrder(drained=True))
        await until(lambda: lanes(world) == {0: 8})
        await first.leave()
        await MemoryMembership(world).join(Member("host-2-y", ("poller",), name="b"), wants_lane=True)
        await asyncio.sleep(0.2)
        assert lanes(world) == {0: 8}


async def test_a_node_that_keeps_coming_and_going_gets_nothing_new_for_a_while(world: MemoryLeaseWorld) -> None:
    watcher = await join(world, "a")
    flapping = replace(FAST, flapping=FlappingLimits(free_joinings=2, backoff_s=0.7, backoff_s_max=0.7))
    async with coordinator(MemoryPlanStore(world), flapping, watcher):
        for _ in range(2):
            unsteady = await join(world, "b")
            await until(lambda: lanes(world) == {0: 4, 1: 4})
            await unsteady.leave()
            await until(lambda: lanes(world) == {0: 8})
        await join(world, "b")
        began = asyncio.get_running_loop().time()
        await until(lambda: lanes(world) == {0: 4, 1: 4})
        assert asyncio.get_running_loop().time() - began > 0.5


async def test_a_node_that_flaps_is_better_than_none(world: MemoryLeaseWorld) -> None:
    flapping = replace(FAST, flapping=FlappingLimits(free_joinings=0, backoff_s=60))
    async with coordinator(MemoryPlanStore(world), flapping, await join(world, "a")):
        await until(lambda: lanes(world) == {0: 8})


async def test_who_follows_an_elected_one_knows_who_flapped_before(world: MemoryLeaseWorld) -> None:
    steady = await join(world, "a")
    flapping = replace(FAST, flapping=FlappingLimits(free_joinings=2, backoff_s=60))
    first, second = MemoryPlanStore(world), MemoryPlanStore(world)
    async with coordinator(first, FAST, steady), coordinator(second, flapping, steady):
        for _ in range(3):
            unsteady = await join(world, "b")
            await until(lambda: lanes(world) == {0: 4, 1: 4})
            await unsteady.leave()
            await until(lambda: lanes(world) == {0: 8})
        first.expire()
        await until(lambda: world.candidates[:1] == [second._session])
        await join(world, "b")
        await asyncio.sleep(0.3)
        assert lanes(world) == {0: 8}


async def test_zones_share_the_ranges(world: MemoryLeaseWorld) -> None:
    for name, zone in (("a", "z1"), ("b", "z2"), ("c", "z2")):
        await MemoryMembership(world).join(Member(name, ("poller",), zone=zone, weight=2), wants_lane=True)
    async with coordinator(MemoryPlanStore(world)):
        await until(lambda: sum(lanes(world).values()) == 8)
        assert sorted(lanes(world).values()) == [2, 3, 3]


async def test_a_rebalance_moves_a_few_at_a_time_and_ends(world: MemoryLeaseWorld) -> None:
    one, two = await join(world, "a"), await join(world, "b")
    world.plan = Plan(1, dict.fromkeys(range(5), 0) | dict.fromkeys(range(5, 8), 1))
    follower = await take_all(world, one, two)
    async with ordered(world) as store:
        await until(lambda: all(s.holder for s in world.ranges.values()))
        assert world.plan.version == 1, "one more is no reason to move anything"
        moves = (Move(0, 0, 1), Move(1, 0, 1), Move(6, 1, 0), Move(7, 0, 1))
        seen: set[int] = set()
        assert await store.write_orders(replace(await store.read_orders(), rebalance=Rebalance("r", moves, 1)))
        while (found := world.orders.rebalance) and found.state is RebalanceState.RUNNING:
            held = {r: s.lane for r, s in world.ranges.items() if s.holder}
            seen.add(sum(held.get(m.range_id) != m.target == world.plan.assignment[m.range_id] for m in moves))
            await asyncio.sleep(0.001)
        assert max(seen) == 1
        assert found.state is RebalanceState.DONE
        assert [world.plan.assignment[r] for r in (0, 1, 6, 7)] == [1, 1, 0, 1]
        assert [world.ranges[r].lane for r in (0, 1, 6)] == [1, 1, 0]
    follower.cancel()


async def test_a_cancelled_rebalance_begins_nothing_more(world: MemoryLeaseWorld) -> None:
    await join(world, "a")
    await join(world, "b")
    world.plan = Plan(1, dict.fromkeys(range(5), 0) | dict.fromkeys(range(5, 8), 1))
    async with ordered(world) as store:
        moves = (Move(0, 0, 1), Move(1, 0, 1))
        rebalance = Rebalance("r", moves, 1)
        assert await store.write_orders(replace(await store.read_orders(), rebalance=rebalance))
        await until(lambda: world.plan.assignment[0] == 1)
        cancelled = replace(rebalance, state=RebalanceState.CANCELLED)
        assert await store.write_orders(replace(await store.read_orders(), rebalance=cancelled))
        await asyncio.sleep(0.1)
        assert world.plan.assignment[1] == 0


async def test_moves_to_a_lane_that_is_gone_are_skipped(world: MemoryLeaseWorld) -> None:
    await join(world, "a")
    async with ordered(world) as store:
        await until(lambda: lanes(world) == {0: 8})
        moves = (Move(0, 0, 5), Move(1, 4, 3))
        assert await store.write_orders(replace(await store.read_orders(), rebalance=Rebalance("r", moves, 4)))
        await until(lambda: world.orders.rebalance is not None and world.orders.rebalance.state is RebalanceState.DONE)
        assert lanes(world) == {0: 8}


async def test_a_move_that_its_target_never_carries_out_fails_and_the_others_go_on(world: MemoryLeaseWorld) -> None:
    """Nobody takes anything here, so every move of the first lane comes to nothing."""
    await join(world, "a")
    await join(world, "b")
    world.plan = Plan(1, dict.fromkeys(range(5), 0) | dict.fromkeys(range(5, 8), 1))
    async with ordered(world, replace(FAST, move_s_max=0.2)) as store:
        moves = (Move(0, 0, 1), Move(1, 0, 1))
        assert await store.write_orders(replace(await store.read_orders(), rebalance=Rebalance("r", moves, 1)))
        await until(lambda: world.plan.assignment[0] == 1)
        await until(lambda: world.plan.assignment[1] == 1)
        assert world.plan.assignment[0] == 0, "planned back"
        await until(lambda: world.orders.rebalance is not None and world.orders.rebalance.state is RebalanceState.DONE)
        assert world.orders.rebalance is not None
        assert world.orders.rebalance.failed == (0, 1)
        assert world.plan.assignment[1] == 0


async def test_while_moves_are_ordered_only_what_has_no_owner_is_planned_beside_them(world: MemoryLeaseWorld) -> None:
    """In between one lane has nearly nothing; afterwards its share again."""
    one, two = await join(world, "a"), await join(world, "b")
    world.plan = Plan(1, dict.fromkeys(range(4), 0) | dict.fromkeys(range(4, 8), 1))
    follower = await take_all(world, one, two)
    async with ordered(world) as store:
        await until(lambda: all(s.holder for s in world.ranges.values()))
        moves = tuple(Move(r, 0, 1) for r in range(3))
        assert await store.write_orders(replace(await store.read_orders(), rebalance=Rebalance("r", moves, 1)))
        await until(lambda: lanes(world) == {0: 1, 1: 7})
        await until(lambda: lanes(world) == {0: 4, 1: 4})
        follower.cancel()
        back = tuple(Move(r, lane, 1 - lane) for r, lane in world.plan.assignment.items())
        assert await store.write_orders(replace(await store.read_orders(), rebalance=Rebalance("s", back, 1)))
        await until(lambda: sorted(lanes(world).values()) == [3, 5])
        await two.leave()
        await until(lambda: lanes(world) == {0: 8})
