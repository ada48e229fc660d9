"""Every lease service keeps the promises of ports.PlanStore."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from cluster_harness import (
    ADAPTERS,
    DEADLINE_S,
    RANGES,
    ClusterUnderTest,
    answer,
    joined,
    member,
    open_cluster,
    until,
)

from bucketsched.core.assignment import Move
from bucketsched.core.errors import OwnershipLost, Unavailable
from bucketsched.ports import (
    Lease,
    Member,
    NodeOrder,
    Orders,
    Plan,
    PlanStore,
    RangeStatus,
    Rebalance,
    RebalanceState,
)

AT_ONCE_S = 3.0
"""Less than it takes a candidate to look without being told of a change."""


@pytest.fixture(params=ADAPTERS)
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[ClusterUnderTest]:
    async with open_cluster(request.param, request) as opened:
        yield opened


@pytest.fixture
async def store(cluster: ClusterUnderTest) -> PlanStore:
    """The elected coordinator's."""
    elected = cluster.plan_store()
    await elected.campaign()
    return elected


async def test_only_one_is_elected_and_the_next_when_it_resigns(cluster: ClusterUnderTest, store: PlanStore) -> None:
    second, third = cluster.plan_store(), cluster.plan_store()
    waiting = asyncio.ensure_future(second.campaign())
    await asyncio.sleep(0.3)
    behind = asyncio.ensure_future(third.campaign())
    await asyncio.sleep(0.3)
    assert not waiting.done()
    await store.resign()
    await asyncio.wait_for(waiting, AT_ONCE_S)
    assert not behind.done()
    await second.resign()
    await asyncio.wait_for(behind, AT_ONCE_S)


async def test_a_candidate_that_gives_up_waiting_lets_those_behind_it_pass(
    cluster: ClusterUnderTest, store: PlanStore
) -> None:
    second, third = cluster.plan_store(), cluster.plan_store()
    waiting = asyncio.ensure_future(second.campaign())
    await asyncio.sleep(0.2)
    behind = asyncio.ensure_future(third.campaign())
    await asyncio.sleep(0.2)
    waiting.cancel()
    await second.resign()
    await store.resign()
    await asyncio.wait_for(behind, DEADLINE_S)


async def test_the_elected_one_may_campaign_again(store: PlanStore) -> None:
    await asyncio.wait_for(store.campaign(), DEADLINE_S)


async def test_the_next_is_elected_when_a_session_ends(cluster: ClusterUnderTest, store: PlanStore) -> None:
    second = cluster.plan_store()
    waiting = asyncio.ensure_future(second.campaign())
    await asyncio.sleep(0.2)
    await cluster.expire_candidate(store)
    await asyncio.wait_for(waiting, DEADLINE_S)
    again = asyncio.ensure_future(answer(store.campaign))
    await asyncio.sleep(0.2)
    assert not again.done()
    await second.resign()
    await asyncio.wait_for(again, DEADLINE_S)


async def test_a_plan_is_read_as_it_was_written(store: PlanStore) -> None:
    plan, _, _ = await store.read()
    assert plan == Plan(0, {})
    for assignment in ({0: 2, 3: 1}, {}, {r: r % 2 for r in range(RANGES)}):
        written = await store.write(Plan(plan.version, assignment))
        assert written == Plan(plan.version + 1, assignment)
        plan, _, _ = await store.read()
        assert plan == written


async def test_a_write_at_a_stale_version_is_refused(store: PlanStore) -> None:
    await store.write(Plan(0, {0: 0}))
    for version in (0, 2):
        with pytest.raises(OwnershipLost):
            await store.write(Plan(version, {0: 1}))
    assert (await store.read())[0] == Plan(1, {0: 0})


async def test_who_was_never_elected_can_not_write(cluster: ClusterUnderTest, store: PlanStore) -> None:
    other = cluster.plan_store()
    await other.read()
    waiting = asyncio.ensure_future(other.campaign())
    await asyncio.sleep(0.2)
    with pytest.raises(OwnershipLost):
        await other.write(Plan(0, {0: 1}))
    waiting.cancel()


async def test_who_is_no_longer_elected_can_not_write(cluster: ClusterUnderTest, store: PlanStore) -> None:
    """Even if nobody wrote a plan meanwhile, so that the version is right."""
    plan, _, _ = await store.read()
    await cluster.expire_candidate(store)
    successor = cluster.plan_store()
    await asyncio.wait_for(successor.campaign(), DEADLINE_S)
    with pytest.raises(OwnershipLost):
        await answer(lambda: store.write(replace(plan, assignment={0: 1})))
    assert (await successor.read())[0] == plan
    assert await successor.write(replace(plan, assignment={0: 2})) == Plan(1, {0: 2})


