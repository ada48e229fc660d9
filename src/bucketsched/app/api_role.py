"""The api role: the public services over the use cases, the same in both modes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import TYPE_CHECKING

from ..api.info import InfoServicer
from ..api.queues import NamespaceServicer, QueueServicer
from ..api.rest.server import RestServer
from ..api.rpc import Service
from ..api.tasks import TaskServicer
from ..config import is_loopback, split_address
from ..core.catalog import Queue
from ..core.cluster import ClusterConstants
from ..core.validation import Limits
from ..ports import Catalog, Clock, KeyStore, Owners, TaskStore, Topics
from ..service.directory import Directory
from ..service.namespaces import NamespaceService
from ..service.queries import TaskQueries
from ..service.queues import QueueService
from ..service.tasks import TaskService

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from starlette.types import ASGIApp


class ApiRole:
    """Builds the services. `topics` None: embedded mode, where queues are for workers only."""

    def __init__(
        self,
        mode: str,
        store: TaskStore,
        keys: KeyStore,
        catalog: Catalog,
        directory: Directory,
        owners: Owners,
        topics: Topics | None,
        clock: Clock,
        constants: ClusterConstants,
        limits: Limits,
    ) -> None:
        self.tasks = TaskService(store, keys, directory, owners, clock, constants, limits)
        self._queries = TaskQueries(store, catalog, directory, clock, constants, limits)
        self._queues = QueueService(catalog, directory, topics, clock)
        self._mode, self._limits = mode, limits
        self._services = [
            TaskServicer(self.tasks, self._queries).service(),
            QueueServicer(self._queues).service(),
            NamespaceServicer(NamespaceService(catalog, clock)).service(),
            InfoServicer(version("bucketsched"), mode, constants.shards, limits, clock).service(),
        ]

    def services(self) -> list[Service]:
        """To be added to a server."""
        return self._services

    def rest(
        self, address: str, healthy: Callable[[], bool], gather: Callable[[], Iterable[Metric]], drain_s: float
    ) -> RestServer:
        """The same use cases over HTTP."""

        def build() -> ASGIApp:
            from ..api.rest.application import RestServices, application

            about = self._mode, version("bucketsched")
            services = RestServices(*about, self.tasks, self._queries, self._queues, self._limits, healthy, gather)
            return application(services, is_loopback(split_address(address)[0]))

        return RestServer(address, build, drain_s)

    def on_pushed(self, told: Callable[[Queue], None]) -> None:
        """`told` hears of each pushed queue that is created or changed through this process."""
        self._queues.on_pushed = told

    async def close(self) -> None:
        """Ends what goes on behind answered requests."""
        await self.tasks.close()
