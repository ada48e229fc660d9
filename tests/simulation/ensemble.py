"""ZooKeeper: sessions that end when they are not heard of, late or early; leases, members and the plan."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from bucketsched.adapters.memory.leases import (
    MemoryLeases,
    MemoryLeaseWorld,
    MemoryMembership,
    MemoryPlanStore,
    RangeState,
    Session,
    View,
)
from bucketsched.core.checkpoint import Checkpoint
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.errors import OwnershipLost, Unavailable
from bucketsched.ports import Lease, Member, Plan, RangeStatus

from .loop import CURRENT, Process, VirtualLoop, at_once
from .network import Network, NotSent, Unanswered

Result = TypeVar("Result")
ZOOKEEPER = "zk"
REQUEST_S = 1.0
OPERATION_S_MAX = 6.0
TICK_S = 0.4
RETRY_S = 0.1
FORSAKEN_S = 1.0
ELECTION_LOOK_S = 1.5


@dataclass(slots=True)
class Heard:
    """When a session was heard of last, and who holds it. `lateness_s`: how much later than it may it is ended."""

    process: Process
    node: str
    wanted: Callable[[], bool]
    at: float
    lateness_s: float = 0.0


class Ensemble(MemoryLeaseWorld):
    """The servers, and their watch over sessions."""

    def __init__(
        self, loop: VirtualLoop, rng: random.Random, network: Network, constants: ClusterConstants, session_s: float
    ) -> None:
        super().__init__(constants)
        self._loop, self._rng, self._network, self._session_s = loop, rng, network, session_s
        self._heard: dict[Session, Heard] = {}
        self.lateness_s_max = 0.0
        self.watchers: list[Callable[[], None]] = []
        loop.after(TICK_S, self._tick)

    async def reach(self) -> None:
        """Whoever asks is here already."""

    def change(self) -> None:
        """See MemoryLeaseWorld."""
        super().change()
        for watcher in self.watchers:
            watcher()

    def connected(self, process: Process, node: str) -> bool:
        """True if the process can be heard of."""
        return process.alive and not process.paused and not self._network.link(node, ZOOKEEPER).cut

    def keep(self, session: Session, process: Process, node: str, wanted: Callable[[], bool]) -> None:
        """Watches over a session from now on; it is heard of while it is wanted."""
        if session not in self._heard:
            late = self._rng.uniform(0, self.lateness_s_max) if self.lateness_s_max else 0.0
            self._heard[session] = Heard(process, node, wanted, self._loop.time(), late)

    def _tick(self) -> None:
        now = self._loop.time()
        for session, heard in list(self._heard.items()):
            if not session.alive:
                del self._heard[session]
            elif heard.wanted() and self.connected(heard.process, heard.node):
                heard.at = now
            elif now - heard.at > self._session_s + heard.lateness_s:
                del self._heard[session]
                self.end(session)
        for watcher in self.watchers:
            watcher()
        self._loop.after(TICK_S, self._tick)

    def restore_empty(self, checkpoints: Mapping[int, Checkpoint]) -> None:
        """All that it knew is lost; then `admin migrate` is run again."""
        for session in self.living():
            self.end(session)
        self.ranges = {range_id: RangeState() for range_id in self.ranges}
        self.plan = Plan(0)
        self.raise_epochs(checkpoints)

    def end_those_of(self, process: Process) -> None:
        """Ends all sessions of a process."""
        for session in [session for session, heard in self._heard.items() if heard.process is process]:
            self.end(session)

    def living(self) -> list[Session]:
        """Those that live."""
        return [session for session in self._heard if session.alive]


class SimMembership:
    """Implements ports.Membership for one process; its view follows the servers' as the network lets it."""

    def __init__(self, ensemble: Ensemble, network: Network, node: str) -> None:
        process = CURRENT.get()
        assert process is not None
        self._ensemble, self._network, self._node, self._process = ensemble, network, node, process
        self._server = MemoryMembership(ensemble)
        self._session: Session | None = None
        self._leases: SimLeases | None = None
        self._lost = False
        self._view = View()
        self._view_version = -1
        self._version = self._seen = 0
        self._moved = asyncio.Event()
        ensemble.watchers.append(self._watch)

    def _watch(self) -> None:
        """The servers' state may have changed."""
        if not self._process.alive or self._process.paused:
            return  # one that stands still learns of it some time after it goes on
        stale = self._view_version != self._ensemble.version
        ended = self._session is not None and not self._session.alive and not self._lost
        if (stale or ended) and not self._network.link(self._node, ZOOKEEPER).cut:
            self._view_version = self._ensemble.version
            self._network.loop.after(self._network.hop_s() or TICK_S, self._refresh, self._ensemble.version)

    def _refresh(self, version: int) -> None:
        if self._network.link(self._node, ZOOKEEPER).cut:
            self._view_version = -1
            return
        self._view = self._ensemble.view
        self._lost = self._session is not None and not self._session.alive
        self._version += 1
        self._moved.set()
        self._moved = asyncio.Event()

    async def join(self, member: Member, wants_lane: bool) -> Member:
        """See ports.Membership."""
        await self.leave()

        def effect() -> tuple[Member, Session]:
            joined = at_once(self._server.join(member, wants_lane))
            session = self._ensemble.joined[member.member_id][0]
            self._ensemble.keep(session, self._process, self._node, lambda: self._session is session)
            return joined, session

        joined, session = await _ask(self._network, self._node, effect)
        self._session, self._lost = session, False
        if wants_lane:
            self._leases = SimLeases(self._ensemble, self._network, self._node, session, joined.lane)
        self._watch()
        return joined

    async def raise_epochs(self, checkpoints: Mapping[int, Checkpoint]) -> None:
        """What a start does with the checkpoints. Raises Unavailable."""

        def effect() -> None:
            if any(self._ensemble.ranges[r].epoch < checkpoint.epoch for r, checkpoint in checkpoints.items()):
                self._ensemble.raise_epochs(checkpoints)

        await _ask(self._network, self._node, effect)

    def leases(self) -> SimLeases:
        """See app.poller_role.LaneMembership."""
        if self._leases is None:
            raise OwnershipLost("this process has no lane")
        return self._leases

    def members(self) -> list[Member]:
        """See ports.Membership."""
        return sorted(self._view.members, key=lambda member: member.member_id)

    def plan(self) -> Plan:
        """See ports.Membership."""
        return self._view.plan

    def owner_of(self, range_id: int) -> Member | None:
        """See ports.Membership."""
        return self._view.owners.get(range_id)

    async def changed(self, seen: int | None = None) -> int:
        """See ports.Membership."""
        last = self._seen if seen is None else seen
        while self._version == last:
            await self._moved.wait()
        if seen is None:
            self._seen = self._version
        return self._version

    async def announce_leaving(self, leaving: bool = True) -> None:
        """See ports.Membership."""
        await _ask(self._network, self._node, lambda: at_once(self._server.announce_leaving(leaving)))

    async def announce_ailing(self, ailing: str) -> None:
        """See ports.Membership."""
        await _ask(self._network, self._node, lambda: at_once(self._server.announce_ailing(ailing)))

    def session_lost(self) -> bool:
        """See ports.Membership."""
        return self._lost

    async def leave(self) -> None:
        """See ports.Membership."""
        session, self._session, self._leases = self._session, None, None
        if session is not None and session.alive:
            try:
                await self._network.call(self._node, ZOOKEEPER, lambda: self._ensemble.end(session), REQUEST_S)
            except (NotSent, Unanswered):
                pass  # it is not heard of any more


