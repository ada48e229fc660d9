"""One world of one seed: servers, nodes and clients, and how a run of it goes."""

from __future__ import annotations

import random
from uuid import UUID

from bucketsched.adapters.memory.keys import MemoryKeyStore
from bucketsched.adapters.memory.store import PLACE_BYTES, MemoryCatalog
from bucketsched.core.catalog import Namespace, Queue, QueueKind
from bucketsched.core.checkpoint import NO_OFFSET, Checkpoint
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.task import RowRef, bucket_of
from bucketsched.core.task_id import shard_in
from bucketsched.encoding.checkpoints import encode_checkpoint
from bucketsched.poller.limits import LaneLimits

from .broker import Broker
from .clock import EPOCH_MS, NodeClock, WorldTime
from .consumers import ConsumerGroups
from .ensemble import Ensemble
from .invariants import Invariants
from .loop import Process, VirtualLoop, at_once
from .mix import Mix, mix_of
from .network import Network
from .processes import Node, NodeSettings
from .replicas import Cassandra
from .requests import namespace_id
from .servers import Servers
from .trace import Trace
from .workload import QUEUES, WORKER_QUEUE, Clients, Load

POLLERS = ("b", "c", "d")
SCANNED_S = 36.0
"""So long after it was due no scan finds a row any more."""


