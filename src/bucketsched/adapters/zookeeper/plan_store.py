"""Election and plan in ZooKeeper.

A candidate creates an ephemeral sequential node; the lowest is elected and stays so for as long as its node is there,
as later ones are always higher. A write of the plan is one multi that checks the writer's own node and the plan's
version: a coordinator that stalled through its session's end, or through somebody else's write, is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from uuid import uuid4

from kazoo.exceptions import NoNodeError

from ...config import ZooKeeperSettings
from ...core.cluster import ClusterConstants
from ...core.errors import OwnershipLost, Unavailable
from ...ports import Member, Orders, Plan, RangeStatus
from .eviction import Eviction, number
from .records import decode_orders, encode_orders, encode_plan
from .session import InDoubt, Refused, ZooKeeperSession, check, put
from .tree import RangeNode, Tree, each, missing, read_range
from .view import read_members, read_plan

WRITE_ROUNDS_MAX = 5
ELECTION_LOOK_S = 5.0


class ZooKeeperPlanStore:
    """ports.PlanStore of one candidate, and ports.OrderStore. It has a session of its own, a new one after each loss.

    `member_id`: the member whose process this is, so that its candidacy can be told to be a dead one's. `last_seen`:
    what its membership knows of a range, None: nothing.
    """

    def __init__(
        self,
        settings: ZooKeeperSettings,
        constants: ClusterConstants,
        member_id: str = "",
        last_seen: Callable[[int], RangeNode | None] = lambda range_id: None,
    ) -> None:
        self._settings = settings
        self._constants = constants
        self._tree = Tree.of(settings, constants)
        self._member_id = member_id
        self._last_seen = last_seen
        self._session: ZooKeeperSession | None = None
        self._nonce = ""
        self._node = ""
        self._opening = asyncio.Lock()

    async def campaign(self) -> None:
        """See ports.PlanStore. Returns at once while still elected."""
        try:
            session = await self._live()
            while not await self._lead(session):
                pass
        except OwnershipLost as error:
            raise Unavailable(f"the session was lost: {error}") from error
        except NoNodeError:
            raise missing(self._tree) from None

    async def read(self) -> tuple[Plan, list[Member], list[RangeStatus]]:
        """See ports.PlanStore."""
        try:
            session = await self._live()
            plan, members = await self.read_plan()
            nodes = await each(lambda r: read_range(session, self._tree, r), range(self._constants.ranges))
        except OwnershipLost as error:
            raise Unavailable(f"the session was lost: {error}") from error
        return plan, members, [node.status(r) for r, node in enumerate(nodes)]

    async def read_plan(self) -> tuple[Plan, list[Member]]:
        """See ports.PlanStore."""
        try:
            session = await self._live()
            await session.sync(self._tree.plan)
            plan, members = await asyncio.gather(read_plan(session, self._tree), read_members(session, self._tree))
        except OwnershipLost as error:
            raise Unavailable(f"the session was lost: {error}") from error
        return plan, sorted(members.values(), key=lambda m: m.member_id)

    async def write(self, plan: Plan) -> Plan:
        """See ports.PlanStore."""
        if self._session is None or not self._node:
            raise OwnershipLost("this process is not the elected coordinator")
        session, nonce = self._session, uuid4().hex
        data = encode_plan(plan.assignment, nonce)
        for _ in range(WRITE_ROUNDS_MAX):
            try:
                await session.multi(check(self._node), put(self._tree.plan, data, plan.version))
                return Plan(plan.version + 1, dict(plan.assignment))
            except Refused as refused:
                raise self._lost(refused) from refused
            except InDoubt:
                await session.reconnected()
            if await self._holds(session, data, plan.version + 1):
                return Plan(plan.version + 1, dict(plan.assignment))
        raise Unavailable("ZooKeeper does not answer a write of the plan")

    async def read_orders(self) -> Orders:
        """See ports.OrderStore."""
        try:
            session = await self._live()
            await session.sync(self._tree.orders)
            data, stat = await session.read(self._tree.orders)
        except NoNodeError:
            return Orders()
        except OwnershipLost as error:
            raise Unavailable(f"the session was lost: {error}") from error
        return decode_orders(data, stat.version)

    async def write_orders(self, orders: Orders) -> Orders | None:
        """See ports.OrderStore."""
        data = encode_orders(orders, uuid4().hex)
        for _ in range(WRITE_ROUNDS_MAX):
            try:
                session = await self._live()
                await session.multi(put(self._tree.orders, data, orders.version))
                return replace(orders, version=orders.version + 1)
            except Refused as refused:
                if isinstance(refused.error, NoNodeError):
                    raise missing(self._tree) from refused
                stored, stat = await session.read(self._tree.orders)
                written = stored == data and stat.version == orders.version + 1
                return replace(orders, version=stat.version) if written else None
            except InDoubt:
                await session.reconnected()
            except OwnershipLost as error:
                raise Unavailable(f"the session was lost: {error}") from error
        raise Unavailable("ZooKeeper does not answer a write of the orders")

    async def evict(self, member: Member) -> bool:
        """See ports.PlanStore."""
        try:
            session = await self._live()
            eviction = Eviction(session, self._tree, self._constants.ranges, self._nonce, member, self._last_seen)
            return await eviction.carry_out()
        except OwnershipLost as error:
            raise Unavailable(f"the session was lost: {error}") from error

    async def resign(self) -> None:
        """See ports.PlanStore."""
        session, self._session, self._node = self._session, None, ""
        if session is not None:
            await session.close()

    async def _live(self) -> ZooKeeperSession:
        async with self._opening:
            if self._session is None or self._session.over:
                await self.resign()
                session = ZooKeeperSession(self._settings)
                await session.open()
                self._session, self._nonce = session, uuid4().hex
        return self._session

    async def _lead(self, session: ZooKeeperSession) -> bool:
        """True: elected. False: look again, the candidate ahead of this one is gone or there was none yet of ours."""
        candidates = sorted(await session.children(self._tree.election), key=number)
        own = [i for i, name in enumerate(candidates) if name.startswith(self._nonce)]
        if not own:
            await self._stand(session)
            return False
        if own[0] == 0:
            self._node = session.vital_path = f"{self._tree.election}/{candidates[0]}"
            return True
        await _gone(session, f"{self._tree.election}/{candidates[own[0] - 1]}")
        return False

    async def _stand(self, session: ZooKeeperSession) -> None:
        """Creates the own node. One whose answer is lost is found by its nonce."""
        self._node = ""
        try:
            path, data = f"{self._tree.election}/{self._nonce}-", self._member_id.encode()
            await session.create(path, data, ephemeral=True, sequence=True)
        except InDoubt:
            await session.reconnected()

    async def _holds(self, session: ZooKeeperSession, data: bytes, version: int) -> bool:
        try:
            stored, stat = await session.read(self._tree.plan)
        except NoNodeError:
            raise missing(self._tree) from None
        return bool(stored == data and stat.version == version)

    def _lost(self, refused: Refused) -> OwnershipLost:
        if refused.index == 0:
            self._node = ""
            return OwnershipLost("this process is no longer the elected coordinator")
        return OwnershipLost(f"somebody else wrote the plan: {refused.error!r}")


async def _gone(session: ZooKeeperSession, path: str) -> None:
    """Waits until the node may be gone, or the connection is; now and then without a reason."""
    moved = asyncio.Event()
    if await session.exists(path, moved.set):
        try:
            await asyncio.wait_for(moved.wait(), ELECTION_LOOK_S)
        except TimeoutError:
            pass
