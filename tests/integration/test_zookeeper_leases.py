"""Leases on a real ZooKeeper: killed owners, lost answers, silent servers."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID, uuid4

import pytest
from kazoo.client import KazooClient
from pydantic import SecretStr
from tools.stack import Addresses

from bucketsched.adapters.zookeeper.leases import ZooKeeperLeases
from bucketsched.adapters.zookeeper.membership import ZooKeeperMembership
from bucketsched.adapters.zookeeper.plan_store import ZooKeeperPlanStore
from bucketsched.adapters.zookeeper.records import RangeRecord
from bucketsched.adapters.zookeeper.session import InDoubt, ZooKeeperSession, create
from bucketsched.adapters.zookeeper.tree import RangeNode, Tree, create_tree, read_range
from bucketsched.config import ZooKeeperSettings
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.errors import OwnershipLost, Unavailable
from bucketsched.ports import Lease, LeaseHeld, Member, Plan
from zookeeper_proxy import ZooKeeperProxy, zookeeper_proxy

pytestmark = pytest.mark.stack

DEADLINE_S = 20.0
SESSION_MS = 1_500
T = TypeVar("T")

OWNER = """
import asyncio, sys
from uuid import UUID
from bucketsched.adapters.zookeeper.membership import ZooKeeperMembership
from bucketsched.config import ZooKeeperSettings
from bucketsched.core.cluster import ClusterConstants
from bucketsched.ports import Member

async def main(hosts, root, cluster, ranges, session_ms):
    settings = ZooKeeperSettings(hosts=hosts, root=root, session_timeout_ms=int(session_ms))
    constants = ClusterConstants(UUID(cluster), shards=int(ranges), ranges=int(ranges), lanes=4)
    membership = ZooKeeperMembership(settings, constants)
    await membership.join(Member("child", ("poller",)), wants_lane=True)
    for range_id in range(int(ranges)):
        await membership.leases().acquire(range_id)
    print("owner", flush=True)
    await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""


@dataclass
class Cluster:
    """A tree of its own on the real server. Members that are given the proxy's settings reach it through that."""

    constants: ClusterConstants
    direct: ZooKeeperSettings
    proxied: ZooKeeperSettings
    proxy: ZooKeeperProxy
    opened: list[ZooKeeperMembership]

    async def join(self, name: str, settings: ZooKeeperSettings) -> tuple[ZooKeeperMembership, ZooKeeperLeases]:
        membership = ZooKeeperMembership(settings, self.constants)
        self.opened.append(membership)
        await membership.join(Member(name, ("poller",)), wants_lane=True)
        return membership, membership.leases()


@pytest.fixture
async def cluster(stack: Addresses, zk_root: str) -> AsyncIterator[Cluster]:
    constants = ClusterConstants(uuid4(), shards=8, ranges=8, lanes=4)
    async with zookeeper_proxy(stack.zookeeper) as (proxy, address):
        direct = ZooKeeperSettings(hosts=stack.zookeeper, root=zk_root, session_timeout_ms=SESSION_MS)
        made = Cluster(constants, direct, direct.model_copy(update={"hosts": address}), proxy, [])
        await create_tree(direct, constants, {})
        try:
            yield made
        finally:
            proxy.go_on()
            proxy.restore()
            await asyncio.gather(*(membership.leave() for membership in made.opened))
            await asyncio.to_thread(remove, stack.zookeeper, zk_root)


def remove(hosts: str, root: str) -> None:
    client = KazooClient(hosts)
    client.start()
    client.delete(root, recursive=True)
    client.stop()
    client.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - what it waits for is told by no event
            await asyncio.sleep(0.01)


