"""Looks at a cluster's stores past its processes: for `admin range accept-loss` and `admin fsck`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from ..adapters.cassandra.catalog import CassandraCatalog
from ..adapters.cassandra.checkpoints import CassandraCheckpointStore
from ..adapters.cassandra.session import CassandraSession
from ..adapters.cassandra.store import CassandraTaskStore
from ..adapters.kafka.journal import KafkaJournal
from ..adapters.owners_grpc import GrpcOwners
from ..adapters.system_clock import SystemClock
from ..adapters.zookeeper.membership import ZooKeeperMembership
from ..config import Settings
from ..core.cluster import ClusterConstants
from ..core.errors import InvalidArgument
from ..ports import Catalog, CheckpointStore, Clock, Journal, Member, TaskStore
from ..recovery.differences import REPAIRED
from ..recovery.fsck import Fsck, Report, Window
from ..recovery.loss import Finding, LossReview
from ..recovery.repair import Repair

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Reach:
    """What there is of a cluster. The journal is for reading."""

    constants: ClusterConstants
    catalog: Catalog
    clock: Clock
    store: TaskStore
    checkpoints: CheckpointStore
    journal: Journal


@asynccontextmanager
async def reached(settings: Settings) -> AsyncIterator[Reach]:
    """Connects to store and journal. Raises ConfigError, Unavailable."""
    session = await CassandraSession.connect(settings.cassandra)
    try:
        catalog = await CassandraCatalog.open(session)
        constants = await catalog.constants_in(settings.cassandra.keyspace)
        clock = SystemClock(settings.node.clock_error_ms)
        store = await CassandraTaskStore.open(session, settings.cassandra, clock, constants.retention_ms)
        checkpoints = await CassandraCheckpointStore.open(session)
        journal = KafkaJournal(settings.kafka, constants, 0)
        try:
            yield Reach(constants, catalog, clock, store, checkpoints, journal)
        finally:
            await journal.close()
    finally:
        await session.close()


async def review_losses(
    settings: Settings, range_ids: Sequence[int], since_ms: int | None, accept: bool, say: Say
) -> list[Finding]:
    """See recovery.loss, for these ranges one by one. Raises RequestError, ConfigError, Unavailable."""
    watch_s = (2 * settings.poller.checkpoint_interval_ms + 1_000) / 1000
    async with reached(settings) as cluster:
        check_ranges(cluster.constants, range_ids)
        review = LossReview(
            cluster.journal, cluster.store, cluster.checkpoints, cluster.constants, cluster.clock, watch_s
        )
        findings = await review.examine(range_ids, since_ms, say)
        for finding in findings if accept else ():
            await review.accept(finding)
            say(f"range {finding.range_id}: its owner goes on within seconds")
        return findings


@dataclass(frozen=True, slots=True)
class Checked:
    """What came out. `done` says what was done about each difference; without repair they are all empty."""

    report: Report
    done: list[str]
    namespaces: dict[bytes, str]
    """Names by id."""


async def check(
    settings: Settings, from_ms: int, to_ms: int | None, range_ids: Sequence[int] | None, repair: bool, say: Say
) -> Checked:
    """See recovery.fsck. None: up to now; all ranges. Raises RequestError, ConfigError, Unavailable."""
    async with reached(settings) as cluster:
        ranges = range(cluster.constants.ranges) if range_ids is None else sorted(set(range_ids))
        check_ranges(cluster.constants, ranges)
        window = Window(from_ms, cluster.clock.now_ms() if to_ms is None else to_ms, ranges)
        with TemporaryDirectory(prefix="bucketsched-fsck-") as folder:
            fsck = Fsck(
                cluster.journal,
                cluster.store,
                cluster.checkpoints,
                cluster.constants,
                cluster.clock,
                Path(folder),
                say,
            )
            report = await fsck.run(window)
        done = [""] * len(report.differences)
        if repair and any(difference.kind in REPAIRED for difference in report.differences):
            async with _owners(settings, cluster) as owners:
                done = await Repair(cluster.store, owners, cluster.clock).run(report.differences)
        namespaces = {found.namespace_id: found.name for found in await cluster.catalog.list_namespaces()}
        return Checked(report, done, namespaces)


@asynccontextmanager
async def _owners(settings: Settings, cluster: Reach) -> AsyncIterator[GrpcOwners]:
    """The owners of all ranges, as a member without a role sees them. Raises ConfigError, Unavailable."""
    membership = ZooKeeperMembership(settings.zookeeper, cluster.constants)
    name = f"fsck-{uuid4().hex[:6]}"
    await membership.join(Member(name, ()), wants_lane=False)
    owners = GrpcOwners(membership, cluster.constants, cluster.clock, name)
    try:
        yield owners
    finally:
        await owners.close()
        await membership.leave()


def check_ranges(constants: ClusterConstants, range_ids: Sequence[int]) -> None:
    """Raises InvalidArgument where there is no such range."""
    for range_id in range_ids:
        if not 0 <= range_id < constants.ranges:
            raise InvalidArgument("range", f"must be 0 to {constants.ranges - 1}, is {range_id}")