async def test_who_resigned_can_not_write(store: PlanStore) -> None:
    await store.resign()
    with pytest.raises(OwnershipLost):
        await store.write(Plan(0, {0: 1}))


async def test_everything_that_a_plan_is_made_from_is_read(cluster: ClusterUnderTest, store: PlanStore) -> None:
    gone, a = await joined(cluster, "a")
    _, b = await joined(cluster, "b")
    api = cluster.membership()
    await api.join(member("c"), wants_lane=False)
    await a.acquire(0)
    await a.acquire(1)
    await b.release(await b.acquire(2))
    await cluster.expire(gone)
    await b.acquire(1)
    _, members, ranges = await store.read()
    assert {m.member_id: m.lane for m in members} == {"b": 1, "c": -1}
    assert [m for m in members if m.member_id == "b"] == [replace(member("b"), lane=1)]
    assert ranges == [
        RangeStatus(0, 1, 0, held=False, released=False, predecessors=()),
        RangeStatus(1, 2, 1, held=True, released=False, predecessors=(0,)),
        RangeStatus(2, 1, 1, held=False, released=True, predecessors=()),
        RangeStatus(3, 0, -1, held=False, released=True, predecessors=()),
    ]


async def test_an_unreachable_service_is_unavailable_and_the_election_stands(
    cluster: ClusterUnderTest, store: PlanStore
) -> None:
    await cluster.cut()
    with pytest.raises(Unavailable):
        await store.read()
    with pytest.raises(Unavailable):
        await store.write(Plan(0, {0: 0}))
    await cluster.restore()
    assert await answer(lambda: store.write(Plan(0, {0: 0}))) == Plan(1, {0: 0})


async def test_nobody_is_elected_by_an_unreachable_service(cluster: ClusterUnderTest) -> None:
    await cluster.cut()
    with pytest.raises(Unavailable):
        await cluster.plan_store().campaign()


async def test_a_campaign_does_not_wait_for_an_unreachable_service(cluster: ClusterUnderTest, store: PlanStore) -> None:
    second = cluster.plan_store()
    waiting = asyncio.ensure_future(second.campaign())
    await asyncio.sleep(0.2)
    await cluster.cut()
    await store.resign()
    with pytest.raises(Unavailable):
        await asyncio.wait_for(waiting, DEADLINE_S)


# ---------------------------------------------------------------- evicting the dead


def of(cluster_members: list[Member], name: str) -> Member:
    return next(m for m in cluster_members if m.member_id == name)


async def test_an_evicted_member_has_lost_all_that_it_held(cluster: ClusterUnderTest, store: PlanStore) -> None:
    dead, a = await joined(cluster, "a")
    watcher, b = await joined(cluster, "b")
    lease = await a.acquire(0)
    await a.release(await a.acquire(1))
    await b.acquire(2)
    _, members, _ = await store.read()
    assert await store.evict(of(members, "a"))
    _, members, ranges = await store.read()
    assert [m.member_id for m in members] == ["b"]
    assert [r.range_id for r in ranges if r.held] == [2]
    await until(lambda: [m.member_id for m in watcher.members()] == ["b"])
    assert await b.acquire(0) == Lease(0, 2, (0,)), "it did not release: it is to be fenced"
    assert await b.acquire(1) == Lease(1, 2, ())
    await until(dead.session_lost)
    with pytest.raises(OwnershipLost):
        await a.validate([lease])


async def test_an_evicted_member_that_lives_joins_anew_and_is_not_evicted_again(
    cluster: ClusterUnderTest, store: PlanStore
) -> None:
    membership, _ = await joined(cluster, "a")
    _, members, _ = await store.read()
    first = of(members, "a")
    assert await store.evict(first)
    await until(membership.session_lost)
    again = await membership.join(member("a"), wants_lane=True)
    assert again.incarnation != first.incarnation
    lease = await membership.leases().acquire(0)
    assert not await store.evict(first), "that was another joining"
    assert not membership.session_lost()
    assert await membership.leases().validate([lease]) == {0}
    _, members, _ = await store.read()
    assert of(members, "a").incarnation == again.incarnation


async def test_what_a_dead_member_lost_to_another_meanwhile_stays_with_that(
    cluster: ClusterUnderTest, store: PlanStore
) -> None:
    gone, a = await joined(cluster, "a")
    await a.acquire(0)
    _, members, _ = await store.read()
    dead = of(members, "a")
    await cluster.expire(gone)
    heir, b = await joined(cluster, "b")
    lease = await b.acquire(0)
    assert not await store.evict(dead), "its slot is another's now"
    assert not heir.session_lost()
    assert await b.validate([lease]) == {0}


