"""A process of a cluster: any of the roles api, poller, coordinator, deliver, on Cassandra, ZooKeeper and Kafka."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

import structlog

from .. import telemetry
from ..adapters.cassandra.catalog import CassandraCatalog
from ..adapters.cassandra.checkpoints import CassandraCheckpointStore
from ..adapters.cassandra.keys import CassandraKeyStore
from ..adapters.cassandra.session import CassandraSession
from ..adapters.cassandra.store import CassandraTaskStore
from ..adapters.kafka.deliveries import KafkaDeliveries
from ..adapters.kafka.journal import KafkaJournal
from ..adapters.kafka.topics import KafkaTopics
from ..adapters.kafka.witness import KafkaWitnesses
from ..adapters.metrics_http import MetricsServer
from ..adapters.owners_grpc import GrpcOwners, GrpcReadyCalls
from ..adapters.system_clock import SystemClock
from ..adapters.tcp_peers import TcpPeers
from ..adapters.zookeeper.membership import ZooKeeperMembership
from ..adapters.zookeeper.plan_store import ZooKeeperPlanStore
from ..adapters.zookeeper.tree import TreeMissing, create_tree
from ..adapters.zookeeper.witness import ZooKeeperWitness
from ..api.internal import OwnerServicer
from ..api.reports import ReportServicer
from ..api.rest.server import RestServer
from ..api.rpc import Service
from ..api.server import GrpcServer
from ..api.worker import WorkerServicer
from ..config import MESSAGE_OVERHEAD_BYTES, Settings
from ..coordinator.death_watch import DeathWatch
from ..coordinator.planning import Coordinator
from ..coordinator.trimmer import JournalTrimmer
from ..core.clock_discipline import NS_PER_MS, ClockLimits
from ..core.cluster import ClusterConstants
from ..core.errors import ConfigError, Unavailable
from ..core.validation import Limits
from ..delivery.hub import WorkerHub
from ..delivery.outcomes import OwnerOutcomes
from ..delivery.queue_feed import HubLimits
from ..poller.limits import LaneLimits
from ..ports import Member
from ..service.directory import Directory
from .api_role import ApiRole
from .checkpoints import readable_checkpoints
from .clock_watch import ClockWatch
from .metrics import Metrics, of_clock, of_outcomes, of_poller, of_tasks
from .patience import Patience
from .poller_role import PollerRole
from .push_role import READ_AHEAD_MAX, UNACKED_MAX, PushReach, PushRole
from .reach import Reach, ask_checkpoints, ask_journal, contact_limits

log = structlog.get_logger(__name__)
LOOK_S = 0.2
RETRY_S = 0.5
DRAIN_S_MAX = 5.0
DAY_MS = 86_400_000


def limits_of(settings: Settings) -> Limits:
    """What the service accepts, as its settings say."""
    given = settings.limits
    return Limits(
        payload_bytes_max=given.payload_bytes_max,
        metadata_entries_max=given.metadata_entries_max,
        metadata_bytes_max=given.metadata_bytes_max,
        delay_ms_max=int(given.delay_days_max * DAY_MS),
        batch_tasks_max=given.batch_tasks_max,
        create_timeout_ms=given.create_timeout_ms,
    )


def clock_limits_of(settings: Settings) -> ClockLimits:
    """What a node's clock may be like, as its settings say."""
    given = settings.node
    return ClockLimits(
        given.clock_error_ms * NS_PER_MS,
        given.clock_error_ms_max * NS_PER_MS,
        given.clock_offset_ms_max * NS_PER_MS,
        alone=False,
    )


