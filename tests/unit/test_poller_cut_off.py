"""A poller that can't reach Kafka or Cassandra leaves its ranges to those that can; where nobody can, nothing moves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
from poller_world import Pollers, some_pollers
from structlog.testing import capture_logs

from bucketsched.adapters.memory.journal import MemoryJournal, MemoryJournalWorld
from bucketsched.app.poller_role import STARTING, PollerRole
from bucketsched.app.reach import Reach, ask_checkpoints, ask_journal, contact_limits
from bucketsched.core.checkpoint import CheckpointCorrupt
from bucketsched.core.errors import OutcomeUnknown, Unavailable
from bucketsched.core.message import Message
from bucketsched.ports import HintAnswer, Plan

LIMITS = contact_limits(3)


class Servers:
    """Which of them a poller can reach."""

    def __init__(self) -> None:
        self.kafka = self.cassandra = self.transactions = True


def journal_of(servers: Servers) -> type[MemoryJournal]:
    """What a poller with these servers writes through."""

    class Journal(MemoryJournal):
        def __init__(self, world: MemoryJournalWorld, lane: int) -> None:
            super().__init__(world, lane)

        async def commit(self, messages: Sequence[Message], record: bytes) -> int:
            if not (servers.kafka and servers.transactions):
                raise OutcomeUnknown("no broker answers")
            return await super().commit(messages, record)

        async def init(self) -> None:
            if not (servers.kafka and servers.transactions):
                raise Unavailable("no broker answers")
            await super().init()

        async def end(self, lane: int) -> int:
            if not servers.kafka:
                raise Unavailable("no broker answers")
            return await super().end(lane)

    return Journal


class Cluster:
    """Pollers that ask their servers."""

    def __init__(self, pollers: Pollers) -> None:
        self.pollers, self.world = pollers, pollers.world
        self.plans: list[Plan] = []

    def start(self, name: str) -> tuple[PollerRole, Servers]:
        servers = Servers()
        kind = journal_of(servers)
        role, probe = self.pollers.make(name, kind), kind(self.world.journal, 0)

        async def cassandra(place: int) -> None:
            if not servers.cassandra:
                raise Unavailable("no replica answers")

        kafka = ask_journal(probe, self.world.constants.lanes, lambda: role.lane, LIMITS.doubt_s)
        reach = Reach({"Kafka": kafka, "Cassandra": cassandra}, self.world.clock, LIMITS)
        role.ailing, role.out_of_reach, role.cut_off = reach.ailing, reach.out_of_reach, reach.cut_off
        self.pollers.spawn(reach.run())
        return self.pollers.work(role), servers

    def ailing(self) -> dict[str, str]:
        return {member.member_id: member.ailing for member in self.pollers.memberships[0].members()}

    def active(self, *roles: PollerRole) -> list[int]:
        return [self.pollers.active(role) for role in roles]

    async def shared(self, *roles: PollerRole) -> None:
        """Until each of them has its half."""
        await self.world.until(lambda: self.active(*roles) == [2, 2])


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with some_pollers(ranges=4) as pollers:
        yield Cluster(pollers)


@pytest.mark.parametrize("what", ["kafka", "transactions", "cassandra"])
async def test_one_that_is_cut_off_leaves_its_ranges_and_gets_them_back(cluster: Cluster, what: str) -> None:
    world = cluster.world
    (one, servers), (two, _) = cluster.start("one"), cluster.start("two")
    await cluster.shared(one, two)
    rows = [world.row(1_000 + 100 * n, n % 4) for n in range(40)]
    await world.create(*rows)
    assert {answer for role in (one, two) for answer in await role.hint(rows)} == {
        HintAnswer.TAKEN,
        HintAnswer.NOT_OWNER,
    }
    setattr(servers, what, False)
    began_ms = world.clock.now_ms()
    await world.until(lambda: cluster.active(one, two) == [0, 4])
    assert world.clock.now_ms() - began_ms < 7_000
    await world.until(lambda: one.lane is None)
    await world.until(lambda: len(world.dispatched()) == len(rows))
    assert cluster.ailing()["two"] == ""
    setattr(servers, what, True)
    back_ms = world.clock.now_ms()
    await cluster.shared(one, two)
    assert world.clock.now_ms() - back_ms > 14_000, "not before it has answered for a while"
    world.check()


async def test_what_is_away_for_all_moves_nothing(cluster: Cluster) -> None:
    """Whoever finds it out first, and whoever reaches it again first."""
    world = cluster.world
    pairs = [cluster.start(name) for name in ("one", "two")]
    roles = [role for role, _ in pairs]
    await cluster.shared(*roles)
    plan, lanes = world.leases.plan, [role.lane for role in roles]
    rows = [world.row(500 + 100 * n, n % 4) for n in range(100)]
    await world.create(*rows)
    for _, servers in pairs:
        servers.kafka = False
        await world.pass_ms(700)
    await world.pass_ms(20_000)
    assert all("Kafka" in ailing for ailing in cluster.ailing().values())
    for _, servers in pairs:
        servers.kafka = True
        await world.pass_ms(10_000)
    await world.until(lambda: not any(cluster.ailing().values()))
    await world.pass_ms(2_000)
    assert (world.leases.plan, [role.lane for role in roles]) == (plan, lanes)
    assert len(world.dispatched()) == len(rows)
    world.check()


async def test_one_that_is_alone_goes_on_and_says_so(cluster: Cluster) -> None:
    role, servers = cluster.start("one")
    await cluster.world.until(lambda: cluster.active(role) == [4])
    lane = role.lane
    with capture_logs() as logs:
        servers.cassandra = False
        await cluster.world.pass_ms(10_000)
    assert (role.lane, cluster.active(role)) == (lane, [4])
    said = [log for log in logs if log["event"] == "there is nobody to give the ranges to"]
    assert "no answer from Cassandra" in said[0]["reason"]


async def test_where_servers_falter_for_all_whose_sessions_are_gone_the_ranges_find_owners(cluster: Cluster) -> None:
    """Silences of more than a second, again and again: no contact becomes steady, and all could work in between."""
    world = cluster.world
    pairs = [cluster.start(name) for name in ("one", "two")]
    roles = [role for role, _ in pairs]
    await cluster.shared(*roles)
    rows = [world.row(20_000 + 100 * n, n % 4) for n in range(40)]
    await world.create(*rows)
    for _, servers in pairs:
        servers.cassandra = False
    await world.pass_ms(4_000)
    for membership in cluster.pollers.memberships:
        membership.expire()
    for _ in range(8):
        for cassandra, ms in ((True, 4_000), (False, 1_500)):
            for _, servers in pairs:
                servers.cassandra = cassandra
            await world.pass_ms(ms)
    assert all("Cassandra" in ailing for ailing in cluster.ailing().values())
    assert sum(cluster.active(*roles)) == 4
    assert len(world.dispatched()) == len(rows)
    world.check()


async def test_a_short_silence_moves_nothing(cluster: Cluster) -> None:
    (one, servers), (two, _) = cluster.start("one"), cluster.start("two")
    await cluster.shared(one, two)
    servers.kafka = False
    await cluster.world.pass_ms(2_500)
    servers.kafka = True
    await cluster.world.pass_ms(5_000)
    assert cluster.active(one, two) == [2, 2]


async def test_nobody_takes_a_lane_before_it_has_reached_its_servers(cluster: Cluster) -> None:
    one, _ = cluster.start("one")
    await cluster.world.until(lambda: cluster.active(one) == [4])
    two, servers = cluster.start("two")
    servers.cassandra = False
    await cluster.world.pass_ms(5_000)
    assert two.lane is None
    lanes = {member.member_id: member.lane for member in cluster.pollers.memberships[0].members()}
    assert lanes == {"one": 0, "two": -1}
    servers.cassandra = True
    await cluster.shared(one, two)


async def test_a_lane_that_can_not_begin_is_given_nothing(cluster: Cluster) -> None:
    """It reaches Kafka, and its transactions don't get through."""
    one, _ = cluster.start("one")
    await cluster.world.until(lambda: cluster.active(one) == [4])
    _, servers = cluster.start("two")
    servers.transactions = False
    told = set()
    for _ in range(100):
        await cluster.world.pass_ms(50)
        told.add(cluster.ailing().get("two"))
        assert set(cluster.world.leases.plan.assignment.values()) == {0}
    assert STARTING in told