async def persistently(call: Callable[[], Awaitable[T]]) -> T:
    """The call's answer once nobody holds the lease and the server can be reached."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await call()
            except (LeaseHeld, Unavailable):
                await asyncio.sleep(0.02)


# ---------------------------------------------------------------- a process dies


@pytest.mark.alone
async def test_the_ranges_of_a_killed_process_are_taken_after_the_session_time_out(cluster: Cluster) -> None:
    membership, leases = await cluster.join("survivor", cluster.direct)
    arguments = [
        cluster.direct.hosts,
        cluster.direct.root,
        str(cluster.constants.cluster_id),
        str(cluster.constants.ranges),
        str(SESSION_MS),
    ]
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, *arguments, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        async with asyncio.timeout(DEADLINE_S):
            while await child.stdout.readline() != b"owner\n":
                assert not child.stdout.at_eof(), "it could not become the owner"
        await until(lambda: all(membership.owner_of(r) is not None for r in range(8)))
        with pytest.raises(LeaseHeld):
            await leases.acquire(0)
    finally:
        child.kill()
        await child.wait()
    killed = time.monotonic()
    taken = await asyncio.gather(*(persistently(lambda r=r: leases.acquire(r)) for r in range(8)))  # type: ignore[misc]
    assert time.monotonic() - killed < SESSION_MS / 1000 + 1.0
    assert taken == [Lease(r, 2, (1,)) for r in range(8)]
    await until(lambda: {m.member_id for m in membership.members()} == {"survivor"})


# ---------------------------------------------------------------- answers are lost


async def test_an_acquisition_whose_answer_is_lost_is_found_to_have_succeeded(cluster: Cluster) -> None:
    _, leases = await cluster.join("a", cluster.proxied)
    cluster.proxy.lose_answers(1)
    lease = await leases.acquire(0)
    assert cluster.proxy.lost_answers == 1
    assert lease == Lease(0, 1, ()), "not a second acquisition"
    assert await leases.validate([lease]) == {0}


async def test_changes_whose_answers_are_lost_succeed_once(cluster: Cluster) -> None:
    _, leases = await cluster.join("a", cluster.proxied)
    _, other = await cluster.join("b", cluster.direct)
    first, second = await leases.acquire(0), await leases.acquire(1)
    for operation in (
        lambda: leases.clear_predecessors(first),
        lambda: leases.validate([first, second]),
        lambda: leases.release(first),
    ):
        cluster.proxy.lose_answers(1)
        await operation()
    assert cluster.proxy.lost_answers == 3
    assert await other.acquire(0) == Lease(0, 2, ())
    assert await leases.validate([first, second]) == {1}


async def test_a_plan_whose_answer_is_lost_is_written_once(cluster: Cluster) -> None:
    store = ZooKeeperPlanStore(cluster.proxied, cluster.constants)
    try:
        await store.campaign()
        cluster.proxy.lose_answers(1)
        assert await store.write(Plan(0, {0: 3})) == Plan(1, {0: 3})
        assert cluster.proxy.lost_answers == 1
        assert (await store.read())[0] == Plan(1, {0: 3})
    finally:
        await store.resign()


async def test_a_coordinator_whose_candidacy_was_removed_is_refused(cluster: Cluster) -> None:
    """Its session lives, and the plan's version is the one that it read."""
    store = ZooKeeperPlanStore(cluster.direct, cluster.constants)
    try:
        await store.campaign()
        await asyncio.to_thread(remove, cluster.direct.hosts, store._node)
        with pytest.raises(OwnershipLost):
            await store.write(Plan(0, {0: 3}))
        await asyncio.wait_for(store.campaign(), DEADLINE_S)
        assert await store.write(Plan(0, {0: 3})) == Plan(1, {0: 3})
    finally:
        await store.resign()


async def test_a_lease_that_nobody_waits_for_any_more_keeps_nobody_out(cluster: Cluster) -> None:
    """The call was cancelled while its request was on its way; it is carried out all the same."""
    _, leases = await cluster.join("a", cluster.proxied)
    _, other = await cluster.join("b", cluster.direct)
    taking = asyncio.ensure_future(leases.acquire(0))
    while cluster.proxy.multis_seen < 2:  # noqa: ASYNC110 - the first is the join
        await asyncio.sleep(0)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    lease = await persistently(lambda: other.acquire(0))
    assert lease == Lease(0, 2, (0,)), "it may have been used, so its lane is to be fenced"


