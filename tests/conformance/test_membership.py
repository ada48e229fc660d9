"""Every lease service keeps the promises of ports.Membership."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from cluster_harness import ADAPTERS, DEADLINE_S, LANES, ClusterUnderTest, joined, member, open_cluster, until

from bucketsched.core.errors import OwnershipLost, Unavailable
from bucketsched.ports import Member, Plan


@pytest.fixture(params=ADAPTERS)
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[ClusterUnderTest]:
    async with open_cluster(request.param, request) as opened:
        yield opened


async def plan(cluster: ClusterUnderTest, assignment: dict[int, int]) -> Plan:
    """A coordinator comes, writes the plan and goes."""
    store = cluster.plan_store()
    await store.campaign()
    current, _, _ = await store.read()
    written = await store.write(Plan(current.version, assignment))
    await store.resign()
    return written


# ---------------------------------------------------------------- join and leave


async def test_lanes_are_given_lowest_first_and_again_when_free(cluster: ClusterUnderTest) -> None:
    members = [cluster.membership() for _ in range(LANES)]
    lanes = [(await m.join(member(f"m{i}"), wants_lane=True)).lane for i, m in enumerate(members)]
    assert lanes == [0, 1, 2]
    await members[1].leave()
    assert (await members[1].join(member("again"), wants_lane=True)).lane == 1
    await cluster.expire(members[0])
    assert (await cluster.membership().join(member("new"), wants_lane=True)).lane == 0


async def test_members_that_join_at_once_get_different_lanes(cluster: ClusterUnderTest) -> None:
    members = [cluster.membership().join(member(f"m{i}"), wants_lane=True) for i in range(LANES)]
    assert {m.lane for m in await asyncio.gather(*members)} == {0, 1, 2}


async def test_without_a_free_lane_a_join_is_unavailable_and_leaves_nothing_behind(cluster: ClusterUnderTest) -> None:
    others = [(await joined(cluster, f"m{i}"))[0] for i in range(LANES)]
    late = cluster.membership()
    with pytest.raises(Unavailable, match=f"all {LANES} lanes"):
        await late.join(member("late"), wants_lane=True)
    await others[2].leave()
    assert (await late.join(member("late"), wants_lane=True)).lane == 2


async def test_a_member_that_wants_no_lane_has_none(cluster: ClusterUnderTest) -> None:
    membership = cluster.membership()
    assert await membership.join(member("api"), wants_lane=False) == replace(member("api"), lane=-1)
    assert (await cluster.membership().join(member("poller"), wants_lane=True)).lane == 0


async def test_a_name_belongs_to_one_process_at_a_time(cluster: ClusterUnderTest) -> None:
    first, _ = await joined(cluster, "a")
    second = cluster.membership()
    with pytest.raises(Unavailable):
        await second.join(member("a"), wants_lane=True)
    await first.leave()
    assert (await second.join(member("a"), wants_lane=True)).lane == 0


async def test_a_member_that_leaves_says_so_and_stays_one_until_it_has_left(cluster: ClusterUnderTest) -> None:
    first, _ = await joined(cluster, "a")
    await joined(cluster, "b")
    store = cluster.plan_store()
    await store.campaign()
    await first.announce_leaving()
    _, members, _ = await store.read()
    assert {m.member_id: m.leaving for m in members} == {"a": True, "b": False}
    assert not first.session_lost()
    await first.leave()
    with pytest.raises((OwnershipLost, Unavailable)):
        await first.announce_leaving()
    with pytest.raises(OwnershipLost):
        await cluster.membership().announce_leaving()


async def test_the_others_are_told_at_once_what_a_member_says_of_itself(cluster: ClusterUnderTest) -> None:
    first, _ = await joined(cluster, "a")
    second, _ = await joined(cluster, "b")

    def seen() -> tuple[str, bool]:
        [other] = [m for m in second.members() if m.member_id == "a"]
        return other.ailing, other.leaving

    for ailing in ("Kafka", "Kafka, Cassandra", ""):
        await first.announce_ailing(ailing)
        await until(lambda ailing=ailing: seen() == (ailing, False))
    await first.announce_ailing("Kafka")
    await first.announce_leaving()
    await until(lambda: seen() == ("Kafka", True))
    await first.announce_leaving(False)
    await until(lambda: seen() == ("Kafka", False))
    await first.leave()
    assert (await first.join(member("a"), wants_lane=True)).ailing == ""
    await until(lambda: seen() == ("", False))
    await first.announce_ailing("Cassandra")
    await until(lambda: seen() == ("Cassandra", False))
    with pytest.raises(OwnershipLost):
        await cluster.membership().announce_ailing("")


async def test_a_join_to_an_unreachable_service_is_unavailable(cluster: ClusterUnderTest) -> None:
    await cluster.cut()
    membership = cluster.membership()
    with pytest.raises(Unavailable):
        await membership.join(member("a"), wants_lane=True)
    assert not membership.session_lost()


async def test_a_leave_is_seen_by_all_and_frees_leases(cluster: ClusterUnderTest) -> None:
    first, leases = await joined(cluster, "a")
    second, other = await joined(cluster, "b")
    await leases.acquire(0)
    await until(lambda: second.owner_of(0) is not None)
    await first.leave()
    await until(lambda: [m.member_id for m in second.members()] == ["b"])
    assert second.owner_of(0) is None
    assert (await other.acquire(0)).predecessors == (0,)


async def test_a_member_that_left_may_join_again(cluster: ClusterUnderTest) -> None:
    membership, _ = await joined(cluster, "a")
    await membership.leave()
    await membership.join(member("a"), wants_lane=True)
    assert not membership.session_lost()
    assert (await membership.leases().acquire(0)).epoch == 1
    await membership.leave()
    await membership.leave()


# ---------------------------------------------------------------- what is seen


async def test_everybody_sees_everybody_as_he_announced_himself(cluster: ClusterUnderTest) -> None:
    full = Member("ü/1", ("api", "poller"), -1, "10.0.0.1:7401", "10.0.0.1:7400", 3, "zone-b")
    first, second = cluster.membership(), cluster.membership()
    one = await first.join(full, wants_lane=True)
    two = await second.join(member("b"), wants_lane=False)
    assert one == replace(full, lane=0)
    for membership in (first, second):
        await until(lambda m=membership: len(m.members()) == 2)
        assert {m.member_id: m for m in membership.members()} == {"ü/1": one, "b": two}


async def test_a_plan_is_seen_with_its_version(cluster: ClusterUnderTest) -> None:
    membership, _ = await joined(cluster, "a")
    assert membership.plan() == Plan(0, {})
    for assignment in ({0: 0, 1: 0}, {0: 1, 1: 0, 3: 2}):
        written = await plan(cluster, assignment)
        await until(lambda w=written: membership.plan() == w)
    late, _ = await joined(cluster, "b")
    assert late.plan() == written


async def test_owners_are_seen_as_they_change(cluster: ClusterUnderTest) -> None:
    _, a_leases = await joined(cluster, "a")
    b, b_leases = await joined(cluster, "b")
    api = cluster.membership()
    await api.join(member("api"), wants_lane=False)

    def owner(range_id: int) -> str:
        found = api.owner_of(range_id)
        return found.member_id if found else ""

    assert owner(0) == ""
    lease = await a_leases.acquire(0)
    await until(lambda: owner(0) == "a")
    await a_leases.release(lease)
    await until(lambda: owner(0) == "")
    await b_leases.acquire(0)
    await until(lambda: owner(0) == "b")
    assert owner(1) == ""
    await cluster.expire(b)
    await until(lambda: owner(0) == "")
    await a_leases.acquire(0)
    await until(lambda: owner(0) == "a")


async def test_a_former_owner_that_joined_again_is_no_owner(cluster: ClusterUnderTest) -> None:
    membership, leases = await joined(cluster, "a")
    await leases.acquire(0)
    await membership.leave()
    await membership.join(member("a"), wants_lane=True)
    assert membership.owner_of(0) is None


async def test_a_change_of_owner_is_seen_within_100_ms(cluster: ClusterUnderTest) -> None:
    _, leases = await joined(cluster, "a")
    api = cluster.membership()
    await api.join(member("api"), wants_lane=False)
    took = []
    for range_id in range(3):
        lease = await leases.acquire(range_id)
        start = time.perf_counter()
        await until(lambda r=range_id: api.owner_of(r) is not None)
        await leases.release(lease)
        await until(lambda r=range_id: api.owner_of(r) is None)
        took.append(time.perf_counter() - start)
    assert min(took) < 0.1, took


# ---------------------------------------------------------------- changed


async def test_a_change_wakes_all_who_wait(cluster: ClusterUnderTest) -> None:
    membership, leases = await joined(cluster, "a")
    await settled(membership)
    waits = [asyncio.ensure_future(membership.changed()) for _ in range(2)]
    await asyncio.sleep(0.05)
    assert not any(wait.done() for wait in waits)
    await leases.acquire(0)
    await asyncio.wait_for(asyncio.gather(*waits), DEADLINE_S)


async def test_what_changed_meanwhile_is_told_at_once(cluster: ClusterUnderTest) -> None:
    membership, leases = await joined(cluster, "a")
    await settled(membership)
    await leases.acquire(0)
    await until(lambda: membership.owner_of(0) is not None)
    await asyncio.wait_for(membership.changed(), DEADLINE_S)


async def test_of_two_callers_each_is_told_of_what_it_has_not_seen(cluster: ClusterUnderTest) -> None:
    membership, leases = await joined(cluster, "a")
    await settled(membership)
    seen = await membership.changed(-1)
    await leases.acquire(0)
    await until(lambda: membership.owner_of(0) is not None)
    await asyncio.wait_for(membership.changed(), DEADLINE_S)
    await asyncio.wait_for(membership.changed(seen), DEADLINE_S)
    await settled(membership)
    later = await asyncio.wait_for(membership.changed(-1), DEADLINE_S)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(membership.changed(later), 0.1)


@pytest.mark.parametrize("what", ["member", "plan", "expiry"])
async def test_members_plans_and_the_own_end_are_changes(cluster: ClusterUnderTest, what: str) -> None:
    membership, _ = await joined(cluster, "a")
    await settled(membership)
    waiting = asyncio.ensure_future(membership.changed())
    if what == "member":
        await joined(cluster, "b")
    elif what == "plan":
        await plan(cluster, {0: 0})
    else:
        await cluster.expire(membership)
    await asyncio.wait_for(waiting, DEADLINE_S)


async def settled(membership: object) -> None:
    """Until nothing has changed for a while."""
    while True:
        try:
            await asyncio.wait_for(membership.changed(), 0.1)  # type: ignore[attr-defined]
        except TimeoutError:
            return


# ---------------------------------------------------------------- the session's end, and the service's absence


async def test_an_ended_session_is_known_to_be_lost(cluster: ClusterUnderTest) -> None:
    membership, _ = await joined(cluster, "a")
    assert not membership.session_lost()
    await cluster.expire(membership)
    await until(membership.session_lost)
    await membership.join(member("a"), wants_lane=True)
    assert not membership.session_lost()


async def test_an_unreachable_service_ends_no_session_and_the_cache_answers(cluster: ClusterUnderTest) -> None:
    membership, leases = await joined(cluster, "a")
    written = await plan(cluster, {0: 0})
    lease = await leases.acquire(0)
    await until(lambda: membership.owner_of(0) is not None and membership.plan() == written)
    await cluster.cut()
    with pytest.raises(Unavailable):
        await leases.validate([lease])
    assert not membership.session_lost()
    assert [m.member_id for m in membership.members()] == ["a"]
    assert membership.plan() == written
    owner = membership.owner_of(0)
    assert owner is not None
    assert owner.member_id == "a"


async def test_what_changed_during_the_services_absence_is_seen_after_it(cluster: ClusterUnderTest) -> None:
    membership, _ = await joined(cluster, "a")
    gone, leases = await joined(cluster, "b")
    await leases.acquire(0)
    await until(lambda: len(membership.members()) == 2 and membership.owner_of(0) is not None)
    await cluster.cut()
    await cluster.expire(gone)
    assert len(membership.members()) == 2
    assert not membership.session_lost()
    await cluster.restore()
    await until(lambda: len(membership.members()) == 1)
    await until(gone.session_lost)
    assert membership.owner_of(0) is None
    assert not membership.session_lost()
