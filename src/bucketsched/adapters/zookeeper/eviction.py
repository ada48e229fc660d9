"""Removing what a dead process holds, before its sessions end by themselves.

All of it goes in one multi that proves three things: that whoever removes is still entitled to it, that the slot was
not taken since (its version), and that no lease among them has changed hands (the versions of the ranges). A process
that joined anew meanwhile holds its slot and leases with another session, and keeps them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from kazoo.exceptions import NoNodeError

from ...core.errors import Unavailable
from ...ports import Member
from .records import NO_SESSION
from .session import InDoubt, Op, Refused, ZooKeeperSession, check, delete
from .tree import RangeNode, Tree, each, missing, read_range

ROUNDS_MAX = 10
LOOK_AGAIN_S = 0.3
"""How long after an eviction by what was known all ranges are read: those who take them over go first."""

Look = Callable[[int], Awaitable[RangeNode | None]]
"""How a range is looked at."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Who stands for election. `member_id`: the process, "" where it did not say."""

    path: str
    member_id: str


async def read_candidates(session: ZooKeeperSession, tree: Tree) -> list[Candidate]:
    """In the order in which they are elected. Raises Unavailable."""

    async def one(name: str) -> Candidate | None:
        path = f"{tree.election}/{name}"
        try:
            data, _ = await session.read(path)
        except NoNodeError:
            return None
        return Candidate(path, data.decode(errors="replace"))

    try:
        names = sorted(await session.children(tree.election), key=number)
    except NoNodeError:
        raise missing(tree) from None
    return [candidate for candidate in await each(one, names) if candidate is not None]


def number(name: str) -> int:
    """A candidate's place in the order."""
    return int(name.rpartition("-")[2])


class Eviction:
    """See ports.PlanStore.evict. `own`: the name that this process's candidacy begins with.

    `last_seen` saves reading every range before the dead one's leases are dropped; whatever it did not know of is
    dropped right after.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        tree: Tree,
        ranges: int,
        own: str,
        member: Member,
        last_seen: Callable[[int], RangeNode | None],
    ) -> None:
        self._session, self._tree, self._ranges = session, tree, ranges
        self._own, self._member, self._last_seen = own, member, last_seen

    async def carry_out(self) -> bool:
        """True: something was removed. Raises Unavailable, OwnershipLost."""
        removed, look = False, self._seen
        for _ in range(ROUNDS_MAX):
            candidates, of_member = await asyncio.gather(
                read_candidates(self._session, self._tree), self._of_member(look)
            )
            entitled = self._entitlement(candidates)
            held = [*self._candidacies(candidates), *of_member]
            if entitled is None or (not held and look == self._read):
                return removed
            pause_s = LOOK_AGAIN_S if look == self._seen else 0
            look = self._read
            try:
                if held:
                    await self._session.multi(check(entitled), *held)
                    removed = True
                    await asyncio.sleep(pause_s)
            except Refused:
                await self._session.sync(self._tree.plan)
            except InDoubt:
                await self._session.reconnected()
        raise Unavailable(f"what {self._member.member_id} holds changes all the time")

    def _entitlement(self, candidates: Sequence[Candidate]) -> str | None:
        """The own candidacy, if it is the first or the next behind the dead one."""
        for place, candidate in enumerate(candidates):
            if self._own and candidate.path.startswith(f"{self._tree.election}/{self._own}"):
                ahead = candidates[place - 1].member_id if place else self._member.member_id
                return candidate.path if ahead == self._member.member_id else None
        return None

    def _candidacies(self, candidates: Sequence[Candidate]) -> list[Op]:
        name = self._member.member_id
        return [delete(candidate.path) for candidate in candidates if name and candidate.member_id == name]

    async def _of_member(self, look: Look) -> list[Op]:
        """The operations that remove what the member's session holds.

        Nothing without a lane: it is the slot's version that proves that nobody has joined anew under this name.
        """
        if self._member.incarnation == NO_SESSION or self._member.lane < 0:
            return []
        place, slot, leases = await asyncio.gather(self._place(), self._slot(), each(look, range(self._ranges)))
        found = [*place, *slot[1:], *(op for r, node in enumerate(leases) for op in self._lease(r, node))]
        return [slot[0], *found] if found else []

    async def _place(self) -> list[Op]:
        path = self._tree.member(quote(self._member.member_id, safe=""))
        return [delete(path)] if await self._owner(path) == self._member.incarnation else []

    async def _slot(self) -> list[Op]:
        """The proof that nobody has taken it since, and the end of the member's holding it, if it does."""
        lane = self._member.lane
        try:
            (_, stat), owner = await asyncio.gather(
                self._session.read(self._tree.slot(lane)), self._owner(self._tree.holder(lane))
            )
        except NoNodeError:
            raise missing(self._tree) from None
        holds = owner == self._member.incarnation
        return [check(self._tree.slot(lane), stat.version), *([delete(self._tree.holder(lane))] if holds else [])]

    def _lease(self, range_id: int, node: RangeNode | None) -> list[Op]:
        if node is None or not node.leased or node.record.session != self._member.incarnation:
            return []
        return [check(self._tree.range(range_id), node.version), delete(self._tree.lease(range_id))]

    async def _owner(self, path: str) -> int:
        try:
            _, stat = await self._session.read(path)
        except NoNodeError:
            return NO_SESSION
        return int(stat.ephemeralOwner)

    async def _seen(self, range_id: int) -> RangeNode | None:
        return self._last_seen(range_id)

    async def _read(self, range_id: int) -> RangeNode | None:
        return await read_range(self._session, self._tree, range_id)