# ---------------------------------------------------------------- what was seen is out of date


async def test_a_guess_that_is_wrong_costs_a_look_and_nobody_his_lease(cluster: Cluster) -> None:
    """Asked for in one moment, so in one multi: one of them is refused, and that is no reason to refuse the others."""
    _, holder = await cluster.join("a", cluster.direct)
    membership, leases = await cluster.join("b", cluster.direct)
    await until(lambda: membership.last_seen(0) is not None)
    never = RangeNode(RangeRecord(), 0, leased=False)
    leases._last_seen = lambda range_id: never
    held = await holder.acquire(0)
    await holder.release(await holder.acquire(1))
    results = await asyncio.gather(*(leases.acquire(r) for r in range(4)), return_exceptions=True)
    assert isinstance(results[0], LeaseHeld)
    assert results[1:] == [Lease(1, 2, ()), Lease(2, 1, ()), Lease(3, 1, ())]
    assert await holder.validate([held]) == {0}


async def test_a_lease_that_is_gone_is_not_believed_to_stand_because_it_was_seen(cluster: Cluster) -> None:
    membership, leases = await cluster.join("a", cluster.direct)
    lease = await leases.acquire(0)
    seen = RangeNode((await _read(cluster, 0)).record, 1, leased=True)
    leases._last_seen = lambda range_id: seen
    await asyncio.to_thread(remove, cluster.direct.hosts, Tree.of(cluster.direct, cluster.constants).lease(0))
    for change in (leases.clear_predecessors, leases.release):
        with pytest.raises(OwnershipLost):
            await change(lease)
    assert not membership.session_lost()


async def test_a_lease_that_seems_to_be_gone_is_looked_at_before_it_is_given_up(cluster: Cluster) -> None:
    _, leases = await cluster.join("a", cluster.direct)
    lease = await leases.acquire(0)
    seen = RangeNode((await _read(cluster, 0)).record, 1, leased=False)
    leases._last_seen = lambda range_id: seen
    await leases.clear_predecessors(lease)
    assert await leases.validate([lease]) == {0}


async def _read(cluster: Cluster, range_id: int) -> RangeNode:
    session = ZooKeeperSession(cluster.direct)
    await session.open()
    try:
        return await read_range(session, Tree.of(cluster.direct, cluster.constants), range_id)
    finally:
        await session.close()


@pytest.mark.parametrize("known", ["everything", "nothing", "what was before"])
async def test_an_eviction_drops_every_lease_whatever_was_known(cluster: Cluster, known: str) -> None:
    dead, a = await cluster.join("dead", cluster.direct)
    watcher, b = await cluster.join("watcher", cluster.direct)
    await a.acquire(0)
    await until(lambda: (m := watcher.owner_of(0)) is not None and m.member_id == "dead")
    before = {r: watcher.last_seen(r) for r in range(8)}
    await a.acquire(1)
    await b.acquire(2)
    await until(lambda: watcher.owner_of(1) is not None)
    sources = {"everything": watcher.last_seen, "nothing": lambda r: None, "what was before": before.get}
    store = ZooKeeperPlanStore(cluster.direct, cluster.constants, "watcher", sources[known])
    try:
        await store.campaign()
        assert await store.evict(next(m for m in watcher.members() if m.member_id == "dead"))
        _, members, ranges = await store.read()
        assert [m.member_id for m in members] == ["watcher"]
        assert [r.range_id for r in ranges if r.held] == [2]
        assert [await b.acquire(r) for r in (0, 1)] == [Lease(0, 2, (0,)), Lease(1, 2, (0,))]
        await until(dead.session_lost)
    finally:
        await store.resign()


