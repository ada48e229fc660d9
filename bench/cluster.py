"""A cluster of one's own on real servers: names that nobody else uses, real processes, nothing left behind."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from bucketsched import Client, QueueKind
from bucketsched.config import CassandraSettings, Settings, load
from bucketsched.core.errors import Unavailable

from .load import Creation, create, now_ms
from .processes import Child, ChildFailed, Children, run_once
from .progress import say
from .recording import Recording

MIGRATE_S_MAX = 60.0
READY_S_MAX = 60.0
BALANCED_S_MAX = 30.0
LOOK_S = 0.2
WARM_UP_TASKS = 600
"""So many that nearly surely every range gets one."""
WARM_UP_S_MAX = 30.0
NO_SERVERS = "BUCKETSCHED_CONFIG names no settings of servers: use `make demo-cluster` or `make bench-quick`"


@dataclass(frozen=True, slots=True)
class Node:
    """A process of the cluster and its public address."""

    child: Child
    address: str


class Cluster:
    """Names, settings and constants. Made by `private_cluster`."""

    def __init__(self, children: Children, settings: Settings, env: dict[str, str], constants: dict[str, Any]) -> None:
        self.settings, self.queue, self.topic = settings, "bench", f"bench-{constants['cluster_id']}"
        self.cluster_id, self.ranges = str(constants["cluster_id"]), int(constants["ranges"])
        self._children, self._env = children, env

    async def node(self, name: str, *roles: str) -> Node:
        """Starts a process with these roles; returns when it is ready. Raises ChildFailed."""
        names = ("grpc_address", "internal_address", "metrics_address")
        addresses = [word for name in names for word in ("--set", f"node.{name}=127.0.0.1:0")]
        arguments = ("bucketsched", "node", "--roles", ",".join(roles), *addresses, "--output", "json")
        child = await self._children.start(name, *arguments, env=self._env)
        address = (await child.line(READY_S_MAX))["address"]
        say(f"{name} is ready: {', '.join(roles)} (pid {child.pid})")
        return Node(child, address)

    async def create_queue(self, client: Client) -> None:
        """The queue whose tasks go to `topic`."""
        await client.create_queue(self.queue, QueueKind.KAFKA, topic=self.topic)

    async def recorder(self) -> Recording:
        """What a read_committed consumer of `topic` receives. Raises ChildFailed."""
        child = await self.start("consumer", "bench.topic_recorder", self.settings.kafka.bootstrap, self.topic)
        recording = await Recording.of(child)
        say(f"a read_committed consumer is attached (pid {child.pid})")
        return recording

    async def start(self, name: str, *arguments: str) -> Child:
        """Starts another child with the cluster's settings."""
        return await self._children.start(name, *arguments, env=self._env)

    async def end(self, child: Child) -> None:
        """Ends one before the others."""
        await self._children.end(child)

    async def balanced(self, *pollers: Node) -> dict[int, int]:
        """Waits until these own all ranges and each of them has its share; how many by pid. Raises ChildFailed."""
        least = self.ranges // len(pollers) - 1
        owned: Counter[int] = Counter()
        for _ in range(int(BALANCED_S_MAX / LOOK_S)):
            with suppress(Unavailable):
                owned = await ranges_by_pid(self.settings, self.cluster_id, self.ranges)
            shares = [owned[poller.child.pid] for poller in pollers]
            if sum(shares) == self.ranges and min(shares) >= least:
                return dict(owned)
            await asyncio.sleep(LOOK_S)
        raise pollers[-1].child.failed(f"has no fair share of the {self.ranges} ranges: {dict(owned)}")

    async def warm_up(self, client: Client, recording: Recording) -> None:
        """Until tasks have come out of all ranges. Raises ChildFailed."""
        creation = Creation()
        await create(client, self.queue, [now_ms()] * WARM_UP_TASKS, creation)
        if creation.errors or not await recording.all_of(creation.due_ms, WARM_UP_S_MAX):
            missing = recording.missing(creation.due_ms)
            raise ChildFailed(f"{missing} of the first {WARM_UP_TASKS} tasks did not come; {creation.errors[:1]}")
        say("tasks come through")


