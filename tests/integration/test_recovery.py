"""A journal that was trimmed, cut off, or made anew, on real servers."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Callable

import pytest
from kafka_world import KafkaWorld
from tests.nodes import COMMAND, Cluster, Process, until, until_state
from tests.workload import Workload, workload
from tools.stack import Addresses

from bucketsched import TaskState, config
from bucketsched.adapters.kafka.journal import KafkaJournal
from bucketsched.adapters.memory.leases import MemoryLeaseWorld, MemoryMembership
from bucketsched.adapters.memory.store import MemoryCheckpointStore, MemoryTaskStore
from bucketsched.adapters.system_clock import SystemClock
from bucketsched.coordinator.trimmer import JournalTrimmer
from bucketsched.core.checkpoint import Checkpoint, record_hash
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.errors import Unavailable
from bucketsched.core.journal_record import JournalRecord, Section, encode
from bucketsched.core.task import FactKind, Mark
from bucketsched.poller.figures import LaneCounters
from bucketsched.poller.owned_range import OwnedRange, Phase
from bucketsched.poller.takeover import JournalMismatch, Takeover
from bucketsched.poller.takings import Takings
from bucketsched.ports import Member

pytestmark = pytest.mark.stack
CLOCK = SystemClock(0)


@pytest.fixture
async def world(stack: Addresses, topic_prefix: str) -> AsyncIterator[KafkaWorld]:
    opened = KafkaWorld(config.load(str(stack.settings)).kafka, topic_prefix)
    await opened.start()
    yield opened
    await opened.close()


# ---------------------------------------------------------------- a taker of a trimmed partition


class Taking:
    """Lane 1 takes range 0, whose checkpoint points into lane 0's partition."""

    def __init__(self, world: KafkaWorld, journal: KafkaJournal) -> None:
        self.world, self.journal = world, journal
        self.checkpoints, self.values = MemoryCheckpointStore(), dict[int, bytes]()
        self._sequence = 0

    async def prepare(self, records: int) -> list[int]:
        """Records of lane 0; their offsets."""
        writer = await self.world.started(0)
        offsets = []
        for number in range(records):
            value = encode(JournalRecord(0, number.to_bytes(16, "big"), CLOCK.now_ms(), [Section(0, 1)]))
            offsets.append(await writer.commit([], value))
            self.values[offsets[-1]] = value
        leases = MemoryLeaseWorld(ClusterConstants(self.world.constants.cluster_id, lanes=3))
        membership = MemoryMembership(leases)
        await membership.join(Member("taker", ("poller",)), wants_lane=True)
        self.leases = membership.leases()
        return offsets

    async def point(self, offset: int) -> None:
        self._sequence += 1
        value_hash = record_hash(self.values[offset])
        checkpoint = Checkpoint(0, self._sequence, self.journal.name, 0, offset, value_hash, 0)
        await self.checkpoints.save(0, checkpoint)

    async def recover(self) -> OwnedRange:
        lease = await self.leases.acquire(0)
        self.owned = OwnedRange(lease, [0], 100)
        self.takeover = Takeover(
            self.journal,
            self.leases,
            MemoryTaskStore(),
            self.checkpoints,
            CLOCK,
            self.journal.init,
            lambda: (0, b""),
        )
        await self.recover_again()
        return self.owned

    async def recover_again(self) -> None:
        await self.takeover.recover(self.owned, Takings(CLOCK, LaneCounters()).begin(0))


@pytest.fixture
async def taking(world: KafkaWorld) -> Taking:
    return Taking(world, await world.started(1))


async def test_a_replay_begins_at_a_record_that_trimming_kept(taking: Taking) -> None:
    offsets = await taking.prepare(6)
    await taking.point(offsets[3])
    await taking.journal.trim(0, offsets[3])
    assert (await taking.recover()).phase is Phase.ACTIVE