class Node:
    """Starts what its roles need, and nothing else."""

    def __init__(self, settings: Settings, ready: Callable[[str, str], None] | None) -> None:
        self._settings, self._ready = settings, ready
        self._roles = settings.node.roles
        self._clock = SystemClock(limits=clock_limits_of(settings))
        self._patience = Patience(self._clock, settings.node.start_s_max)
        self._clock_watch: ClockWatch | None = None
        self._probe: KafkaJournal | None = None
        self._name = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:6]}"
        self._working: list[asyncio.Task[None]] = []
        self._servers: list[GrpcServer] = []
        self._internal: GrpcServer | None = None
        self._metrics = Metrics("cluster")
        self._metrics_server: MetricsServer | None = None
        self._hub: WorkerHub | None = None
        self._push: PushRole | None = None
        self._poller: PollerRole | None = None
        self._rest: RestServer | None = None
        self._started = False

    # ---- start

    async def start(self) -> None:
        """Connects, serves, joins. Raises ConfigError, Unavailable."""
        telemetry.configure(self._settings.log.level, self._settings.log.format)
        metrics = await self._serve_metrics()
        await self._connect()
        try:
            await self._ensure_tree()
        except Unavailable as error:
            log.warning("ZooKeeper can't be reached yet", error=str(error))
        self._membership = ZooKeeperMembership(self._settings.zookeeper, self._constants)
        if "poller" in self._roles:
            self._poller = poller = self._make_poller()
            self._metrics.add(lambda: of_poller(poller))
        internal = await self._serve_internal() if {"poller", "coordinator"} & set(self._roles) else ""
        public = await self._serve_public()
        http = await self._serve_http()
        self._watch_clock()  # now that the settings have turned out to be right: they are told of in one line
        await self._begin_work(public, internal)
        self._started = True
        log.info(
            "ready",
            roles=",".join(self._roles),
            grpc=public,
            http=http,
            internal=internal,
            metrics=metrics,
            member=self._name,
        )
        if self._ready:
            self._ready(public, http)

    def _watch_clock(self) -> None:
        """From now on other machines are asked for the time."""
        zookeeper = ZooKeeperWitness(self._settings.zookeeper, self._constants, self._name)
        kafka = KafkaWitnesses(self._settings.kafka, self._constants)
        self._clock_watch = ClockWatch(self._clock, [zookeeper, kafka])
        self._metrics.add(lambda: of_clock(self._clock.discipline))
        self._spawn(self._clock_watch.run())

    async def _connect(self) -> None:
        settings = self._settings
        self._session = await self._patience.wait(lambda: CassandraSession.connect(settings.cassandra))
        await self._patience.wait(self._open_stores)

    async def _open_stores(self) -> None:
        settings = self._settings
        self._catalog = await CassandraCatalog.open(self._session)
        constants = await self._catalog.constants_in(settings.cassandra.keyspace)
        self._constants: ClusterConstants = constants
        self._store = await CassandraTaskStore.open(
            self._session, settings.cassandra, self._clock, constants.retention_ms
        )
        self._checkpoints = await CassandraCheckpointStore.open(self._session)
        self._keys = await CassandraKeyStore.open(self._session, self._clock)
        self._directory = Directory(self._catalog, self._clock)

    async def _ensure_tree(self) -> None:
        """Puts the epochs in ZooKeeper behind the checkpoints'. At the start, a missing tree is a wrong setting."""
        checkpoints = await readable_checkpoints(self._checkpoints, self._constants.ranges)
        try:
            await create_tree(self._settings.zookeeper, self._constants, checkpoints, from_nothing=False)
        except TreeMissing as error:
            if self._started:
                raise
            raise ConfigError(f"settings zookeeper.hosts and zookeeper.root: {error}") from error

    def _make_poller(self) -> PollerRole:
        self._ready_calls = GrpcReadyCalls()
        return PollerRole(
            Member(self._name, self._roles),
            self._membership,
            lambda lane: KafkaJournal(self._settings.kafka, self._constants, lane),
            self._store,
            self._checkpoints,
            self._catalog,
            self._clock,
            self._constants,
            LaneLimits(**self._settings.poller.model_dump()),
            self._ensure_tree,
            self._ready_calls,
        )

    async def _serve_metrics(self) -> str:
        address = self._settings.node.metrics_address
        if not address:
            return ""
        self._metrics_server = MetricsServer(address, self._metrics.gather, lambda: self._started)
        try:
            return await self._metrics_server.start()
        except ConfigError as error:
            raise ConfigError(f"setting node.metrics_address: {error}") from error

    async def _serve_internal(self) -> str:
        """For questions to its ranges; and its listening at all is what tells others that this process lives."""
        services: list[Service] = []
        if self._poller:
            services = [OwnerServicer(self._poller).service(), ReportServicer(self._poller.reports).service()]
        self._internal = GrpcServer(self._settings.node.internal_address, services)
        bound = await self._listen(self._internal, "internal_address")
        return self._settings.node.advertise_internal or bound

    async def _serve_public(self) -> str:
        services: list[Service] = []
        self._owners = GrpcOwners(self._membership, self._constants, self._clock, self._name, self._poller)
        if "api" in self._roles:
            services += self._make_api().services()
        if "deliver" in self._roles:
            self._outcomes = OwnerOutcomes(self._owners, self._store, self._clock)
            self._metrics.add(lambda: of_outcomes(self._outcomes))
            self._spawn(self._outcomes.run())
            limits = HubLimits(offers_in_flight_max=self._settings.deliver.offers_in_flight_max)
            unacked = self._settings.deliver.offers_in_flight_max
            deliveries = KafkaDeliveries(self._settings.kafka, self._constants, unacked)
            self._hub = WorkerHub(deliveries, self._outcomes, self._clock, limits)
            self._push = self._make_push()
        if self._hub or "api" in self._roles:
            worker = WorkerServicer(
                self._hub, self._directory, self._worker_addresses, self._settings.deliver.lease_s_default
            )
            services.append(worker.service())
        accepted = self._settings.limits
        task_bytes = accepted.payload_bytes_max + accepted.metadata_bytes_max + MESSAGE_OVERHEAD_BYTES
        server = GrpcServer(
            self._settings.node.grpc_address,
            services,
            with_reflection=self._settings.node.reflection,
            message_bytes_max=accepted.batch_tasks_max * task_bytes,
        )
        bound = await self._listen(server, "grpc_address")
        return self._settings.node.advertise_grpc or bound

    async def _serve_http(self) -> str:
        address = self._settings.node.http_address if "api" in self._roles else ""
        if not address:
            return ""
        rest = self._api.rest(address, lambda: self._started, self._metrics.gather, DRAIN_S_MAX)
        try:
            bound = await rest.start()
        except ConfigError as error:
            raise ConfigError(f"setting node.http_address: {error}") from error
        self._rest = rest
        self._spawn(rest.serve())
        return bound

    def _make_push(self) -> PushRole:
        settings = self._settings
        deliveries = KafkaDeliveries(settings.kafka, self._constants, UNACKED_MAX, READ_AHEAD_MAX)
        reach = PushReach.of(settings.deliver)
        push = PushRole(self._catalog, deliveries, self._outcomes, self._clock, reach)
        self._metrics.add(push.metrics)
        if "api" in self._roles:
            self._api.on_pushed(push.queues.serve)
        return push

    async def _listen(self, server: GrpcServer, setting: str) -> str:
        self._servers.append(server)
        try:
            return await server.start()
        except ConfigError as error:
            raise ConfigError(f"setting node.{setting}: {error}") from error

    def _make_api(self) -> ApiRole:
        self._topics = KafkaTopics(self._settings.kafka, self._constants)
        self._api = ApiRole(
            "cluster",
            self._store,
            self._keys,
            self._catalog,
            self._directory,
            self._owners,
            self._topics,
            self._clock,
            self._constants,
            limits_of(self._settings),
        )
        tasks = self._api.tasks
        self._metrics.add(lambda: of_tasks(tasks))
        return self._api

    def _worker_addresses(self) -> list[str]:
        return sorted(m.worker_address for m in self._membership.members() if m.worker_address)

    async def _begin_work(self, public: str, internal: str) -> None:
        node = self._settings.node
        worker = public if self._hub else ""
        name = node.name or f"{socket.gethostname()}-{os.getpid()}"
        member = Member(self._name, self._roles, -1, internal, worker, node.weight, node.zone, name=name)
        if self._poller:
            self._poller.announce(member)
            self._poller.objection = self._clock.objection
            self._watch_reach(self._poller)
            self._spawn(self._poller.work())
        else:
            await self._patience.wait(lambda: self._join(member))
            self._spawn(self._stay_member(member))
        if self._push:
            self._spawn(self._push.run())
        if "coordinator" in self._roles:
            self._plan_store = ZooKeeperPlanStore(
                self._settings.zookeeper, self._constants, self._name, self._membership.last_seen
            )
            watch = DeathWatch(self._membership, self._plan_store, TcpPeers(), self._clock, self._name)
            self._spawn(watch.run())
            coordinator = Coordinator(
                self._plan_store, self._clock, membership=self._membership, orders=self._plan_store
            )
            self._spawn(coordinator.run())
            self._spawn(self._trim_journal())
        if self._poller:
            while self._poller.lane is None and not (self._clock.discipline.confirmed and self._clock.objection()):
                await self._clock.sleep(0.01)
                for task in self._working:
                    if task.done():
                        task.result()
        for server in self._servers:
            await server.set_serving("", True)

    def _watch_reach(self, poller: PollerRole) -> None:
        """From now on the poller knows whether it can reach Kafka and Cassandra."""
        self._probe = KafkaJournal(self._settings.kafka, self._constants, 0)  # which is only read through
        limits, ranges = contact_limits(self._settings.node.cut_off_s_max), self._constants.ranges
        questions = {
            "Kafka": ask_journal(self._probe, self._constants.lanes, lambda: poller.lane, limits.doubt_s),
            "Cassandra": ask_checkpoints(self._checkpoints, ranges),
        }
        reach = Reach(questions, self._clock, limits)
        poller.ailing, poller.out_of_reach, poller.cut_off = reach.ailing, reach.out_of_reach, reach.cut_off
        self._spawn(reach.run())

    async def _trim_journal(self) -> None:
        """Through a journal that is only read: which lane it would write does not matter."""
        journal = KafkaJournal(self._settings.kafka, self._constants, 0)
        retention_ms = self._settings.kafka.journal_retention_ms
        try:
            await JournalTrimmer(journal, self._checkpoints, self._constants, self._clock, retention_ms).run()
        finally:
            await journal.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._working.append(asyncio.create_task(work))

    async def _join(self, member: Member) -> None:
        await self._ensure_tree()
        await self._membership.join(member, wants_lane=False)

    async def _stay_member(self, member: Member) -> None:
        """Joins again whenever the session is lost."""
        while True:
            await self._clock.sleep(LOOK_S)
            if self._membership.session_lost():
                try:
                    await self._join(member)
                except Unavailable as error:
                    log.warning("joining waits", error=str(error), recurring=True)
                    await self._clock.sleep(RETRY_S)

    # ---- work and stop

    async def work(self) -> None:
        """Until one of its parts fails."""
        done, _ = await asyncio.wait(self._working, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def stop(self) -> None:
        """Not serving; what is under way ends; ranges are handed over; everything is closed. Bounded in time."""
        self._started = False
        if self._poller:
            self._poller.stop()
        try:
            await asyncio.wait_for(self._let_go(), self._settings.node.shutdown_s_max)
        except TimeoutError:
            log.error("stopping took too long: what is left is left to others")
        if self._metrics_server:
            await self._metrics_server.stop()

    async def _let_go(self) -> None:
        endings = [server.stop(DRAIN_S_MAX) for server in self._servers if server is not self._internal]
        if self._rest:
            endings.append(self._rest.stop())
        ending = asyncio.gather(*endings, return_exceptions=True)
        draining = [role.drain(DRAIN_S_MAX) for role in (self._hub, self._push) if role]
        await asyncio.gather(*draining, return_exceptions=True)  # while there is an owner to tell how attempts end
        if self._poller:
            await self._poller.leave(self._settings.node.shutdown_s_max / 2)
        for task in self._working:
            task.cancel()
        await asyncio.gather(ending, *self._working, return_exceptions=True)
        if hasattr(self, "_api"):
            await self._api.close()
            await self._topics.close()
        if hasattr(self, "_owners"):
            await self._owners.close()
        if hasattr(self, "_ready_calls"):
            await self._ready_calls.close()
        if hasattr(self, "_membership"):
            await self._membership.leave()
        if self._internal:  # last: a port that refuses while it still holds something would look like a death
            await asyncio.gather(self._internal.stop(DRAIN_S_MAX), return_exceptions=True)
        if self._clock_watch:
            await self._clock_watch.close()
        if self._probe:
            await self._probe.close()
        if hasattr(self, "_session"):
            await self._session.close()
