"""What a cluster needs before its first start: schema, constants, first checkpoints, journal, tree, defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from ..adapters.cassandra.catalog import CassandraCatalog
from ..adapters.cassandra.checkpoints import CassandraCheckpointStore
from ..adapters.cassandra.migrations import files_directory, migrate
from ..adapters.cassandra.session import CassandraSession
from ..adapters.kafka.topics import KafkaTopics
from ..adapters.system_clock import SystemClock
from ..adapters.zookeeper.tree import create_tree
from ..config import Settings
from ..core.catalog import DEFAULT_NAMESPACE, DEFAULT_QUEUE, QueueKind
from ..core.cluster import ClusterConstants
from ..core.errors import ConfigError
from ..ports import Clock, Topics
from ..service.directory import Directory
from ..service.namespaces import NamespaceService
from ..service.queues import NewQueue, QueueService
from .checkpoints import readable_checkpoints


@dataclass(frozen=True, slots=True)
class Migrated:
    """What was done. `constants` are those that hold from now on."""

    applied: tuple[str, ...]
    constants: ClusterConstants
    checkpoints_written: int


async def migrate_cluster(settings: Settings, given: dict[str, Any]) -> Migrated:
    """See app.migrate. `given`: constants that are asked for by name."""
    wanted = ClusterConstants(uuid4(), **given)  # what can't be must not leave half a cluster behind
    clock = SystemClock(settings.node.clock_error_ms)
    report = await migrate(settings.cassandra, None, files_directory(), clock)
    constants, written = report.constants, report.checkpoints_written
    if constants is None:
        second = await migrate(settings.cassandra, wanted, files_directory(), clock)
        constants, written = second.constants, second.checkpoints_written
    assert constants is not None
    for name, value in given.items():
        if getattr(constants, name) != value:
            raise ConfigError(f"{name} is {getattr(constants, name)} in this cluster for good, {value} was given")
    await _prepare(settings, constants, clock)
    return Migrated(report.applied, constants, written)


async def _prepare(settings: Settings, constants: ClusterConstants, clock: Clock) -> None:
    topics = KafkaTopics(settings.kafka, constants)
    session = await CassandraSession.connect(settings.cassandra)
    try:
        await topics.ensure_journal()
        await topics.ensure_clock()
        checkpoints = await CassandraCheckpointStore.open(session)
        await create_tree(settings.zookeeper, constants, await readable_checkpoints(checkpoints, constants.ranges))
        await make_defaults(await CassandraCatalog.open(session), topics, clock)
    finally:
        await topics.close()
        await session.close()


async def make_defaults(catalog: CassandraCatalog, topics: Topics, clock: Clock) -> None:
    """The default namespace, and in it the default queue, which is served by workers."""
    await NamespaceService(catalog, clock).create(DEFAULT_NAMESPACE)
    queues = QueueService(catalog, Directory(catalog, clock), topics, clock)
    await queues.create(NewQueue(DEFAULT_QUEUE, QueueKind.WORKER))
