"""The api role: the public services over the use cases, the same in both modes."""

from __future__ import annotations

from importlib.metadata import version

from ..api.info import InfoServicer
from ..api.queues import NamespaceServicer, QueueServicer
from ..api.rpc import Service
from ..api.tasks import TaskServicer
from ..core.cluster import ClusterConstants
from ..core.validation import Limits
from ..ports import Catalog, Clock, Owners, TaskStore, Topics
from ..service.directory import Directory
from ..service.namespaces import NamespaceService
from ..service.queues import QueueService
from ..service.tasks import TaskService


class ApiRole:
    """Builds the services. `topics` None: embedded mode, where queues are for workers only."""

    def __init__(
        self,
        mode: str,
        store: TaskStore,
        catalog: Catalog,
        directory: Directory,
        owners: Owners,
        topics: Topics | None,
        clock: Clock,
        constants: ClusterConstants,
        limits: Limits,
    ) -> None:
        self.tasks = TaskService(store, directory, owners, clock, constants, limits)
        queues = QueueService(catalog, directory, topics, clock)
        self._services = [
            TaskServicer(self.tasks).service(),
            QueueServicer(queues).service(),
            NamespaceServicer(NamespaceService(catalog, clock)).service(),
            InfoServicer(version("bucketsched"), mode, constants.shards, limits, clock).service(),
        ]

    def services(self) -> list[Service]:
        """To be added to a server."""
        return self._services

    async def close(self) -> None:
        """Ends what goes on behind answered requests."""
        await self.tasks.close()
