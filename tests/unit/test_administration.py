"""What operators see and order, on ownership in memory."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import uuid4

import pytest

from bucketsched.adapters.memory.leases import MemoryLeaseWorld, MemoryMembership, MemoryPlanStore
from bucketsched.coordinator.administration import Administration, NodeStatus
from bucketsched.core.assignment import Move
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.errors import FailedPrecondition, NotFound, Unavailable
from bucketsched.ports import Member, NodeOrder, Orders, Plan, RebalanceState

RANGES = 8


@pytest.fixture
async def world() -> MemoryLeaseWorld:
    return MemoryLeaseWorld(ClusterConstants(uuid4(), shards=16, ranges=RANGES, lanes=6))


@pytest.fixture
def admin(world: MemoryLeaseWorld) -> Administration:
    return Administration(MemoryPlanStore(world))


async def join(world: MemoryLeaseWorld, name: str, lane: bool = True, **given: object) -> MemoryMembership:
    membership = MemoryMembership(world)
    roles = ("poller",) if lane else ("api",)
    await membership.join(Member(f"host-{name}", roles, name=name, **given), wants_lane=lane)  # type: ignore[arg-type]
    return membership


async def uneven(world: MemoryLeaseWorld) -> None:
    """Two nodes: a has five ranges, b has three."""
    one, two = await join(world, "a"), await join(world, "b")
    world.plan = Plan(1, dict.fromkeys(range(5), 0) | dict.fromkeys(range(5, 8), 1))
    for r in range(8):
        await (one if r < 5 else two).leases().acquire(r)


async def status(admin: Administration, name: str) -> NodeStatus:
    return next(s for s in (await admin.look()).nodes() if s.name == name)


async def test_nodes_are_shown_with_what_they_have_and_shall_have(
    world: MemoryLeaseWorld, admin: Administration
) -> None:
    await uneven(world)
    await join(world, "c", weight=2)
    await join(world, "api", lane=False)
    world.orders = Orders(3, {"gone": NodeOrder(cordoned=True), "b": NodeOrder(cordoned=True)})
    world.plan = replace(world.plan, assignment=world.plan.assignment | {0: 2})
    found = {s.name: s for s in (await admin.look()).nodes()}
    assert list(found) == ["a", "api", "b", "c", "gone"]
    assert {n: (s.held, s.planned, s.state) for n, s in found.items()} == {
        "a": (5, 4, "active"),
        "api": (0, 0, "active"),
        "b": (3, 3, "cordoned"),
        "c": (0, 1, "active"),
        "gone": (0, 0, "absent"),
    }
    assert [round(found[n].share, 1) for n in "abc"] == [2.7, 0, 5.3]


@pytest.mark.parametrize("name", ["b", "host-b", "1"])
async def test_a_node_goes_by_name_member_id_and_lane(
    world: MemoryLeaseWorld, admin: Administration, name: str
) -> None:
    await uneven(world)
    assert (await admin.cordon(name, undo=False)).name == "b"
    assert world.orders.nodes == {"b": NodeOrder(cordoned=True)}


async def test_an_unknown_name_is_answered_with_the_known_ones(world: MemoryLeaseWorld, admin: Administration) -> None:
    await uneven(world)
    world.orders = Orders(0, {"gone": NodeOrder(drained=True)})
    for attempt in (admin.drain("d", undo=False), admin.cordon("7", undo=False), admin.cordon("d", undo=True)):
        with pytest.raises(NotFound, match="a, b, gone"):
            await attempt


async def test_orders_add_up_and_are_taken_back_one_by_one(world: MemoryLeaseWorld, admin: Administration) -> None:
    await uneven(world)
    assert (await admin.cordon("b", undo=False)).state == "cordoned"
    assert (await admin.drain("b", undo=False)).state == "draining"
    assert world.orders.nodes == {"b": NodeOrder(cordoned=True, drained=True)}
    version = world.orders.version
    await admin.drain("b", undo=False)
    assert world.orders.version == version, "it is ordered already"
    assert (await admin.drain("b", undo=True)).state == "cordoned"
    assert (await admin.cordon("b", undo=True)).state == "active"
    assert world.orders.nodes == {}


async def test_orders_for_a_node_that_is_gone_can_be_taken_back(world: MemoryLeaseWorld, admin: Administration) -> None:
    await uneven(world)
    world.orders = Orders(0, {"gone": NodeOrder(drained=True)})
    assert (await admin.drain("gone", undo=True)).member is None
    assert world.orders.nodes == {}


async def test_the_last_node_that_could_own_is_not_drained(world: MemoryLeaseWorld, admin: Administration) -> None:
    await uneven(world)
    await admin.cordon("b", undo=False)
    with pytest.raises(FailedPrecondition, match="no other node could take the ranges of a"):
        await admin.drain("a", undo=False)
    await join(world, "c")
    await admin.drain("a", undo=False)
    with pytest.raises(FailedPrecondition, match="of c"):
        await admin.drain("c", undo=False)


async def test_a_node_without_a_lane_has_nothing_to_order_about(world: MemoryLeaseWorld, admin: Administration) -> None:
    await uneven(world)
    await join(world, "api", lane=False)
    with pytest.raises(FailedPrecondition, match="no lane"):
        await admin.cordon("api", undo=False)


async def test_a_proposal_evens_out_and_respects_orders(world: MemoryLeaseWorld, admin: Administration) -> None:
    await uneven(world)
    assert await admin.propose(None) == [Move(4, 0, 1)]
    world.plan = Plan(2, dict.fromkeys(range(8), 0))
    assert len(await admin.propose(None)) == 4
    assert len(await admin.propose(3)) == 3
    world.orders = Orders(0, {"b": NodeOrder(cordoned=True)})
    assert await admin.propose(None) == []


async def test_a_second_rebalance_joins_the_one_that_runs(world: MemoryLeaseWorld, admin: Administration) -> None:
    await uneven(world)
    first = await admin.begin([Move(4, 0, 1)], 2)
    assert await admin.begin([Move(0, 0, 1)], 1) == first
    assert (await admin.look()).progress().waiting == [Move(4, 0, 1)]
    cancelled = await admin.cancel()
    assert cancelled is not None
    assert cancelled.state is RebalanceState.CANCELLED
    assert await admin.cancel() is None
    assert (await admin.begin([Move(0, 0, 1)], 1)).rebalance_id != first.rebalance_id


async def test_operators_that_order_at_once_do_not_undo_each_other(world: MemoryLeaseWorld) -> None:
    for name in "abcde":
        await join(world, name)
    admins = [Administration(MemoryPlanStore(world)) for _ in range(4)]
    await asyncio.gather(*(admin.cordon(name, undo=False) for admin, name in zip(admins, "abcd", strict=True)))
    assert world.orders.nodes == {name: NodeOrder(cordoned=True) for name in "abcd"}


async def test_without_the_service_nothing_is_known_or_ordered(world: MemoryLeaseWorld, admin: Administration) -> None:
    world.cut()
    for attempt in (admin.look(), admin.propose(None), admin.cancel(), admin.cordon("a", undo=False)):
        with pytest.raises(Unavailable):
            await attempt