class SimLeases:
    """Implements ports.Leases for one joined lane, as ZooKeeper's adapter does: in doubt it asks again for a while."""

    def __init__(self, ensemble: Ensemble, network: Network, node: str, session: Session, lane: int) -> None:
        self._ensemble, self._network, self._node, self._session = ensemble, network, node, session
        self._server = MemoryLeases(ensemble, session, lane)
        self._granted: dict[int, int] = {}
        self._errands: set[asyncio.Task[None]] = set()

    async def acquire(self, range_id: int) -> Lease:
        """See ports.Leases. A lease whose grant was not heard of is dropped later on."""
        granted: list[Lease] = []

        def effect() -> Lease:
            if granted and self._ensemble.ranges[range_id].epoch == granted[-1].epoch:
                return granted[-1]
            granted.append(at_once(self._server.acquire(range_id)))
            return granted[-1]

        try:
            lease = await self._until_answered(effect)
        except (Unavailable, asyncio.CancelledError):
            self._forsake(range_id, granted)
            raise
        self._granted[range_id] = lease.epoch
        return lease

    def _forsake(self, range_id: int, granted: list[Lease]) -> None:
        process = CURRENT.get()
        if process is None or process.alive:
            errand = asyncio.get_running_loop().create_task(self._undo(range_id, granted))
            self._errands.add(errand)
            errand.add_done_callback(self._errands.discard)

    async def _undo(self, range_id: int, granted: list[Lease]) -> None:
        def effect() -> None:
            state = self._ensemble.ranges[range_id]
            unwanted = granted and state.epoch == granted[-1].epoch > self._granted.get(range_id, 0)
            if unwanted and state.holder is self._session:
                state.holder = None
                self._ensemble.change()

        for _ in range(3):
            await asyncio.sleep(FORSAKEN_S)
            try:
                await self._network.call(self._node, ZOOKEEPER, effect, REQUEST_S)
            except (NotSent, Unanswered):
                pass

    async def clear_predecessors(self, lease: Lease) -> None:
        """See ports.Leases."""
        await self._until_answered(lambda: at_once(self._server.clear_predecessors(lease)))

    async def validate(self, leases: Sequence[Lease]) -> set[int]:
        """See ports.Leases."""
        return await self._until_answered(lambda: at_once(self._server.validate(leases)))

    async def release(self, lease: Lease) -> None:
        """See ports.Leases."""
        tries = 0

        def effect() -> None:
            nonlocal tries
            tries += 1
            state = self._ensemble.ranges[lease.range_id]
            if tries == 1 or not (state.epoch == lease.epoch and state.released):
                at_once(self._server.release(lease))

        await self._until_answered(effect)

    async def _until_answered(self, effect: Callable[[], Result]) -> Result:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + OPERATION_S_MAX
        while True:
            try:
                result: Result = await self._network.call(self._node, ZOOKEEPER, effect, REQUEST_S)
                return result
            except (NotSent, Unanswered) as error:
                if loop.time() >= deadline:
                    raise Unavailable(str(error)) from error
                await asyncio.sleep(RETRY_S)


