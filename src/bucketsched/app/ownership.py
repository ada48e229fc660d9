"""A cluster's ownership for operators: read from ZooKeeper and ordered there, whatever processes run.

The cluster is the one of the settings' keyspace. Where Cassandra does not answer, it is the only one in ZooKeeper below
the settings' root, so that ownership can be seen and changed all the same.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from ..adapters.cassandra.catalog import CassandraCatalog
from ..adapters.cassandra.session import CassandraSession
from ..adapters.reports_grpc import GrpcReports
from ..adapters.zookeeper.plan_store import ZooKeeperPlanStore
from ..adapters.zookeeper.tree import clusters_below
from ..config import Settings
from ..coordinator.administration import Administration, Picture
from ..core.cluster import ClusterConstants
from ..core.errors import ConfigError, Unavailable
from ..core.rebalancing import Progress
from ..ports import RangeReport, Rebalance, RebalanceState

LOOK_S = 0.3
"""How often what was ordered is looked at while it is waited for."""
CONSTANTS_S_MAX = 5.0
"""How long Cassandra is asked which cluster it is."""

ENDING = (signal.SIGINT, signal.SIGTERM)
Say = Callable[[str], None]


class Ownership:
    """For as long as a command takes. Made by `ownership`."""

    def __init__(
        self, constants: ClusterConstants, shards_known: bool, administration: Administration, reports: GrpcReports
    ) -> None:
        self.constants = constants
        self.shards_known = shards_known
        """False: Cassandra did not answer, and `constants` has only the ranges right."""
        self.administration = administration
        self._reports = reports

    async def reports(self, picture: Picture) -> dict[int, RangeReport]:
        """What the owners of ranges say of them; those that can't be reached are left out."""
        return await self._reports.of([m for m in picture.members if m.lane >= 0])

    async def until_drained(self, name: str, say: Say) -> None:
        """Waits until a node has no range any more, or is not there."""
        before = -1
        while True:
            picture = await self.administration.look()
            node = picture.node_named(name)
            left = sum(s.held + s.planned for s in picture.nodes() if s.name == node and s.member is not None)
            held = sum(s.held for s in picture.nodes() if s.name == node)
            if not left:
                return
            if held != before:
                say(f"{node} still has {held} ranges")
            before = held
            await asyncio.sleep(LOOK_S)

    async def until_rebalanced(self, ordered: Rebalance, say: Say) -> tuple[RebalanceState, Progress]:
        """Waits until nothing of it is under way. SIGINT and SIGTERM, or being cancelled, cancel the rebalance."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        for number in ENDING:  # also where they were ignored, as for what runs in the background
            loop.add_signal_handler(number, task.cancel)
        try:
            return await self._follow(ordered, say)
        except asyncio.CancelledError:
            if await self.administration.cancel():
                say("cancelled: what has begun is carried out, the rest stays where it is")
            raise
        finally:
            for number in ENDING:
                loop.remove_signal_handler(number)

    async def _follow(self, ordered: Rebalance, say: Say) -> tuple[RebalanceState, Progress]:
        before = (-1, -1)
        while True:
            picture = await self.administration.look()
            now, found = picture.orders.rebalance, picture.progress()
            if now is None or now.rebalance_id != ordered.rebalance_id:
                raise Unavailable(f"rebalance {ordered.rebalance_id} was followed by another one")
            if (len(found.done), len(found.moving)) != before:
                before = (len(found.done), len(found.moving))
                skipped = f", {len(found.skipped)} skipped" if found.skipped else ""
                failed = f", {len(found.failed)} failed" if found.failed else ""
                say(f"{len(found.done)} of {len(now.moves)} moved, {len(found.moving)} under way{skipped}{failed}")
            over = now.state is RebalanceState.DONE or not found.moving
            if now.state is not RebalanceState.RUNNING and over:
                return now.state, found
            await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def ownership(settings: Settings, say: Say) -> AsyncIterator[Ownership]:
    """Connects. Raises ConfigError, Unavailable."""
    constants, shards_known = await _constants(settings, say)
    store, reports = ZooKeeperPlanStore(settings.zookeeper, constants), GrpcReports()
    try:
        yield Ownership(constants, shards_known, Administration(store), reports)
    finally:
        await reports.close()
        await store.resign()


async def _constants(settings: Settings, say: Say) -> tuple[ClusterConstants, bool]:
    try:
        async with asyncio.timeout(CONSTANTS_S_MAX):
            return await _stored_constants(settings), True
    except (Unavailable, TimeoutError) as error:
        say(f"Cassandra does not answer, so the cluster is looked for in ZooKeeper: {error or 'time-out'}")
    found = await clusters_below(settings.zookeeper)
    if len(found) != 1:
        names = ", ".join(str(cluster_id) for cluster_id in found) or "none"
        raise ConfigError(f"setting zookeeper.root: there must be one cluster below {settings.zookeeper.root}: {names}")
    cluster_id, ranges = next(iter(found.items()))
    return ClusterConstants(cluster_id, shards=ranges, ranges=ranges), False


async def _stored_constants(settings: Settings) -> ClusterConstants:
    session = await CassandraSession.connect(settings.cassandra)
    try:
        return await (await CassandraCatalog.open(session)).constants_in(settings.cassandra.keyspace)
    finally:
        await session.close()
