"""A follower takes what the plan gives to its lane and gives up what it gives to others."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest

from bucketsched.adapters.memory.leases import MemoryLeases, MemoryLeaseWorld, MemoryMembership
from bucketsched.adapters.system_clock import SystemClock
from bucketsched.coordinator import follower as module
from bucketsched.coordinator import warm_moves
from bucketsched.coordinator.follower import RangeFollower
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.errors import Unavailable
from bucketsched.ports import Lease, Member, Plan

DEADLINE_S = 60.0


@pytest.fixture
async def world() -> MemoryLeaseWorld:
    return MemoryLeaseWorld(ClusterConstants(uuid4(), shards=16, ranges=8, lanes=4))


class Taker:
    """Takes leases, and does as it is told in between."""

    def __init__(self, leases: MemoryLeases) -> None:
        self.leases = leases
        self.held: dict[int, Lease] = {}
        self.taking = 0
        self.taking_max = 0
        self.tries: Counter[int] = Counter()
        self.failures: dict[int, Exception] = {}
        self.gates: dict[int, asyncio.Event] = {}
        self.deaf = False
        self.preloads: list[int] = []
        self.preloaded: set[int] = set()
        self.loads = True
        self.unwanted: set[int] = set()

    def forgo(self, range_id: int) -> None:
        self.unwanted.add(range_id)

    def want(self, range_id: int) -> None:
        self.unwanted.discard(range_id)

    async def preload(self, range_id: int) -> bool:
        self.preloads.append(range_id)
        self.preloaded.add(range_id)
        return self.loads

    def discard(self, range_id: int) -> None:
        self.preloaded.discard(range_id)

    @property
    def ranges(self) -> set[int]:
        return set(self.held)

    async def take(self, range_id: int) -> None:
        self.tries[range_id] += 1
        self.taking += 1
        self.taking_max = max(self.taking, self.taking_max)
        try:
            if range_id in self.failures:
                raise self.failures[range_id]
            if range_id in self.gates:
                await self.gates[range_id].wait()
            self.held[range_id] = await self.leases.acquire(range_id)
        finally:
            self.taking -= 1

    async def give_up(self, range_id: int) -> None:
        self.tries[range_id] += 1
        if not self.deaf:
            await self.leases.release(self.held[range_id])
            del self.held[range_id]


class Calls:
    """Passes the word on to the followers of other lanes; `deaf` ones can't be reached."""

    def __init__(self) -> None:
        self.followers: dict[int, RangeFollower] = {}
        self.said: list[tuple[int, tuple[int, ...]]] = []
        self.deaf: set[int] = set()

    async def ready(self, owner: Member, range_ids: Sequence[int], lane: int) -> bool:
        await asyncio.sleep(0)
        if owner.lane in self.deaf:
            return False
        self.said.append((lane, tuple(range_ids)))
        self.followers[owner.lane].ready(range_ids, lane)
        return True


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - what it waits for is told by no event
            await asyncio.sleep(0.002)


async def join(world: MemoryLeaseWorld, name: str, address: str = "") -> tuple[MemoryMembership, Taker]:
    membership = MemoryMembership(world)
    await membership.join(Member(name, ("poller",), internal_address=address), wants_lane=True)
    return membership, Taker(membership.leases())


