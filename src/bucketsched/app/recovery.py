"""Looks at a cluster's stores past its processes: for `admin range accept-loss` and `admin fsck`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ..adapters.cassandra.catalog import CassandraCatalog
from ..adapters.cassandra.checkpoints import CassandraCheckpointStore
from ..adapters.cassandra.session import CassandraSession
from ..adapters.cassandra.store import CassandraTaskStore
from ..adapters.kafka.journal import KafkaJournal
from ..adapters.system_clock import SystemClock
from ..config import Settings
from ..core.cluster import ClusterConstants
from ..core.errors import ConfigError, InvalidArgument
from ..ports import CheckpointStore, Clock, Journal, TaskStore
from ..recovery.loss import Finding, LossReview

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Reach:
    """What there is of a cluster. The journal is for reading."""

    constants: ClusterConstants
    clock: Clock
    store: TaskStore
    checkpoints: CheckpointStore
    journal: Journal


@asynccontextmanager
async def reached(settings: Settings) -> AsyncIterator[Reach]:
    """Connects to store and journal. Raises ConfigError, Unavailable."""
    session = await CassandraSession.connect(settings.cassandra)
    try:
        constants = await (await CassandraCatalog.open(session)).constants()
        if constants is None:
            raise ConfigError(f"keyspace {settings.cassandra.keyspace} is empty: run `bucketsched admin migrate` first")
        clock = SystemClock(settings.node.clock_error_ms)
        store = await CassandraTaskStore.open(session, settings.cassandra, clock, constants.retention_ms)
        checkpoints = await CassandraCheckpointStore.open(session)
        journal = KafkaJournal(settings.kafka, constants, 0)
        try:
            yield Reach(constants, clock, store, checkpoints, journal)
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
        findings = []
        for range_id in range_ids:
            findings.append(await review.examine(range_id, since_ms, say))
            if accept:
                await review.accept(findings[-1])
                say(f"range {range_id}: its owner goes on within seconds")
        return findings


def check_ranges(constants: ClusterConstants, range_ids: Sequence[int]) -> None:
    """Raises InvalidArgument where there is no such range."""
    for range_id in range_ids:
        if not 0 <= range_id < constants.ranges:
            raise InvalidArgument("range", f"must be 0 to {constants.ranges - 1}, is {range_id}")