class SimPlanStore:
    """Implements ports.PlanStore for one candidate."""

    def __init__(self, ensemble: Ensemble, network: Network, node: str, member_id: str) -> None:
        process = CURRENT.get()
        assert process is not None
        self._ensemble, self._network, self._node, self._process = ensemble, network, node, process
        self._server = MemoryPlanStore(ensemble, member_id)

    async def campaign(self) -> None:
        """See ports.PlanStore."""

        def effect() -> bool:
            elected = self._server.elected()
            self._ensemble.keep(self._server._session, self._process, self._node, lambda: True)
            return elected

        while True:
            if await _ask(self._network, self._node, effect):
                return
            await asyncio.sleep(ELECTION_LOOK_S)

    async def read(self) -> tuple[Plan, list[Member], list[RangeStatus]]:
        """See ports.PlanStore."""
        return await self._ask(self._server.read)

    async def read_plan(self) -> tuple[Plan, list[Member]]:
        """See ports.PlanStore."""
        return await self._ask(self._server.read_plan)

    async def write(self, plan: Plan) -> Plan:
        """See ports.PlanStore."""
        return await self._ask(lambda: self._server.write(plan))

    async def evict(self, member: Member) -> bool:
        """See ports.PlanStore."""
        return await self._ask(lambda: self._server.evict(member))

    async def _ask(self, request: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        return await _ask(self._network, self._node, lambda: at_once(request()))

    async def resign(self) -> None:
        """See ports.PlanStore."""
        try:
            await self._network.call(self._node, ZOOKEEPER, self._server.expire, REQUEST_S)
        except (NotSent, Unanswered):
            pass


async def _ask(network: Network, node: str, effect: Callable[[], Result]) -> Result:
    try:
        result: Result = await network.call(node, ZOOKEEPER, effect, REQUEST_S)
        return result
    except (NotSent, Unanswered) as error:
        raise Unavailable(str(error)) from error