# ---------------------------------------------------------------- the server is silent


async def test_a_process_that_is_cut_off_notices_afterwards_that_it_lost_all(cluster: Cluster) -> None:
    zombie, leases = await cluster.join("a", cluster.proxied)
    _, other = await cluster.join("b", cluster.direct)
    old = await leases.acquire(0)
    cluster.proxy.hold()
    lease = await persistently(lambda: other.acquire(0))
    assert lease == Lease(0, 2, (0,))
    assert not zombie.session_lost(), "nobody told it: it goes on"
    started = time.monotonic()
    with pytest.raises(Unavailable):
        await leases.validate([old])
    assert time.monotonic() - started < 8, "calls end in bounded time"
    cluster.proxy.go_on()
    with pytest.raises(OwnershipLost):
        await persistently(lambda: leases.validate([old]))
    assert zombie.session_lost()
    await zombie.join(Member("a", ("poller",)), wants_lane=True)
    assert await other.validate([lease]) == {0}


async def test_an_interruption_shorter_than_the_session_changes_nothing(cluster: Cluster) -> None:
    membership, leases = await cluster.join("a", cluster.proxied)
    _, other = await cluster.join("b", cluster.direct)
    lease = await leases.acquire(0)
    cluster.proxy.cut()
    with pytest.raises(Unavailable):
        await leases.acquire(1)
    cluster.proxy.restore()
    assert await persistently(lambda: leases.validate([lease])) == {0}
    assert not membership.session_lost()
    await other.acquire(3)
    await until(lambda: (m := membership.owner_of(3)) is not None and m.member_id == "b")


async def test_a_request_made_while_unreachable_is_not_sent_later(cluster: Cluster) -> None:
    session = ZooKeeperSession(cluster.proxied)
    await session.open()
    try:
        cluster.proxy.cut()
        await until(lambda: not session.connected)
        path = f"{Tree.of(cluster.direct, cluster.constants).top}/late"
        with pytest.raises(Unavailable):
            await session.multi(create(path, b"", ephemeral=False))
        cluster.proxy.restore()
        await persistently(session.reconnected)
        assert not await session.exists(path)
    finally:
        await session.close()


async def test_a_session_never_becomes_another(cluster: Cluster) -> None:
    """kazoo goes on with a new session after the old one expired; nothing may be done in it."""
    session = ZooKeeperSession(cluster.direct)
    await session.open()
    await asyncio.to_thread(take_session_away, cluster.direct.hosts, session._client.client_id)
    await until(lambda: session.over)
    path = f"{Tree.of(cluster.direct, cluster.constants).top}/late"
    with pytest.raises(OwnershipLost):
        await session.multi(create(path, b"", ephemeral=False))
    with pytest.raises(OwnershipLost):
        await session.reconnected()
    await session.close()


def take_session_away(hosts: str, client_id: tuple[int, bytes]) -> None:
    other = KazooClient(hosts, client_id=client_id)
    other.start()
    other.stop()
    other.close()


async def test_a_session_that_is_not_connected_tells_a_stall_from_being_forgotten(cluster: Cluster) -> None:
    membership, _ = await cluster.join("a", cluster.direct)
    session = membership._session
    assert session is not None
    assert session.vital_path
    assert not await session._forgotten()
    absent = ZooKeeperSession(cluster.direct.model_copy(update={"hosts": "127.0.0.1:1"}))
    absent.vital_path = session.vital_path
    assert not await absent._forgotten(), "nobody answers"
    other = ZooKeeperSession(cluster.direct)
    other.vital_path = session.vital_path
    assert await other._forgotten(), "the node is another session's"
    await membership.leave()
    assert await other._forgotten(), "the node is gone"
    await asyncio.gather(absent.close(), other.close())


