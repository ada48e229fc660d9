"""Embedded mode: the same service, poller and delivery over SQLite, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import structlog

from .. import telemetry
from ..adapters.metrics_http import MetricsServer
from ..adapters.sqlite.catalog import SqliteCatalog, embedded_constants
from ..adapters.sqlite.checkpoints import SqliteCheckpointStore
from ..adapters.sqlite.database import DEFAULT_LIMITS, Database
from ..adapters.sqlite.deliveries import SqliteDeliveries
from ..adapters.sqlite.journal import SqliteJournal
from ..adapters.sqlite.keys import PURGE_KEYS_MAX, SqliteKeyStore
from ..adapters.sqlite.leases import InProcessMembership
from ..adapters.sqlite.outbox import Outbox
from ..adapters.sqlite.room import RoomLimits
from ..adapters.sqlite.store import PURGE_ROWS_MAX, SqliteTaskStore
from ..adapters.system_clock import SystemClock
from ..api.rest.server import RestServer
from ..api.server import GrpcServer
from ..api.worker import WorkerServicer
from ..config import LogSettings, load
from ..core.errors import ConfigError, Unavailable
from ..core.validation import Limits
from ..delivery.hub import WorkerHub
from ..delivery.outcomes import OwnerOutcomes
from ..poller.limits import LaneLimits
from ..ports import Member
from ..service.directory import Directory
from ..service.owners import LocalOwners
from .api_role import ApiRole
from .metrics import Metrics, of_clock, of_outcomes, of_poller, of_tasks
from .poller_role import PollerRole
from .push_role import ANYWHERE, PushRole

log = structlog.get_logger(__name__)
TRANSACTION_INTERVAL_MS = 1.0
"""A commit costs one fsync here, not a round of a broker: it pays to commit more often than in a cluster."""
TRANSACTION_BYTES_MAX = 1024 * 1024
"""Small beside the reserve of the disk: a transaction takes its size twice for a moment, in the log and in the file."""
HOUSEKEEPING_S = 60.0
SHUTDOWN_S_MAX = 10.0
HTTP_ADDRESS_DEFAULT = "127.0.0.1:8080"


class Embedded:
    """One process, one data directory."""

    def __init__(
        self,
        data_dir: str,
        grpc_address: str,
        metrics_address: str,
        ready: Callable[[str, str], None] | None,
        room: RoomLimits = DEFAULT_LIMITS,
        http_address: str | None = "",
    ) -> None:
        """`http_address` None: HTTP_ADDRESS_DEFAULT, unless that is taken."""
        self._room = room
        self._http_may_miss = http_address is None
        http_address = HTTP_ADDRESS_DEFAULT if http_address is None else http_address
        addresses = {"grpc_address": grpc_address, "metrics_address": metrics_address, "http_address": http_address}
        settings = load(None, {"node": addresses})
        self._settings, self._logins = settings.node, settings.deliver.smtp_logins
        self._data_dir, self._ready = Path(data_dir), ready
        self._clock = SystemClock(0)
        self._address = ""
        self._metrics = Metrics("embedded")
        self._metrics.add(lambda: of_clock(self._clock.discipline))
        self._metrics_server: MetricsServer | None = None
        self._rest: RestServer | None = None
        self._started = False

    async def start(self) -> None:
        """Opens the data directory, serves. Raises ConfigError."""
        telemetry.configure(LogSettings().level, LogSettings().format)
        self._database = await asyncio.to_thread(Database.open, self._data_dir, self._room)
        self._catalog = SqliteCatalog(self._database)
        self._constants = await self._catalog.establish(embedded_constants(), self._clock.now_ms())
        self._store = SqliteTaskStore(self._database)
        self._keys = SqliteKeyStore(self._database)
        self._checkpoints = SqliteCheckpointStore(self._database)
        self._outbox = Outbox(self._database)
        self._membership = InProcessMembership(self._database, self._constants.ranges)
        self._poller = self._make_poller()
        self._owners = LocalOwners(self._poller, self._clock)
        self._outcomes = OwnerOutcomes(self._owners, self._store, self._clock)
        deliveries = SqliteDeliveries(self._outbox)
        self._hub = WorkerHub(deliveries, self._outcomes, self._clock)
        reach = replace(ANYWHERE, smtp_logins=self._logins)
        self._push = PushRole(self._catalog, deliveries, self._outcomes, self._clock, reach)
        parts = (self._poller.work(), self._keep_house(), self._outcomes.run())
        self._working = [asyncio.create_task(part) for part in parts]
        self._metrics.add(lambda: of_poller(self._poller))
        await self._serve()

    def _make_poller(self) -> PollerRole:
        return PollerRole(
            Member("embedded", ("api", "poller", "deliver")),
            self._membership,
            self._make_journal,
            self._store,
            self._checkpoints,
            self._catalog,
            self._clock,
            self._constants,
            LaneLimits(transaction_interval_ms=TRANSACTION_INTERVAL_MS, transaction_bytes_max=TRANSACTION_BYTES_MAX),
            _nothing_to_prepare,
        )

    def _make_journal(self, lane: int) -> SqliteJournal:
        self._journal = SqliteJournal(self._database, self._outbox, self._constants.journal_name, lane)
        return self._journal

    async def _serve(self) -> None:
        directory = Directory(self._catalog, self._clock)
        self._api = ApiRole(
            "embedded",
            self._store,
            self._keys,
            self._catalog,
            directory,
            self._owners,
            None,
            self._clock,
            self._constants,
            Limits(),
        )
        self._api.on_pushed(self._push.queues.serve)
        self._metrics.add(self._push.metrics)
        self._metrics.add(lambda: of_outcomes(self._outcomes))
        worker = WorkerServicer(self._hub, directory, lambda: [self._address])
        services = [*self._api.services(), worker.service()]
        self._metrics.add(lambda: of_tasks(self._api.tasks))
        metrics = await self._serve_metrics()
        http = await self._bind_http()
        self._server = GrpcServer(self._settings.grpc_address, services, with_reflection=True)
        self._address = await self._server.start()
        while not (self._poller.lane and len(self._poller.lane.active()) == self._constants.ranges):
            await self._clock.sleep(0.005)
            if self._poller.lane and self._poller.lane.alarmed():
                raise ConfigError(f"data directory {self._data_dir}: its journal does not match its checkpoint")
            for task in self._working:
                if task.done():
                    task.result()
        self._working.append(asyncio.create_task(self._push.run()))
        await self._server.set_serving("", True)
        self._started = True
        log.info("ready", mode="embedded", grpc=self._address, http=http, metrics=metrics, data=str(self._data_dir))
        if self._ready:
            self._ready(self._address, http)
        if self._rest:
            self._working.append(asyncio.create_task(self._rest.serve()))

    async def _serve_metrics(self) -> str:
        if not self._settings.metrics_address:
            return ""
        self._metrics_server = MetricsServer(
            self._settings.metrics_address, self._metrics.gather, lambda: self._started
        )
        try:
            return await self._metrics_server.start()
        except ConfigError as error:
            raise ConfigError(f"metrics: {error}; --metrics-address names another address, or '' for none") from error

    async def _bind_http(self) -> str:
        address = self._settings.http_address
        if not address:
            return ""
        rest = self._api.rest(address, lambda: self._started, self._metrics.gather, SHUTDOWN_S_MAX / 2)
        try:
            bound = await rest.start()
        except ConfigError as error:
            if not self._http_may_miss:
                raise ConfigError(f"REST: {error}; --http-address names another address, or '' for none") from error
            log.warning("no REST: --http-address names another address, or '' for none", error=str(error))
            return ""
        self._rest = rest
        return bound

    async def work(self) -> None:
        """Until one of its parts fails."""
        done, _ = await asyncio.wait(self._working, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def _keep_house(self) -> None:
        """Drops what is past its retention, and the journal behind every checkpoint."""
        while True:
            await self._clock.sleep(HOUSEKEEPING_S)
            try:
                await self._forget()
            except Unavailable as error:
                log.warning("housekeeping waits", error=str(error), recurring=True)

    async def _forget(self) -> None:
        """All of it: more may have come since the last time than one step removes. Raises Unavailable."""
        while await self._store.purge(self._clock.now_ms(), self._constants.retention_ms) >= PURGE_ROWS_MAX:
            pass
        while await self._keys.purge(self._clock.now_ms()) >= PURGE_KEYS_MAX:
            pass
        found = [await self._checkpoints.load(r) for r in range(self._constants.ranges)]
        if self._poller.lane and all(found):
            before = min(c.applied_offset for c in found if c)
            while await self._journal.trim(self._journal.lane, before):
                pass

    async def stop(self) -> None:
        """Takes no more, finishes what is at work, stores progress, closes; also where the start ended half-way."""
        self._started = False
        if hasattr(self, "_server"):
            endings = [self._server.stop(SHUTDOWN_S_MAX / 2), self._hub.drain(SHUTDOWN_S_MAX / 2)]
            endings.append(self._push.drain(SHUTDOWN_S_MAX / 2))
            await asyncio.gather(*endings, *([self._rest.stop()] if self._rest else []))
            await self._api.close()
        if hasattr(self, "_working"):
            self._poller.stop()
            for task in self._working:
                task.cancel()
            await asyncio.wait(self._working, timeout=SHUTDOWN_S_MAX)
        if hasattr(self, "_database"):
            await self._database.close()
        if self._metrics_server:
            await self._metrics_server.stop()


async def _nothing_to_prepare() -> None:
    """The data directory was prepared when it was opened."""