async def test_without_a_coordinator_it_stays_and_takes_its_word_back(cluster: Cluster) -> None:
    (one, servers), (two, _) = cluster.start("one"), cluster.start("two")
    await cluster.shared(one, two)
    cluster.pollers.tasks[0].cancel()
    servers.kafka = False
    await cluster.world.pass_ms(9_000)
    assert one.lane is not None
    servers.kafka = True
    await cluster.world.pass_ms(1_000)
    assert not any(member.leaving for member in cluster.pollers.memberships[0].members())
    assert cluster.active(one, two) == [2, 2]


async def test_where_leaving_can_not_be_told_it_stays(cluster: Cluster) -> None:
    (one, servers), (two, _) = cluster.start("one"), cluster.start("two")
    await cluster.shared(one, two)
    cluster.world.leases.cut()
    servers.kafka = False
    await cluster.world.pass_ms(6_000)
    assert one.lane is not None
    servers.kafka = True
    cluster.world.leases.restore()
    await cluster.world.pass_ms(1_000)
    assert cluster.active(one, two) == [2, 2]


# ---------------------------------------------------------------- questions


async def test_another_place_is_asked_where_one_does_not_answer(cluster: Cluster) -> None:
    asked: list[int] = []

    async def question(place: int) -> None:
        asked.append(place)
        if place < 2:
            raise Unavailable("lost")

    reach = Reach({"Kafka": question}, cluster.world.clock, LIMITS)
    assert await reach.ask("Kafka")
    assert await reach.ask("Kafka")
    assert asked == [0, 1, 2, 2]
    assert reach.ailing() == ""


async def test_a_checkpoint_that_can_not_be_read_is_an_answer() -> None:
    class Broken:
        async def load(self, range_id: int) -> None:
            raise CheckpointCorrupt(range_id, 1, "rubbish")

    await ask_checkpoints(Broken(), 4)(5)  # type: ignore[arg-type]