async def test_an_unanswered_multi_is_in_doubt(cluster: Cluster) -> None:
    session = ZooKeeperSession(cluster.proxied)
    await session.open()
    try:
        cluster.proxy.lose_answers(1)
        path = f"{Tree.of(cluster.direct, cluster.constants).top}/lost"
        with pytest.raises(InDoubt):
            await session.multi(create(path, b"", ephemeral=True))
        await session.reconnected()
        assert await session.exists(path)
    finally:
        await session.close()


# ---------------------------------------------------------------- slots and trees


async def test_a_slot_that_was_taken_away_ends_the_session(cluster: Cluster) -> None:
    """As an operator may do by hand: whoever held it must let go of everything."""
    membership, leases = await cluster.join("a", cluster.direct)
    lease = await leases.acquire(0)
    tree = Tree.of(cluster.direct, cluster.constants)
    await asyncio.to_thread(remove, cluster.direct.hosts, tree.holder(0))
    await until(membership.session_lost)
    with pytest.raises(OwnershipLost):
        await leases.validate([lease])
    _, other = await cluster.join("b", cluster.direct)
    assert await persistently(lambda: other.acquire(0)) == Lease(0, 2, (0,))


async def test_a_slot_that_another_took_meanwhile_does_not_pass_for_ours(cluster: Cluster) -> None:
    """Without waiting for the watch: the version of the slot tells."""
    _, leases = await cluster.join("a", cluster.direct)
    lease = await leases.acquire(0)
    slot = leases._slot
    leases._slot = type(slot)(slot.lane, slot.version - 1)
    with pytest.raises(OwnershipLost):
        await leases.validate([lease])


async def test_many_processes_may_make_the_tree_at_once(stack: Addresses, zk_root: str) -> None:
    constants = ClusterConstants(UUID(int=7), shards=256, ranges=64, lanes=32)
    settings = ZooKeeperSettings(hosts=stack.zookeeper, root=zk_root)
    membership = ZooKeeperMembership(settings, constants)
    try:
        await asyncio.gather(*(create_tree(settings, constants, {}) for _ in range(4)))
        assert (await membership.join(Member("a", ("poller",)), wants_lane=True)).lane == 0
        leases = [await membership.leases().acquire(r) for r in range(64)]
        await create_tree(settings, constants, {})
        assert await membership.leases().validate(leases) == set(range(64))
    finally:
        await membership.leave()
        await asyncio.to_thread(remove, stack.zookeeper, zk_root)


async def test_without_a_tree_nobody_joins(stack: Addresses, zk_root: str) -> None:
    settings = ZooKeeperSettings(hosts=stack.zookeeper, root=zk_root)
    constants = ClusterConstants(uuid4(), shards=8, ranges=8, lanes=4)
    for wants_lane in (True, False):
        with pytest.raises(Unavailable, match="admin migrate"):
            await ZooKeeperMembership(settings, constants).join(Member("a", ("api",)), wants_lane)
    store = ZooKeeperPlanStore(settings, constants)
    with pytest.raises(Unavailable, match="admin migrate"):
        await store.campaign()
    with pytest.raises(Unavailable, match="admin migrate"):
        await store.read()
    await store.resign()


async def test_a_cluster_with_a_password_is_closed_to_others(stack: Addresses, zk_root: str) -> None:
    constants = ClusterConstants(uuid4(), shards=8, ranges=8, lanes=4)
    stranger = ZooKeeperSettings(hosts=stack.zookeeper, root=zk_root)
    settings = stranger.model_copy(update={"auth": SecretStr("someone:secret")})
    await create_tree(settings, constants, {})
    membership = ZooKeeperMembership(settings, constants)
    await membership.join(Member("a", ("poller",)), wants_lane=True)
    try:
        assert await membership.leases().acquire(0) == Lease(0, 1, ())
        with pytest.raises(Unavailable, match="NoAuth"):
            await ZooKeeperMembership(stranger, constants).join(Member("b", ("poller",)), wants_lane=True)
    finally:
        await membership.leave()