async def test_the_next_candidate_evicts_a_dead_coordinator_and_is_elected(cluster: ClusterUnderTest) -> None:
    stores = [cluster.plan_store(name) for name in "abc"]
    for name in "abc":
        await joined(cluster, name)
    await stores[0].campaign()
    waiting = []
    for behind in stores[1:]:
        waiting.append(asyncio.ensure_future(behind.campaign()))
        await asyncio.sleep(0.3)
    _, members, _ = await stores[0].read()
    assert not await stores[2].evict(of(members, "a")), "it is not next behind it"
    assert not await stores[1].evict(of(members, "c")), "it is not elected"
    assert len((await stores[0].read())[1]) == 3
    assert await stores[1].evict(of(members, "a"))
    await asyncio.wait_for(waiting[0], AT_ONCE_S)
    assert not waiting[1].done()
    assert [m.member_id for m in (await stores[1].read())[1]] == ["b", "c"]
    with pytest.raises(OwnershipLost):
        await stores[0].write(Plan(0, {0: 1}))
    assert await stores[1].evict(of(members, "c"))
    assert [m.member_id for m in (await stores[1].read())[1]] == ["b"]
    waiting[1].cancel()


async def test_a_dead_coordinator_without_a_lane_loses_its_candidacy(cluster: ClusterUnderTest) -> None:
    first, second = cluster.plan_store("a"), cluster.plan_store("b")
    await cluster.membership().join(member("a"), wants_lane=False)
    await first.campaign()
    waiting = asyncio.ensure_future(second.campaign())
    await asyncio.sleep(0.3)
    _, members, _ = await first.read()
    assert await second.evict(of(members, "a"))
    await asyncio.wait_for(waiting, AT_ONCE_S)


async def test_who_is_no_candidate_evicts_nobody(cluster: ClusterUnderTest, store: PlanStore) -> None:
    await joined(cluster, "a")
    _, members, _ = await store.read()
    assert not await cluster.plan_store("b").evict(members[0])
    await store.resign()
    assert not await store.evict(members[0])


async def test_no_eviction_by_an_unreachable_service(cluster: ClusterUnderTest, store: PlanStore) -> None:
    membership, _ = await joined(cluster, "a")
    _, members, _ = await store.read()
    await cluster.cut()
    with pytest.raises(Unavailable):
        await store.evict(members[0])
    await cluster.restore()
    assert await answer(lambda: store.evict(members[0]))
    await until(membership.session_lost)


async def test_the_plan_can_be_read_without_the_ranges(cluster: ClusterUnderTest, store: PlanStore) -> None:
    await joined(cluster, "a")
    await store.write(Plan(0, {0: 0}))
    plan, members, _ = await store.read()
    assert await store.read_plan() == (plan, members)
    await cluster.cut()
    with pytest.raises(Unavailable):
        await store.read_plan()


# ---------------------------------------------------------------- orders

ORDERED = Orders(
    0,
    {"a": NodeOrder(cordoned=True), "ü b": NodeOrder(drained=True)},
    Rebalance("r1", (Move(0, 1, 2), Move(3, 2, 0)), 2, RebalanceState.CANCELLED),
)


async def test_orders_are_read_as_they_were_written_by_anybody(cluster: ClusterUnderTest) -> None:
    operator, coordinator = cluster.plan_store(), cluster.plan_store()
    assert await operator.read_orders() == Orders()
    written = await operator.write_orders(ORDERED)
    assert written == replace(ORDERED, version=1)
    assert await coordinator.read_orders() == written
    assert await coordinator.write_orders(Orders(1)) == Orders(2)
    assert await operator.read_orders() == Orders(2)


async def test_of_two_who_write_orders_at_once_one_is_told_to_read_again(cluster: ClusterUnderTest) -> None:
    stores = [cluster.plan_store() for _ in range(3)]
    written = await asyncio.gather(*(s.write_orders(Orders(0, {f"n{i}": NodeOrder()})) for i, s in enumerate(stores)))
    assert sorted(orders is None for orders in written) == [False, True, True]
    assert await stores[0].read_orders() == next(orders for orders in written if orders)


async def test_orders_of_an_unreachable_service_are_unavailable(cluster: ClusterUnderTest) -> None:
    store = cluster.plan_store()
    await store.read_orders()
    await cluster.cut()
    for attempt in (store.read_orders(), store.write_orders(Orders())):
        with pytest.raises(Unavailable):
            await attempt
    await cluster.restore()
    assert await answer(store.read_orders) == Orders()
