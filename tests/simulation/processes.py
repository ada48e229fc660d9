"""Nodes: each a series of processes that are built of the product's own parts, as app.node builds them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from bucketsched.adapters.owners_grpc import RPC_TIMEOUT_S, GrpcOwners
from bucketsched.app.checkpoints import readable_checkpoints
from bucketsched.app.poller_role import PollerRole
from bucketsched.coordinator.death_watch import DeathWatch
from bucketsched.coordinator.planning import Coordinator, PlanningLimits
from bucketsched.coordinator.trimmer import JournalTrimmer
from bucketsched.core.errors import Unavailable
from bucketsched.core.execution import AttemptReport, EndResult
from bucketsched.core.task import TaskRow
from bucketsched.core.task_change import TaskChange
from bucketsched.core.validation import Limits
from bucketsched.delivery.hub import WorkerHub
from bucketsched.delivery.outcomes import OwnerOutcomes
from bucketsched.encoding.attempts import report_message, report_of
from bucketsched.encoding.changes import change_of, change_request
from bucketsched.encoding.rows import row_from_message, row_message
from bucketsched.poller.limits import LaneLimits
from bucketsched.ports import CancelResult, Changed, HintAnswer, Member
from bucketsched.service.directory import Directory
from bucketsched.service.tasks import TaskService

from .broker import SimJournal
from .clock import NodeClock
from .consumers import SimDeliveries, Worker
from .ensemble import SimMembership, SimPlanStore
from .loop import Process
from .network import Network, NotSent, Unanswered
from .replicas import SimCatalog, SimCheckpointStore, SimKeyStore, SimTaskStore
from .servers import Servers

Result = TypeVar("Result")
LOOK_S = 1.0
RETRY_S = 0.5
PEER_LOOK_S = 3.0
READY_S = 1.0
SHUTDOWN_S = 8.0


class NodeDown(Exception):
    """Nobody listens at the node's address."""


@dataclass(slots=True)
class NodeSettings:
    """What a node is."""

    name: str
    roles: tuple[str, ...]
    lane: LaneLimits
    retention_ms: int = 0
    """Of the journal, where this node trims it; 0: it does not."""


class Node:
    """A host on which one process at a time runs. `life` is that process; None: there is none."""

    def __init__(self, settings: NodeSettings, servers: Servers, clock: NodeClock, rng: random.Random) -> None:
        self.settings, self.servers, self.clock, self.rng = settings, servers, clock, rng
        self.name = settings.name
        self.life: Life | None = None
        self.lives: list[Life] = []
        self.peers: dict[str, Node] = {}
        self.on_death: Callable[[Node], None] = lambda node: None
        self.objection = ""
        """Why it should own no ranges: its clock is wrong."""
        self.mourners: list[asyncio.Future[None]] = []
        """Who waits for the end of the present process."""

    def start(self) -> None:
        """A new process, where there is none."""
        if self.life is None:
            process = Process(f"{self.name}.{len(self.lives) + 1}")
            process.on_death = lambda: self._died(process)
            self.servers.trace.note(process.name, "starts")
            self.life = Life(self, process)
            self.lives.append(self.life)
            self.life.begin()

    def _died(self, process: Process) -> None:
        self.servers.trace.note(process.name, f"dies after {process.steps} steps")
        if self.life is not None and self.life.process is process:
            self.life = None
            mourners, self.mourners = self.mourners, []
            for mourner in mourners:
                if not mourner.done():
                    mourner.set_result(None)
            self.on_death(self)

    def serve(self, work: Callable[[Life], Coroutine[Any, Any, Result]]) -> asyncio.Task[Result]:
        """What a request that has arrived here does. Raises NodeDown."""
        if self.life is None or not self.life.serving:
            raise NodeDown(self.name)
        return self.servers.loop.spawn(self.life.process, work(self.life))


