"""What one process sees of the cluster: members, plan and owners, kept current by watches.

One watch on the members' folder and one on each member, on the plan, on each range and on the own slot. An owner is
told from the session that its range's node names and the members' sessions, so the lease nodes need no watches: a lease
that ends with its session shows by the member's disappearance, one that is given up by a change of the range's node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import structlog
from kazoo.exceptions import NoNodeError

from ...core.cluster import ClusterConstants
from ...core.errors import OwnershipLost, Unavailable
from ...ports import Member, Plan
from .records import NO_SESSION, RangeRecord, Unreadable, decode_member, decode_plan, decode_range
from .session import ZooKeeperSession
from .tree import RangeNode, Tree, each, missing

log = structlog.get_logger(__name__)

RETRY_DELAY_S = 0.1

Key = tuple[str, int]
"""A thing that is watched."""
MEMBERS: Key = ("members", 0)
PLAN: Key = ("plan", 0)
SLOT: Key = ("slot", 0)


async def read_members(
    session: ZooKeeperSession,
    tree: Tree,
    watch: Callable[[], None] | None = None,
    watch_one: Callable[[str], Callable[[], None] | None] = lambda name: None,
) -> dict[int, Member]:
    """The members by session. `watch_one` makes the watch on a member's node. Raises Unavailable."""

    async def one(name: str) -> tuple[int, Member] | None:
        watching = watch_one(name)
        try:
            data, stat = await session.read(tree.member(name), watching)
        except BaseException as error:
            if watching is not None:
                watching()  # it may not stand
            if isinstance(error, NoNodeError):
                return None  # it left between the two reads
            raise
        try:
            return stat.ephemeralOwner, decode_member(data, stat.ephemeralOwner)
        except Unreadable as error:
            log.warning("a member is left out", node=tree.member(name), error=str(error))
            return None

    try:
        names = await session.children(tree.members, watch)
    except NoNodeError:
        raise missing(tree) from None
    return dict(found for found in await each(one, names) if found is not None)


async def read_plan(session: ZooKeeperSession, tree: Tree, watch: Callable[[], None] | None = None) -> Plan:
    """The plan as it stands. Raises Unavailable."""
    try:
        data, stat = await session.read(tree.plan, watch)
    except NoNodeError:
        raise missing(tree) from None
    return decode_plan(data, stat.version)


class ClusterView:
    """The cache of one session. `lane` -1: the session holds no slot. `changed` is called after every change."""

    def __init__(
        self,
        session: ZooKeeperSession,
        tree: Tree,
        constants: ClusterConstants,
        lane: int,
        changed: Callable[[], None],
    ) -> None:
        self.members: dict[int, Member] = {}
        self.plan = Plan(0)
        self.ranges: dict[int, RangeRecord] = {}
        self._versions: dict[int, int] = {}
        self._session = session
        self._tree = tree
        self._lane = lane
        self._changed = changed
        self._keys = [MEMBERS, PLAN, *([SLOT] if lane >= 0 else []), *(("range", r) for r in range(constants.ranges))]
        self._watches = {key: partial(self._spoil, key) for key in self._keys}
        self._watched_members: set[str] = set()
        self._stale: set[Key] = set()
        self._spoilt = asyncio.Event()

    def owner_of(self, range_id: int) -> Member | None:
        """Who holds the range, as far as is known."""
        record = self.ranges.get(range_id)
        return None if record is None or record.session == NO_SESSION else self.members.get(record.session)

    def last_seen(self, range_id: int) -> RangeNode | None:
        """The range as it was when it was read last, and whether its lease seems to stand; a guess to begin with."""
        record = self.ranges.get(range_id)
        if record is None:
            return None
        return RangeNode(record, self._versions[range_id], record.session in self.members)

    async def fill(self) -> None:
        """Reads everything. Raises Unavailable, OwnershipLost."""
        self._session.on_change(self._session_moved)
        await each(self._refresh, self._keys)

    async def follow(self) -> None:
        """Keeps the cache current until the session is over."""
        while not self._session.over:
            await self._spoilt.wait()
            self._spoilt.clear()
            stale, self._stale = self._stale, set()
            try:
                await each(self._refresh, stale)
            except OwnershipLost:
                break
            except Unavailable as error:
                log.debug("the view of the cluster stands still", error=str(error))
                await self._again(stale)
            except Exception:
                log.exception("the view of the cluster could not be read")
                await self._again(stale)
        self._changed()

    async def _again(self, stale: set[Key]) -> None:
        self._stale |= stale
        self._spoilt.set()
        await asyncio.sleep(RETRY_DELAY_S)

    def _spoil(self, key: Key) -> None:
        self._stale.add(key)
        self._spoilt.set()

    def _session_moved(self) -> None:
        """Its end is a change, too. (A lost connection calls all watches, so everything is read anew with the next.)"""
        self._spoilt.set()
        self._changed()

    async def _refresh(self, key: Key) -> None:
        readers: dict[str, Callable[[Key], Awaitable[bool]]] = {
            "members": self._read_members,
            "plan": self._read_plan,
            "slot": self._read_slot,
            "range": self._read_range,
        }
        if await readers[key[0]](key):
            self._changed()

    async def _read_members(self, key: Key) -> bool:
        found = await read_members(self._session, self._tree, self._watches[key], self._watch_member)
        old, self.members = self.members, found
        if self._session.session_id not in self.members:
            self._session.end()
        return old != self.members

    def _watch_member(self, name: str) -> Callable[[], None] | None:
        """None where one stands already: watches pile up in the client, each until it is called."""
        if name in self._watched_members:
            return None
        self._watched_members.add(name)

        def moved() -> None:
            self._watched_members.discard(name)
            self._spoil(MEMBERS)

        return moved

    async def _read_plan(self, key: Key) -> bool:
        old, self.plan = self.plan, await read_plan(self._session, self._tree, self._watches[key])
        return old != self.plan

    async def _read_slot(self, key: Key) -> bool:
        if not await self._session.exists(self._tree.holder(self._lane), self._watches[key]):
            self._session.end()
        return False

    async def _read_range(self, key: Key) -> bool:
        try:
            data, stat = await self._session.read(self._tree.range(key[1]), self._watches[key])
        except NoNodeError:
            raise missing(self._tree) from None
        old, new = self.ranges.get(key[1]), decode_range(data)
        self.ranges[key[1]], self._versions[key[1]] = new, stat.version
        return old != new