async def test_a_replay_whose_start_was_trimmed_while_the_checkpoint_moved_on_begins_again(taking: Taking) -> None:
    offsets = await taking.prepare(6)
    await taking.point(offsets[1])
    load = taking.checkpoints.load

    async def overtaken(range_id: int) -> Checkpoint | None:
        """The owner moves on, and the trimmer passes, behind the taker's back."""
        found = await load(range_id)
        taking.checkpoints.load = load  # type: ignore[method-assign]
        await taking.point(offsets[4])
        await taking.journal.trim(0, offsets[4])
        return found

    taking.checkpoints.load = overtaken  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="moved on"):
        await taking.recover()
    assert taking.owned.phase is Phase.RECOVERING
    await taking.recover_again()
    assert taking.owned.phase is Phase.ACTIVE


async def test_a_replay_whose_start_is_gone_although_nobody_moved_on_is_an_alarm(taking: Taking) -> None:
    offsets = await taking.prepare(6)
    await taking.point(offsets[1])
    await taking.journal.trim(0, offsets[2])
    with pytest.raises(JournalMismatch):
        await taking.recover()


# ---------------------------------------------------------------- clusters


@pytest.fixture(scope="module")
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    """An api and a coordinator; the pollers come and go."""
    cluster = make_cluster(shards=8, ranges=4, horizon_ms=60_000, grace_ms=2_000)
    cluster.start("rest", "api,coordinator", zookeeper__session_timeout_ms=10_000)
    return cluster


@pytest.fixture
async def work(cluster: Cluster) -> AsyncIterator[Workload]:
    async with workload(cluster, await cluster.processes[0].ready()) as work:
        yield work


@pytest.fixture
async def start(cluster: Cluster) -> AsyncIterator[Callable[..., Process]]:
    """Starts processes that end with the test."""
    before = len(cluster.processes)
    yield cluster.start
    for process in cluster.processes[before:]:
        process.end()


@pytest.fixture
async def start_in() -> AsyncIterator[Callable[..., Process]]:
    """Starts processes of a given cluster that end with the test."""
    started: list[Process] = []

    def start(cluster: Cluster, name: str, roles: str, **settings: object) -> Process:
        started.append(cluster.start(name, roles, **settings))
        return started[-1]

    yield start
    for process in started:
        process.end()


async def test_a_takeover_from_a_trimmed_journal(
    cluster: Cluster, work: Workload, start: Callable[..., Process]
) -> None:
    one = start("one", "poller", zookeeper__session_timeout_ms=10_000)
    await cluster.settled(one)
    journal = KafkaJournal(cluster.settings.kafka, cluster.constants, 0)
    tasks = await work.create([0.2 + 0.05 * i for i in range(60)])
    async with cluster.checkpoints() as checkpoints:
        trimmer = JournalTrimmer(journal, checkpoints, cluster.constants, CLOCK, 500)
        await work.recorder.until_all(tasks)
        before = await journal.start(0)
        deadline = CLOCK.monotonic() + 20
        while await journal.start(0) == before:  # as soon as the checkpoints are far enough
            assert CLOCK.monotonic() < deadline
            tasks += await work.create([0.1])
            await asyncio.sleep(0.1)
            await trimmer.trim_once()
        later = await work.create([2.0] * 30)
        await one.kill()
        await trimmer.trim_once()
    await journal.close()
    two = start("two", "poller", zookeeper__session_timeout_ms=10_000)
    await cluster.settled(two)
    await work.recorder.exactly(tasks + later)
    assert not two.events("range stands still: its journal does not match its checkpoint")
    await two.kill()