class Life:
    """One process of a node."""

    def __init__(self, node: Node, process: Process) -> None:
        self.node, self.process = node, process
        self.serving = False
        self.poller: PollerRole | None = None
        self.tasks: TaskService | None = None
        self.main: asyncio.Task[None] | None = None
        self._stopping = False

    def begin(self) -> None:
        """Starts it."""
        self.main = self.node.servers.loop.spawn(self.process, self._run())

    async def _run(self) -> None:
        """As app.process does: until it fails, or was told to stop."""
        work = asyncio.create_task(self._work())
        self._working = work
        try:
            await asyncio.wait([work])
            error = None if work.cancelled() else work.exception()
            if error is not None and not isinstance(error, Unavailable):
                self.node.servers.invariants.fail("alive", f"{self.process} ends with {error!r}", self.process.name)
        finally:
            self.process.kill()

    def stop(self) -> None:
        """As SIGTERM does: hands over first."""
        if not self._stopping:
            self._stopping = True
            self._leaving = self.node.servers.loop.spawn(self.process, self._leave())

    async def _leave(self) -> None:
        if self.poller is not None:
            self.poller.stop()
            await self.poller.leave(SHUTDOWN_S / 2)
        self._working.cancel()

    # ---- what it is made of

    async def _work(self) -> None:
        node, servers = self.node, self.node.servers
        network, roles = servers.network, node.settings.roles
        store = SimTaskStore(servers.cassandra, network, node.name)
        checkpoints = SimCheckpointStore(servers.cassandra, network, node.name)
        catalog = SimCatalog(servers.catalog, network, node.name)
        self.membership = SimMembership(servers.ensemble, network, node.name)

        async def prepare() -> None:
            """Puts the epochs behind the checkpoints', as app.node does."""
            found = await readable_checkpoints(checkpoints, servers.constants.ranges)
            await self.membership.raise_epochs(found)

        member = Member(self.process.name, roles, -1, node.name)
        if "poller" in roles:
            self.poller = PollerRole(
                member,
                self.membership,
                lambda lane: SimJournal(servers.broker, network, node.name, lane),
                store,
                checkpoints,
                catalog,
                node.clock,
                servers.constants,
                node.settings.lane,
                prepare,
                SimReadyCalls(node),
            )
            self.poller.objection = lambda: node.objection
        owners = SimOwners(self, self.membership, servers.constants, node.clock, self.process.name, self.poller)
        if "api" in roles:
            self._make_api(store, catalog, owners)
        self.serving = True
        working = [asyncio.create_task(part) for part in self._parts(member, store, owners)]
        try:
            done, _ = await asyncio.wait(working, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            self.serving = False
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
            if self.tasks is not None:
                await self.tasks.close()
            await self.membership.leave()

    def _make_api(self, store: SimTaskStore, catalog: SimCatalog, owners: SimOwners) -> None:
        node, servers = self.node, self.node.servers
        self.tasks = TaskService(
            store,
            SimKeyStore(servers.keys, node.servers.network, node.name),
            Directory(catalog, node.clock),
            owners,
            node.clock,
            servers.constants,
            Limits(create_timeout_ms=4_000),
            node.rng.getrandbits,
        )

    def _parts(self, member: Member, store: SimTaskStore, owners: SimOwners) -> list[Coroutine[Any, Any, None]]:
        node, servers = self.node, self.node.servers
        parts: list[Coroutine[Any, Any, None]] = []
        if self.poller is not None:
            parts.append(self.poller.work())
        else:
            parts.append(self._stay_member(member))
        if "deliver" in node.settings.roles:
            outcomes = OwnerOutcomes(owners, store, node.clock)
            parts.append(outcomes.run())
            hub = WorkerHub(SimDeliveries(servers.groups, servers.network, node.name), outcomes, node.clock)
            for number in range(node.rng.randrange(1, 3)):
                worker = Worker(hub, servers.worker_queue, servers.invariants, node.rng)
                worker.healthy = lambda: servers.healed
                parts.append(worker.run(f"{self.process.name}-{number}"))
        if node.settings.retention_ms:
            reader = SimJournal(servers.broker, servers.network, node.name, 0)
            stored = SimCheckpointStore(servers.cassandra, servers.network, node.name)
            retention_ms = node.settings.retention_ms
            parts.append(JournalTrimmer(reader, stored, servers.constants, node.clock, retention_ms).run())
        if "coordinator" in node.settings.roles:
            plans = SimPlanStore(servers.ensemble, servers.network, node.name, self.process.name)
            parts.append(Coordinator(plans, node.clock, PlanningLimits(poll_s=2.0), self.membership).run())
            parts.append(DeathWatch(self.membership, plans, SimPeers(node), node.clock, self.process.name).run())
        return parts

    async def _stay_member(self, member: Member) -> None:
        joined = False
        while True:
            if not joined or self.membership.session_lost():
                try:
                    await self.membership.join(member, wants_lane=False)
                    joined = True
                except Unavailable:
                    await self.node.clock.sleep(RETRY_S)
            await self.node.clock.sleep(LOOK_S)


class SimPeers:
    """Implements ports.Peers: a death is known at once, unless the link is cut at that moment."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def died(self, address: str) -> None:
        """See ports.Peers."""
        there, network = self._node.peers[address], self._node.servers.network
        while there.life is not None or network.link(self._node.name, address).cut:
            death = asyncio.get_running_loop().create_future()
            there.mourners.append(death)
            await asyncio.wait([death], timeout=PEER_LOOK_S)
        await asyncio.sleep(network.hop_s() or PEER_LOOK_S)


class SimReadyCalls:
    """Implements ports.ReadyCalls."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def ready(self, owner: Member, range_ids: Sequence[int], lane: int) -> bool:
        """See ports.ReadyCalls."""
        there = self._node.peers[owner.internal_address]

        async def tell(life: Life) -> None:
            if life.poller is not None:
                await life.poller.ready(range_ids, lane)

        try:
            await self._node.servers.network.call(self._node.name, there.name, lambda: there.serve(tell), READY_S)
        except (NotSent, Unanswered, NodeDown):
            return False
        return True


class SimLink:
    """The way from one process to the poller of another node, as owners_grpc's link is."""

    def __init__(self, network: Network, here: str, there: Node) -> None:
        self._network, self._here, self._there = network, here, there

    async def hint(self, rows: Sequence[TaskRow]) -> list[HintAnswer | None]:
        """One answer a row; None: not reached."""
        sent = [row_message(row) for row in rows]
        answers = await self._ask(lambda poller: poller.hint([row_from_message(message) for message in sent]))
        return list(answers) if answers is not None else [None] * len(rows)

    async def admit(self, row: TaskRow) -> HintAnswer | None:
        """None: not reached."""
        sent = row_message(row)
        return await self._ask(lambda poller: poller.admit(row_from_message(sent)))

    async def cancel(self, namespace_id: bytes, task_id: bytes) -> CancelResult | HintAnswer | None:
        """None: not reached."""
        return await self._ask(lambda poller: poller.cancel(namespace_id, task_id))

    async def finish(self, reports: Sequence[AttemptReport]) -> list[EndResult | None]:
        """One answer a report; None: not known."""
        sent = [report_message(report) for report in reports]
        answers = await self._ask(lambda poller: poller.finish([report_of(message) for message in sent]))
        if answers is None:
            return [None] * len(reports)
        return [answer if isinstance(answer, EndResult) else None for answer in answers]

    async def change(self, namespace_id: bytes, task_id: bytes, change: TaskChange) -> Changed | HintAnswer | None:
        """None: not reached."""
        sent = change_request(namespace_id, task_id, change)
        answer = await self._ask(lambda poller: poller.change(namespace_id, task_id, change_of(sent)))
        if isinstance(answer, Changed) and answer.row is not None:
            return Changed(answer.result, row_from_message(row_message(answer.row)))
        return answer

    async def close(self) -> None:
        """Nothing is kept."""

    async def _ask(self, question: Callable[[PollerRole], Coroutine[Any, Any, Result]]) -> Result | None:
        """Who stops waiting has the question cancelled at the other side, as gRPC does."""
        under_way: list[asyncio.Task[Result]] = []

        async def ask(life: Life) -> Result:
            if life.poller is None:
                raise NodeDown(life.node.name)
            return await question(life.poller)

        def effect() -> asyncio.Task[Result]:
            under_way.append(self._there.serve(ask))
            return under_way[0]

        try:
            result: Result = await self._network.call(self._here, self._there.name, effect, RPC_TIMEOUT_S)
            return result
        except (NotSent, Unanswered, NodeDown, Unavailable):
            return None
        finally:
            for task in under_way:
                if not task.done():
                    self._network.loop.after(0.001, task.cancel)


class SimOwners(GrpcOwners):
    """The product's own, over simulated links."""

    def __init__(self, life: Life, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._life = life

    def _link(self, member: Member) -> Any:
        node = self._life.node
        there = node.peers.get(member.internal_address)
        return SimLink(node.servers.network, node.name, there) if there is not None else None
