"""Every lease service keeps the promises of ports.Leases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from cluster_harness import ADAPTERS, RANGES, ClusterUnderTest, answer, joined, member, open_cluster

from bucketsched.core.checkpoint import NO_OFFSET, Checkpoint
from bucketsched.core.errors import OwnershipLost, Unavailable
from bucketsched.ports import Lease, LeaseHeld, RangeStatus


@pytest.fixture(params=ADAPTERS)
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[ClusterUnderTest]:
    async with open_cluster(request.param, request) as opened:
        yield opened


async def status(cluster: ClusterUnderTest, range_id: int) -> RangeStatus:
    """What is stored of a range."""
    store = cluster.plan_store()
    try:
        return (await store.read())[2][range_id]
    finally:
        await store.resign()


def checkpoint(epoch: int, lane: int) -> Checkpoint:
    return Checkpoint(epoch, 1, "journal", lane, NO_OFFSET, b"", 0)


# ---------------------------------------------------------------- acquire


async def test_the_first_lease_has_epoch_one_and_no_predecessors(cluster: ClusterUnderTest) -> None:
    _, leases = await joined(cluster, "a")
    assert await leases.acquire(2) == Lease(2, 1, ())
    assert await status(cluster, 2) == RangeStatus(2, 1, 0, held=True, released=False, predecessors=())


async def test_a_lease_that_stands_keeps_others_out(cluster: ClusterUnderTest) -> None:
    _, first = await joined(cluster, "a")
    _, second = await joined(cluster, "b")
    await first.acquire(0)
    with pytest.raises(LeaseHeld):
        await second.acquire(0)
    assert (await status(cluster, 0)).epoch == 1
    assert await second.acquire(1) == Lease(1, 1, ())


async def test_of_racing_lanes_exactly_one_gets_the_range_and_epochs_rise(cluster: ClusterUnderTest) -> None:
    lanes = [(await joined(cluster, name))[1] for name in "abc"]
    epoch = 0
    for _ in range(5):
        answers = await asyncio.gather(*(lane.acquire(0) for lane in lanes), return_exceptions=True)
        won = [(lane, a) for lane, a in zip(lanes, answers, strict=True) if isinstance(a, Lease)]
        assert len(won) == 1, answers
        assert sum(isinstance(a, LeaseHeld) for a in answers) == 2, answers
        winner, lease = won[0]
        assert lease.epoch == epoch + 1
        epoch = lease.epoch
        await winner.release(lease)


async def test_a_lane_whose_session_ended_is_a_predecessor(cluster: ClusterUnderTest) -> None:
    gone, first = await joined(cluster, "a")
    _, second = await joined(cluster, "b")
    await first.acquire(0)
    await cluster.expire(gone)
    assert await second.acquire(0) == Lease(0, 2, (0,))


async def test_a_lane_that_released_is_not_a_predecessor(cluster: ClusterUnderTest) -> None:
    _, first = await joined(cluster, "a")
    _, second = await joined(cluster, "b")
    await first.release(await first.acquire(0))
    assert await second.acquire(0) == Lease(0, 2, ())


async def test_a_lane_that_died_is_a_predecessor_also_of_its_successor_in_the_same_slot(
    cluster: ClusterUnderTest,
) -> None:
    first, a = await joined(cluster, "a")
    await a.acquire(0)
    await cluster.expire(first)
    second, b = await joined(cluster, "b")
    assert await b.acquire(0) == Lease(0, 2, (0,))
    await cluster.expire(second)
    _, c = await joined(cluster, "c")
    assert await c.acquire(0) == Lease(0, 3, (0,))


async def test_every_unfenced_lane_stays_a_predecessor_in_order(cluster: ClusterUnderTest) -> None:
    first, a = await joined(cluster, "a")
    second, b = await joined(cluster, "b")
    _, c = await joined(cluster, "c")
    await a.acquire(0)
    await cluster.expire(first)
    assert (await b.acquire(0)).predecessors == (0,)
    await cluster.expire(second)
    lease = await c.acquire(0)
    assert lease == Lease(0, 3, (0, 1))
    assert (await status(cluster, 0)).predecessors == (0, 1)


async def test_a_release_keeps_predecessors_that_were_not_cleared(cluster: ClusterUnderTest) -> None:
    first, a = await joined(cluster, "a")
    _, b = await joined(cluster, "b")
    _, c = await joined(cluster, "c")
    await a.acquire(0)
    await cluster.expire(first)
    await b.release(await b.acquire(0))
    assert await c.acquire(0) == Lease(0, 3, (0,))


async def test_a_lane_may_take_its_own_range_again_and_is_its_own_predecessor(cluster: ClusterUnderTest) -> None:
    _, leases = await joined(cluster, "a")
    old = await leases.acquire(0)
    assert await leases.acquire(0) == Lease(0, 2, (0,))
    assert await leases.validate([old]) == set()


async def test_a_lane_without_slot_can_not_acquire(cluster: ClusterUnderTest) -> None:
    gone, leases = await joined(cluster, "a")
    await cluster.expire(gone)
    with pytest.raises(OwnershipLost):
        await answer(lambda: leases.acquire(0))
    assert (await status(cluster, 0)).epoch == 0


async def test_leases_of_a_former_join_are_of_no_use_after_the_next(cluster: ClusterUnderTest) -> None:
    membership, old = await joined(cluster, "a")
    lease = await old.acquire(0)
    await membership.leave()
    await joined(cluster, "a")
    for attempt in (old.acquire(1), old.validate([lease]), old.clear_predecessors(lease), old.release(lease)):
        with pytest.raises(OwnershipLost):
            await attempt


# ---------------------------------------------------------------- clear, validate, release


async def test_cleared_predecessors_are_gone_for_the_next_taker(cluster: ClusterUnderTest) -> None:
    first, a = await joined(cluster, "a")
    second, b = await joined(cluster, "b")
    _, c = await joined(cluster, "c")
    await a.acquire(0)
    await cluster.expire(first)
    await b.clear_predecessors(await b.acquire(0))
    assert (await status(cluster, 0)).predecessors == ()
    await cluster.expire(second)
    assert await c.acquire(0) == Lease(0, 3, (1,))


async def test_a_lease_that_was_superseded_changes_nothing(cluster: ClusterUnderTest) -> None:
    gone, a = await joined(cluster, "a")
    _, b = await joined(cluster, "b")
    old = await a.acquire(0)
    await a.acquire(0)
    with pytest.raises(OwnershipLost):
        await a.clear_predecessors(old)
    with pytest.raises(OwnershipLost):
        await a.release(old)
    assert await status(cluster, 0) == RangeStatus(0, 2, 0, held=True, released=False, predecessors=(0,))
    await cluster.expire(gone)
    await b.acquire(0)
    with pytest.raises(OwnershipLost):
        await answer(lambda: a.clear_predecessors(Lease(0, 2, (0,))))
    assert (await status(cluster, 0)).predecessors == (0,)


async def test_a_released_lease_is_over(cluster: ClusterUnderTest) -> None:
    _, leases = await joined(cluster, "a")
    lease = await leases.acquire(0)
    await leases.release(lease)
    assert await status(cluster, 0) == RangeStatus(0, 1, 0, held=False, released=True, predecessors=())
    assert await leases.validate([lease]) == set()
    with pytest.raises(OwnershipLost):
        await leases.clear_predecessors(lease)
    with pytest.raises(OwnershipLost):
        await leases.release(lease)


async def test_validation_names_the_ranges_that_still_are_ours(cluster: ClusterUnderTest) -> None:
    _, a = await joined(cluster, "a")
    _, b = await joined(cluster, "b")
    mine = [await a.acquire(r) for r in range(RANGES)]
    assert await a.validate(mine) == set(range(RANGES))
    await a.release(mine[1])
    await b.acquire(1)
    await a.acquire(3)
    assert await a.validate(mine) == {0, 2}
    assert await a.validate([]) == set()


async def test_validation_goes_on_while_the_ranges_change(cluster: ClusterUnderTest) -> None:
    _, leases = await joined(cluster, "a")
    mine = [await leases.acquire(r) for r in range(RANGES)]
    answers = await asyncio.gather(
        *(leases.clear_predecessors(lease) for lease in mine), *(leases.validate(mine) for _ in range(5))
    )
    assert answers[RANGES:] == [set(range(RANGES))] * 5


async def test_validation_fails_as_a_whole_without_slot(cluster: ClusterUnderTest) -> None:
    gone, leases = await joined(cluster, "a")
    mine = await leases.acquire(0)
    await cluster.expire(gone)
    with pytest.raises(OwnershipLost):
        await answer(lambda: leases.validate([mine]))
    with pytest.raises(OwnershipLost):
        await leases.validate([])


async def test_a_slot_that_another_took_is_not_ours(cluster: ClusterUnderTest) -> None:
    gone, leases = await joined(cluster, "a")
    mine = await leases.acquire(0)
    await cluster.expire(gone)
    successor = cluster.membership()
    assert (await successor.join(member("b"), wants_lane=True)).lane == 0
    with pytest.raises(OwnershipLost):
        await answer(lambda: leases.validate([mine]))
    assert await successor.leases().acquire(0) == Lease(0, 2, (0,))


# ---------------------------------------------------------------- the service is away, or was


async def test_an_unreachable_service_is_unavailable_and_takes_no_lease_away(cluster: ClusterUnderTest) -> None:
    membership, leases = await joined(cluster, "a")
    lease = await leases.acquire(0)
    await cluster.cut()
    for attempt in (
        leases.acquire(1),
        leases.validate([lease]),
        leases.clear_predecessors(lease),
        leases.release(lease),
    ):
        with pytest.raises(Unavailable):
            await attempt
    assert not membership.session_lost()
    await cluster.restore()
    assert await answer(lambda: leases.validate([lease])) == {0}


async def test_epochs_start_above_those_of_checkpoints_and_their_lane_is_fenced(cluster: ClusterUnderTest) -> None:
    await cluster.raise_epochs({0: checkpoint(41, 2), 1: checkpoint(7, 0), 3: checkpoint(0, -1)})
    _, leases = await joined(cluster, "a")
    assert await leases.acquire(0) == Lease(0, 42, (2,))
    assert await leases.acquire(1) == Lease(1, 8, (0,))
    assert await leases.acquire(2) == Lease(2, 1, ())
    assert await leases.acquire(3) == Lease(3, 1, ())


async def test_checkpoints_that_are_not_ahead_change_nothing(cluster: ClusterUnderTest) -> None:
    _, leases = await joined(cluster, "a")
    lease = await leases.acquire(0)
    await cluster.raise_epochs({0: checkpoint(1, 0)})
    assert await leases.validate([lease]) == {0}


async def test_a_lease_below_its_checkpoint_is_taken_away(cluster: ClusterUnderTest) -> None:
    """It was given by a service that had forgotten: its owner's checkpoints would be without effect."""
    _, leases = await joined(cluster, "a")
    _, other = await joined(cluster, "b")
    lease = await leases.acquire(0)
    await cluster.raise_epochs({0: checkpoint(9, 2)})
    assert await leases.validate([lease]) == set()
    taken = await other.acquire(0)
    assert taken.epoch == 10
    assert set(taken.predecessors) == {0, 2}