def admin(cluster: Cluster, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `bucketsched admin`."""
    command = [COMMAND, "admin", *arguments, "--config", str(cluster.config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


async def test_a_range_whose_journal_was_cut_off_goes_on_once_the_loss_is_accepted(
    cluster: Cluster, work: Workload, start: Callable[..., Process]
) -> None:
    one = start("one", "poller", zookeeper__session_timeout_ms=10_000)
    await cluster.settled(one)
    done = await work.create([0.2] * 40)
    for task in done:
        await until_state(work.client, task, TaskState.DISPATCHED)
    ahead = await work.create([2.0] * 20)
    await one.kill()
    journal = KafkaJournal(cluster.settings.kafka, cluster.constants, 0)
    for lane in range(cluster.constants.lanes):
        await journal.trim(lane, await journal.end(lane))
    await journal.close()
    two = start("two", "poller", zookeeper__session_timeout_ms=10_000)
    standing = "range stands still: its journal does not match its checkpoint"
    await until(lambda: len(two.events(standing)) == cluster.constants.ranges, "all ranges raised the alarm")
    ranges = [str(range_id) for range_id in range(cluster.constants.ranges)]
    quick = ["--set", "poller.checkpoint_interval_ms=500"]
    code, out, err = await asyncio.to_thread(
        admin, cluster, "range", "accept-loss", *ranges, *quick, "--output", "json"
    )
    assert code == 0, err
    found = json.loads(out)["ranges"]
    assert [row["accepted"] for row in found] == [False] * len(ranges)
    assert "Nothing was changed" in err
    assert cluster.ranges_of(two) == set()
    code, out, err = await asyncio.to_thread(admin, cluster, "range", "accept-loss", *ranges, *quick, "--yes")
    assert code == 0, err
    await cluster.settled(two)
    await work.recorder.exactly(done + ahead)
    code, _, err = await asyncio.to_thread(admin, cluster, "range", "accept-loss", "0", *quick)
    assert code == 4, err
    assert "nothing is lost" in err or "moved on" in err


async def test_fsck_names_what_differs_and_repairs_what_it_can(
    make_cluster: Callable[..., Cluster], start_in: Callable[..., Process]
) -> None:
    """A row that nobody dispatched, and a fact that no record backs, in a bucket that is closed."""
    cluster = make_cluster(shards=8, ranges=4, horizon_ms=60_000, grace_ms=2_000)
    await cluster.backdate(6)
    await born(cluster, CLOCK.now_ms() - 600_000)
    node = start_in(cluster, "node", "api,coordinator,poller", zookeeper__session_timeout_ms=10_000)
    async with workload(cluster, await node.ready()) as work, cluster.rows() as rows:
        due_ms = CLOCK.now_ms() - 240_000
        sound = await rows.insert([rows.made(due_ms + i, work.queue) for i in range(20)])
        await cluster.closed(due_ms // 60_000)
        await work.recorder.until_all(sound)
        code, out, err = await asyncio.to_thread(admin, cluster, "fsck", "--output", "json")
        assert (code, json.loads(out)["differences"]) == (0, []), err
        assert json.loads(out)["rows"] == 20
        lost, ghost = rows.made(due_ms + 50, work.queue, shard=1), rows.made(due_ms + 60, work.queue, shard=7)
        created = await rows.insert([lost, ghost])
        await rows.store.mark([Mark(ghost.ref, FactKind.DISPATCHED, due_ms + 60)])
        for repair, kinds in ((), ["lost", "not-journaled"]), (("--repair",), ["lost", "not-journaled"]):
            code, out, err = await asyncio.to_thread(admin, cluster, "fsck", *repair, "--output", "json")
            found = sorted(json.loads(out)["differences"], key=lambda difference: difference["kind"])
            assert (code, [difference["kind"] for difference in found]) == (1, kinds), err
            assert [difference["task_id"] for difference in found] == [task.id for task in created]
            assert [difference["namespace"] for difference in found] == ["default"] * 2
        assert [difference["done"] for difference in found] == ["dispatched by its owner", ""]
        await work.recorder.exactly(sound + created[:1])
        code, out, err = await asyncio.to_thread(admin, cluster, "fsck", "--ranges", "0-2")
        assert (code, "nothing differs" in out) == (0, True), out + err


async def born(cluster: Cluster, at_ms: int) -> None:
    """The journal has a record of so long ago: what was due since is compared."""
    journal = KafkaJournal(cluster.settings.kafka, cluster.constants, 9)
    await journal.init()
    await journal.commit([], encode(JournalRecord(9, bytes(16), at_ms, [])))
    await journal.close()