class World:
    """Everything of one run. All randomness comes from the seed."""

    def __init__(self, seed: int) -> None:
        self.seed, self.mix = seed, mix_of(seed)
        self._seeds = random.Random(seed)
        self.loop = VirtualLoop()  # type: ignore[abstract]
        self.trace = Trace(self.loop.time)
        self.shape = self._stream()
        begins_ms = EPOCH_MS // 60_000 * 60_000 + round(1_000 * self.shape.uniform(*self.mix.begins_s))
        self.time = WorldTime(self.loop, begins_ms)
        self.constants = self._constants()
        self.invariants = Invariants(self.constants, self.time, self.trace)
        self.servers = self._make_servers()
        self.nodes = self._make_nodes()
        self.hot_s = sorted(self.shape.uniform(4, self.mix.chaos_s - 6) for _ in range(2))
        load = _load_of(self.mix, self.hot_s)
        if self.mix.early_in_minutes:
            self._hasten(load)
        self.clients = Clients(self.servers, self.time, self.nodes, self._stream(), load)
        self._found()

    def _hasten(self, load: Load) -> None:
        """Much is due when the first minute has begun, and most goes wrong when no scan looks there any more."""
        minute_s = (60_000 - self.time.begins_ms % 60_000) / 1000
        load.due_s = [minute_s + self.shape.uniform(0, 4)]
        load.burst_s = self.shape.uniform(0, minute_s)
        least_s = load.due_s[0] + SCANNED_S
        load.hot_s = self.hot_s = [self.shape.uniform(least_s, max(least_s, self.mix.chaos_s - 4))]

    def _stream(self) -> random.Random:
        """Random numbers of their own for each part, so that one more draw here changes nothing there."""
        return random.Random(self._seeds.getrandbits(64))

    def _constants(self) -> ClusterConstants:
        shape = self.shape
        shards = shape.choice((2, 4))
        return ClusterConstants(
            UUID(int=7),
            shards=shards,
            ranges=shape.choice((1, 2, shards)),
            horizon_ms=shape.choice((5_000, 15_000, 60_000)),
            grace_ms=round(1_000 * shape.choice(self.mix.graces_s)),
            lanes=5,
        )

    def _make_servers(self) -> Servers:
        network = Network(self.loop, self._stream())
        ensemble = Ensemble(self.loop, self._stream(), network, self.constants, session_s=2.0)
        broker = Broker(self.loop, self._stream(), self.constants.lanes, self.invariants)
        servers = Servers(
            self.loop,
            network,
            self.constants,
            broker,
            Cassandra(self.loop, self._stream(), self.invariants),
            MemoryCatalog(self.constants),
            MemoryKeyStore(),
            ensemble,
            ConsumerGroups(self.loop, network, broker),
            self.invariants,
            self.trace,
            _queue(*WORKER_QUEUE),
        )
        self.invariants.ranges = lambda: {r: (s.epoch, s.predecessors) for r, s in ensemble.ranges.items()}
        self.invariants.quorum_facts = self._has_facts_on_quorum
        return servers

    def _has_facts_on_quorum(self, ref: bytes) -> bool:
        row = RowRef.unpack(ref)
        partition = (bucket_of(row.due_ms), shard_in(row.task_id))
        cells = [r.partitions.get(partition, {}).get(ref[:PLACE_BYTES]) for r in self.servers.cassandra.replicas]
        return sum(cell is not None and cell.facts.settled for cell in cells) >= 2

    def _make_nodes(self) -> list[Node]:
        shape = self.shape
        names = POLLERS[: shape.choice(self.mix.pollers_of)]
        settings = [NodeSettings("a", ("api", "coordinator", "deliver"), self._lane_limits())]
        trimming = shape.choice(self.mix.trimmers)
        retention_ms = round(1_000 * shape.choice(self.mix.keeps_s))
        for name in names:
            roles: tuple[str, ...] = ("api", "poller", "coordinator") if shape.random() < 0.3 else ("poller",)
            if name == "b" and roles == ("poller",):
                roles = ("poller", "coordinator")
            if shape.random() < 0.2:
                roles = (*roles, "deliver")
            settings.append(NodeSettings(name, roles, self._lane_limits()))
        for one in settings:
            one.retention_ms = retention_ms if one.name == trimming else 0
        error_ms = shape.choice((0, 2, 20))
        self.invariants.clock_error_ms = error_ms
        nodes = []
        for one in settings:
            clock = NodeClock(self.loop, self.time, self._stream(), shape.uniform(-error_ms, error_ms), error_ms)
            nodes.append(Node(one, self.servers, clock, self._stream()))
        for node in nodes:
            node.peers = {other.name: other for other in nodes}
        return nodes

    def _lane_limits(self) -> LaneLimits:
        shape = self.shape
        return LaneLimits(
            transaction_interval_ms=shape.choice((10, 50)),
            transaction_tasks_max=shape.choice((2, 2_000)),
            heap_rows_max=shape.choice((4, 1_000)),
            page_rows_max=shape.choice((1, 3, 1_000)),
            reads_in_flight_max=shape.choice((1, 8)),
            mark_interval_ms=shape.choice((500, 1_000, 3_000)),
            checkpoint_interval_ms=shape.choice((1_000, 5_000)),
            rescan_interval_ms=shape.choice((2_000, 5_000)),
        )

    def _found(self) -> None:
        """What `admin migrate` does, and the queues."""
        for name in sorted({namespace for namespace, _ in QUEUES}):
            at_once(self.servers.catalog.create_namespace(Namespace(name, namespace_id(name), 0)))
        for namespace, name in QUEUES:
            at_once(self.servers.catalog.create_queue(_queue(namespace, name)))
        first = bucket_of(self.time.begins_ms) - 1
        for range_id in range(self.constants.ranges):
            checkpoint = Checkpoint(0, 0, self.servers.broker.name, 0, NO_OFFSET, b"", first)
            for replica in self.servers.cassandra.replicas:
                replica.checkpoint(range_id, checkpoint.order, encode_checkpoint(checkpoint))

    def node(self, name: str) -> Node:
        """By its name."""
        return next(node for node in self.nodes if node.name == name)

    @property
    def processes(self) -> list[Process]:
        """All that ever ran."""
        return [life.process for node in self.nodes for life in node.lives]

    def settled(self) -> bool:
        """True if nothing is left to be done."""
        if self.clients.running or self.invariants.undone() or self.invariants.unsettled_moves():
            return False
        return not self.undelivered()

    def undelivered(self) -> list[bytes]:
        """Rows that were dispatched to workers and that none has acknowledged."""
        done = self.servers.groups.deliveries.done
        committed = enumerate(self.servers.broker.committed)
        place = (namespace_id(WORKER_QUEUE[0]), WORKER_QUEUE[1])
        return [
            one.message.ref
            for token, one in committed
            if token not in done and (one.message.queue.namespace_id, one.message.queue.name) == place
        ]

    def last_due_s(self) -> float:
        """When the last acknowledged task is due."""
        dues = [self.invariants.due_ms(request) for request in self.invariants.requests]
        return (max(dues) - self.time.begins_ms) / 1000 if dues else 0.0


def _load_of(mix: Mix, hot_s: list[float]) -> Load:
    return Load(
        mix.chaos_s - 4,
        due_s=hot_s,
        hot_s=hot_s,
        cancels=mix.cancels,
        late=mix.late,
        late_s=mix.late_s,
        doubled=mix.doubled,
        changes=mix.changes,
        keys=mix.keys,
    )


def _queue(namespace: str, name: str) -> Queue:
    kind = QueueKind.WORKER if (namespace, name) == WORKER_QUEUE else QueueKind.KAFKA
    return Queue(namespace_id(namespace), namespace, name, kind, f"{namespace}.{name}")
