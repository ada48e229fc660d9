"""Membership in ZooKeeper: a member's node, its lane's slot and its leases live and die with one session."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from kazoo.exceptions import NodeExistsError, NoNodeError

from ...config import ZooKeeperSettings
from ...core.cluster import ClusterConstants
from ...core.errors import OwnershipLost, Unavailable
from ...ports import Member, Plan
from .leases import Slot, ZooKeeperLeases
from .records import encode_member
from .session import InDoubt, Refused, ZooKeeperSession, create, put
from .tree import RangeNode, Tree, each, missing
from .view import ClusterView

JOIN_RETRY_S = 0.1
JOIN_GRACE_S = 2.0
"""Beyond the session time-out: how long a join waits for a former process of the same name to go."""


class ZooKeeperMembership:
    """ports.Membership of one process. Each `join` is a new session.

    Several callers may wait in `changed` at once; all are woken by the next change.
    """

    def __init__(self, settings: ZooKeeperSettings, constants: ClusterConstants) -> None:
        self._settings = settings
        self._constants = constants
        self._tree = Tree.of(settings, constants)
        self._session: ZooKeeperSession | None = None
        self._view: ClusterView | None = None
        self._following: asyncio.Task[None] | None = None
        self._leases: ZooKeeperLeases | None = None
        self._joined: Member | None = None
        self._version = self._seen = 0
        self._moved = asyncio.Event()
        self._telling = asyncio.Lock()

    async def join(self, member: Member, wants_lane: bool) -> Member:
        """See ports.Membership. The former session, if there is one, is ended first."""
        await self.leave()
        session = ZooKeeperSession(self._settings)
        await session.open()
        try:
            slot, joined = await self._announce(session, member, wants_lane)
            view = ClusterView(session, self._tree, self._constants, joined.lane, self._change)
            await view.fill()
        except BaseException as error:
            await session.close()
            if isinstance(error, OwnershipLost):
                raise Unavailable(f"the new session was lost: {error}") from error
            raise
        self._session, self._view, self._joined = session, view, joined
        self._following = asyncio.get_running_loop().create_task(view.follow())
        if slot is not None:
            self._leases = ZooKeeperLeases(session, self._tree, slot, member.member_id, view.last_seen)
        self._change()
        return joined

    def leases(self) -> ZooKeeperLeases:
        """The leases of the lane that `join` gave. Raises OwnershipLost where it gave none."""
        if self._leases is None:
            raise OwnershipLost("this process has no lane")
        return self._leases

    def members(self) -> list[Member]:
        """See ports.Membership."""
        return sorted(self._view.members.values(), key=lambda m: m.member_id) if self._view else []

    def plan(self) -> Plan:
        """See ports.Membership."""
        return self._view.plan if self._view else Plan(0)

    def owner_of(self, range_id: int) -> Member | None:
        """See ports.Membership."""
        return self._view.owner_of(range_id) if self._view else None

    def last_seen(self, range_id: int) -> RangeNode | None:
        """A range as it was read last, None: never."""
        return self._view.last_seen(range_id) if self._view else None

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
        await self._tell(leaving=leaving)

    async def announce_ailing(self, ailing: str) -> None:
        """See ports.Membership."""
        await self._tell(ailing=ailing)

    async def _tell(self, **changes: Any) -> None:
        """Only this process writes its member's node, so the version that it has read proves enough."""
        async with self._telling:
            session, joined = self._session, self._joined
            if session is None or joined is None:
                raise OwnershipLost("this process is no member")
            path, told = self._tree.member(quote(joined.member_id, safe="")), replace(joined, **changes)
            try:
                _, stat = await session.read(path)
                await session.multi(put(path, encode_member(told), stat.version))
            except NoNodeError as error:
                raise OwnershipLost(f"this process is no member: {error!r}") from error
            except Refused as refused:
                raise OwnershipLost(f"this process is no member: {refused.error!r}") from refused
            if self._session is session:
                self._joined = told

    def session_lost(self) -> bool:
        """See ports.Membership. ZooKeeper's being unreachable does not make it true, however long that lasts."""
        return self._session is not None and self._session.over

    async def leave(self) -> None:
        """See ports.Membership. What was seen of the others stays readable."""
        self._leases = None
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait({self._following})
            self._following = None
        if self._session is not None:
            await self._session.close()

    def _change(self) -> None:
        self._version += 1
        self._moved.set()
        self._moved = asyncio.Event()

    # ---- joining

    async def _announce(
        self, session: ZooKeeperSession, member: Member, wants_lane: bool
    ) -> tuple[Slot | None, Member]:
        """Creates the member's node together with its slot's holder, so that nobody has one without the other."""
        seconds = self._settings.session_timeout_ms / 1000 + JOIN_GRACE_S
        path = self._tree.member(quote(member.member_id, safe=""))
        try:
            async with asyncio.timeout(seconds):
                while True:
                    slot = await self._free_slot(session) if wants_lane else None
                    joined = replace(member, lane=slot.lane if slot else -1, incarnation=session.session_id)
                    if await self._claim(session, path, slot, joined):
                        session.vital_path = path
                        return slot and replace(slot, version=slot.version + 1), joined
        except TimeoutError:
            raise Unavailable(f"could not join within {seconds} s: is another process called {path}?") from None
        except InDoubt as error:
            raise Unavailable(f"could not join: {error}") from error

    async def _claim(self, session: ZooKeeperSession, path: str, slot: Slot | None, joined: Member) -> bool:
        ops = [create(path, encode_member(joined), ephemeral=True)]
        if slot is not None:
            ops.append(put(self._tree.slot(slot.lane), joined.member_id.encode(), slot.version))
            ops.append(create(self._tree.holder(slot.lane), b"", ephemeral=True))
        try:
            await session.multi(*ops)
            return True
        except Refused as refused:
            if isinstance(refused.error, NoNodeError):
                raise missing(self._tree) from refused
            if refused.index == 0 and isinstance(refused.error, NodeExistsError):
                await asyncio.sleep(JOIN_RETRY_S)
            await session.sync(self._tree.members)
            return False

    async def _free_slot(self, session: ZooKeeperSession) -> Slot:
        async def look(lane: int) -> tuple[Slot, bool]:
            _, stat = await session.read(self._tree.slot(lane))
            return Slot(lane, stat.version), stat.numChildren == 0

        try:
            slots = await each(look, range(self._constants.lanes))
        except NoNodeError:
            raise missing(self._tree) from None
        for slot, free in slots:
            if free:
                return slot
        raise Unavailable(f"all {self._constants.lanes} lanes of the cluster are taken")