@asynccontextmanager
async def private_cluster(children: Children) -> AsyncIterator[Cluster]:
    """A migrated cluster without processes; all of it is dropped afterwards. Raises ChildFailed."""
    config = _config()
    name = f"bench_{uuid.uuid4().hex[:12]}"
    env = {
        "BUCKETSCHED_CONFIG": config,
        "BUCKETSCHED_CASSANDRA__KEYSPACE": name,
        "BUCKETSCHED_ZOOKEEPER__ROOT": f"/{name}",
    }
    settings = load(config, {"cassandra": {"keyspace": name}, "zookeeper": {"root": f"/{name}"}})
    migrated: dict[str, Any] = {}
    try:
        printed = await run_once(
            "migrate", "bucketsched", "admin", "migrate", "--output", "json", env=env, timeout_s=MIGRATE_S_MAX
        )
        migrated = json.loads(printed)
        say(f"a cluster of its own is prepared: keyspace {name}")
        yield Cluster(children, settings, env, migrated)
    finally:
        await children.end_all()
        await asyncio.shield(asyncio.ensure_future(_drop(settings, str(migrated.get("cluster_id", "")))))


def _config() -> str:
    """The settings file of the servers."""
    named = os.environ.get("BUCKETSCHED_CONFIG")
    if not named:
        raise ChildFailed(NO_SERVERS)
    return os.path.abspath(named)


# ---------------------------------------------------------------- what is read of the servers, and removed from them


async def ranges_by_pid(settings: Settings, cluster_id: str, ranges: int) -> Counter[int]:
    """How many ranges each process holds, as ZooKeeper says. A member's id holds its pid."""
    from bucketsched.adapters.zookeeper.session import ZooKeeperSession
    from bucketsched.adapters.zookeeper.tree import Tree, each, read_range
    from bucketsched.adapters.zookeeper.view import read_members

    session, tree = ZooKeeperSession(settings.zookeeper), Tree(f"{settings.zookeeper.root}/{cluster_id}")
    await session.open()
    try:
        nodes = await each(lambda range_id: read_range(session, tree, range_id), range(ranges))
        members = await read_members(session, tree)
    finally:
        await session.close()
    pids = {member.lane: int(member.member_id.split("-")[-2]) for member in members.values() if member.lane >= 0}
    return Counter(pids[node.record.lane] for node in nodes if node.leased and node.record.lane in pids)


async def _drop(settings: Settings, cluster_id: str) -> None:
    removals = [_drop_keyspace(settings.cassandra), asyncio.to_thread(_drop_tree, settings)]
    if cluster_id:
        removals.append(_drop_topics(settings, cluster_id))
    for result in await asyncio.gather(*removals, return_exceptions=True):
        if isinstance(result, Exception):
            say(f"something of {settings.cassandra.keyspace} is left behind: {result!r}")


async def _drop_keyspace(settings: CassandraSettings) -> None:
    from bucketsched.adapters.cassandra.session import CassandraSession

    session = await CassandraSession.connect(settings, must_exist=False)
    try:
        await session.change_schema(f"DROP KEYSPACE IF EXISTS {settings.keyspace}", keyspace="")
    finally:
        await session.close()


def _drop_tree(settings: Settings) -> None:
    from kazoo.client import KazooClient

    zookeeper = KazooClient(hosts=settings.zookeeper.hosts)
    zookeeper.start(timeout=10)
    try:
        zookeeper.delete(settings.zookeeper.root, recursive=True)
    finally:
        zookeeper.stop()
        zookeeper.close()


async def _drop_topics(settings: Settings, cluster_id: str) -> None:
    """The journal, the queues' topics and those of the measurements: all carry the cluster's id, or its first part."""
    from aiokafka.admin import AIOKafkaAdminClient

    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka.bootstrap)
    await admin.start()
    try:
        mine = [topic for topic in await admin.list_topics() if cluster_id[:8] in topic]
        await admin.delete_topics(mine)
    finally:
        await admin.close()