@asynccontextmanager
async def following(
    membership: MemoryMembership, lane: int, taker: Taker, clock: SystemClock | None = None, calls: Calls | None = None
) -> AsyncIterator[asyncio.Task[None]]:
    follower = RangeFollower(membership, lane, taker, clock or SystemClock(0), calls)
    if calls is not None:
        calls.followers[lane] = follower
    task = asyncio.create_task(follower.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def plan(world: MemoryLeaseWorld, assignment: dict[int, int]) -> None:
    world.plan = Plan(world.plan.version + 1, assignment)
    world.change()


async def test_it_takes_what_it_is_given_and_gives_up_what_others_are_given(world: MemoryLeaseWorld) -> None:
    one, a = await join(world, "a")
    two, b = await join(world, "b")
    async with following(one, 0, a), following(two, 1, b):
        plan(world, dict.fromkeys(range(8), 0))
        await until(lambda: a.ranges == set(range(8)))
        plan(world, dict.fromkeys(range(4), 0) | dict.fromkeys(range(4, 8), 1))
        await until(lambda: a.ranges == {0, 1, 2, 3} and b.ranges == {4, 5, 6, 7})
        assert {lease.predecessors for lease in b.held.values()} == {()}


async def test_what_the_plan_does_not_name_stays(world: MemoryLeaseWorld) -> None:
    membership, taker = await join(world, "a")
    async with following(membership, 0, taker):
        plan(world, {0: 0, 1: 0})
        await until(lambda: taker.ranges == {0, 1})
        plan(world, {})
        await asyncio.sleep(0.05)
        assert taker.ranges == {0, 1}


async def test_ranges_are_taken_at_the_same_time_and_a_slow_one_holds_up_nobody(world: MemoryLeaseWorld) -> None:
    membership, taker = await join(world, "a")
    taker.gates = {r: asyncio.Event() for r in (0, 1)}
    taker.failures = {2: Unavailable("no"), 3: RuntimeError("a bug")}
    async with following(membership, 0, taker):
        plan(world, dict.fromkeys(range(8), 0))
        await until(lambda: taker.ranges == {4, 5, 6, 7})
        assert taker.taking_max > 2
        await until(lambda: taker.tries[2] > 2 and taker.tries[3] > 2)
        assert taker.tries[0] == 1
        taker.failures.clear()
        taker.gates[0].set()
        await until(lambda: taker.ranges == {0, 2, 3, 4, 5, 6, 7})


async def test_no_more_than_the_limit_move_at_a_time(world: MemoryLeaseWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOVES_IN_FLIGHT_MAX", 3)
    membership, taker = await join(world, "a")
    gate = asyncio.Event()
    taker.gates = dict.fromkeys(range(8), gate)
    async with following(membership, 0, taker):
        plan(world, dict.fromkeys(range(8), 0))
        await until(lambda: taker.taking == 3)
        await asyncio.sleep(0.05)
        assert taker.taking_max == 3
        gate.set()
        await until(lambda: taker.ranges == set(range(8)))


async def test_a_held_lease_is_taken_as_soon_as_it_is_free(world: MemoryLeaseWorld) -> None:
    """Told by a change, long before it would look by itself."""
    first, a = await join(world, "a")
    second, b = await join(world, "b")
    await a.take(0)
    plan(world, {0: 1})
    async with following(second, 1, b, SlowClock()):
        await until(lambda: b.tries[0] > 0)
        await asyncio.sleep(0.05)
        first.expire()
        await until(lambda: b.ranges == {0})
        assert b.held[0].predecessors == (0,)


class SlowClock(SystemClock):
    """Nobody who sleeps by it wakes up during a test, and no time passes."""

    def __init__(self) -> None:
        super().__init__(0)

    def monotonic(self) -> float:
        return 1.0

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(3600)


async def test_failures_are_not_repeated_without_a_pause(world: MemoryLeaseWorld) -> None:
    membership, taker = await join(world, "a")
    taker.failures = {0: Unavailable("no"), 2: RuntimeError("a bug")}
    async with following(membership, 0, taker):
        plan(world, {0: 0, 1: 0, 2: 0})
        await until(lambda: 1 in taker.ranges)
        taker.deaf = True
        first = Counter(taker.tries)
        plan(world, {0: 0, 1: 1, 2: 0})
        began = time.monotonic()
        await asyncio.sleep(0.5)
        tries_max = (time.monotonic() - began) / module.HELD_RETRY_S + 3
    assert taker.tries[0] <= first[0] + tries_max
    assert taker.tries[2] <= first[2] + tries_max
    assert taker.tries[1] <= first[1] + tries_max, "a range that is not given up on the first asking"


async def test_a_range_that_was_lost_is_taken_again(world: MemoryLeaseWorld) -> None:
    membership, taker = await join(world, "a")
    async with following(membership, 0, taker):
        plan(world, {0: 0})
        await until(lambda: taker.ranges == {0})
        taker.held.clear()
        await until(lambda: taker.ranges == {0})
        assert taker.held[0].epoch == 2


async def test_it_ends_when_the_session_is_lost_and_cancels_what_is_under_way(world: MemoryLeaseWorld) -> None:
    membership, taker = await join(world, "a")
    taker.gates = {0: asyncio.Event()}
    async with following(membership, 0, taker) as task:
        plan(world, {0: 0})
        await until(lambda: taker.taking == 1)
        membership.expire()
        await asyncio.wait_for(task, DEADLINE_S)
    assert taker.taking == 0


async def test_an_absent_service_ends_nothing(world: MemoryLeaseWorld) -> None:
    membership, taker = await join(world, "a")
    async with following(membership, 0, taker) as task:
        plan(world, {0: 0})
        await until(lambda: taker.ranges == {0})
        world.cut()
        await asyncio.sleep(0.3)
        assert not task.done()
        assert taker.ranges == {0}


# ---------------------------------------------------------------- warm moves


@asynccontextmanager
async def two_lanes(world: MemoryLeaseWorld) -> AsyncIterator[tuple[Taker, Taker, Calls]]:
    """Lane 0 owns everything, and both can talk."""
    calls = Calls()
    one, a = await join(world, "a", "127.0.0.1:1")
    two, b = await join(world, "b", "127.0.0.1:2")
    async with following(one, 0, a, calls=calls), following(two, 1, b, calls=calls):
        plan(world, dict.fromkeys(range(8), 0))
        await until(lambda: a.ranges == set(range(8)))
        yield a, b, calls


async def test_a_move_waits_until_the_taker_is_ready(world: MemoryLeaseWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_moves, "READY_WAIT_S_MAX", 60.0)
    async with two_lanes(world) as (a, b, calls):
        b.loads = False
        plan(world, dict.fromkeys(range(4), 0) | dict.fromkeys(range(4, 8), 1))
        await until(lambda: set(b.preloads) == {4, 5, 6, 7})
        await asyncio.sleep(0.3)
        assert a.ranges == set(range(8)), "nothing stands still while the taker is not ready"
        b.loads = True
        await until(lambda: a.ranges == {0, 1, 2, 3} and b.ranges == {4, 5, 6, 7})
        assert {range_id for _, said in calls.said for range_id in said} == {4, 5, 6, 7}
        assert len(calls.said) < 20, "one call for many"


async def test_an_owner_that_hears_nothing_gives_up_all_the_same(
    world: MemoryLeaseWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_moves, "READY_WAIT_S_MAX", 0.5)
    async with two_lanes(world) as (a, b, calls):
        calls.deaf = {0}
        plan(world, dict.fromkeys(range(8), 1))
        await asyncio.sleep(0.1)
        assert a.ranges == set(range(8))
        await until(lambda: b.ranges == set(range(8)))


async def test_an_owner_waits_for_no_lane_that_is_not_there(
    world: MemoryLeaseWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_moves, "READY_WAIT_S_MAX", 60.0)
    async with two_lanes(world) as (a, _, _):
        plan(world, dict.fromkeys(range(8), 3))
        await until(lambda: a.ranges == set())


async def test_the_word_of_one_lane_is_not_another_ones(
    world: MemoryLeaseWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_moves, "READY_WAIT_S_MAX", 60.0)
    async with two_lanes(world) as (a, b, calls):
        b.loads = False
        three, _ = await join(world, "c", "127.0.0.1:3")
        assert three is not None
        calls.followers[0].ready(range(8), 2)
        plan(world, dict.fromkeys(range(8), 1))
        await until(lambda: set(b.preloads) == set(range(8)))
        await asyncio.sleep(0.3)
        assert a.ranges == set(range(8))


async def test_what_is_planned_otherwise_is_not_kept_ready(
    world: MemoryLeaseWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_moves, "READY_WAIT_S_MAX", 60.0)
    async with two_lanes(world) as (a, b, calls):
        calls.deaf = {0}
        plan(world, dict.fromkeys(range(7), 0) | {7: 1})
        await until(lambda: b.preloaded == {7})
        plan(world, dict.fromkeys(range(8), 0))
        await until(lambda: b.preloaded == set())
        assert a.ranges == set(range(8))


async def test_a_range_that_goes_elsewhere_while_it_is_being_taken_is_forgone(world: MemoryLeaseWorld) -> None:
    membership, taker = await join(world, "a")
    async with following(membership, 0, taker):
        taker.gates[3] = asyncio.Event()
        plan(world, {3: 0})
        await until(lambda: taker.tries[3] == 1)
        plan(world, {3: 1})
        await until(lambda: taker.unwanted == {3})
        plan(world, {3: 0})
        await until(lambda: taker.unwanted == set())
        taker.gates[3].set()
        await until(lambda: taker.ranges == {3})
