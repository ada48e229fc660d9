"""Removing what a dead process holds, before its sessions end by themselves.

All of it goes in one multi that proves three things: that whoever removes is still entitled to it, that the slot was
not taken since (its version), and that no lease among them has changed hands (the versions of the ranges). A process
that joined anew meanwhile holds its slot and leases with another session, and keeps them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from kazoo.exceptions import NoNodeError

from ...core.errors import Unavailable
from ...ports import Member
from .records import NO_SESSION
from .session import InDoubt, Op, Refused, ZooKeeperSession, check, delete
from .tree import Tree, each, missing, read_range

ROUNDS_MAX = 10


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


async def evict(session: ZooKeeperSession, tree: Tree, ranges: int, own: str, member: Member) -> bool:
    """See ports.PlanStore.evict. `own`: the name that this process's candidacy begins with. Raises Unavailable."""
    for _ in range(ROUNDS_MAX):
        candidates = await read_candidates(session, tree)
        entitled = _entitlement(tree, candidates, own, member)
        if entitled is None:
            return False
        candidacies = [delete(c.path) for c in candidates if member.member_id and c.member_id == member.member_id]
        held = [*candidacies, *await _held(session, tree, ranges, member)]
        if not held:
            return False
        try:
            await session.multi(check(entitled), *held)
            return True
        except Refused:
            await session.sync(tree.plan)
        except InDoubt:
            await session.reconnected()
    raise Unavailable(f"what {member.member_id} holds changes all the time")


def _entitlement(tree: Tree, candidates: Sequence[Candidate], own: str, member: Member) -> str | None:
    """The own candidacy, if it is the first or the next behind the dead one."""
    for place, candidate in enumerate(candidates):
        if own and candidate.path.startswith(f"{tree.election}/{own}"):
            return candidate.path if place == 0 or candidates[place - 1].member_id == member.member_id else None
    return None


async def _held(session: ZooKeeperSession, tree: Tree, ranges: int, member: Member) -> list[Op]:
    """The operations that remove what the member's session holds.

    Nothing without a lane: it is the slot's version that proves that nobody has joined anew under this name.
    """
    if member.incarnation == NO_SESSION or member.lane < 0:
        return []
    place, slot, leases = await asyncio.gather(
        _place(session, tree, member),
        _slot(session, tree, member),
        each(lambda range_id: _lease(session, tree, range_id, member), range(ranges)),
    )
    return [*place, *slot, *(op for ops in leases for op in ops)]


async def _place(session: ZooKeeperSession, tree: Tree, member: Member) -> list[Op]:
    path = tree.member(quote(member.member_id, safe=""))
    return [delete(path)] if await _owner(session, path) == member.incarnation else []


async def _slot(session: ZooKeeperSession, tree: Tree, member: Member) -> list[Op]:
    try:
        _, stat = await session.read(tree.slot(member.lane))
    except NoNodeError:
        raise missing(tree) from None
    if await _owner(session, tree.holder(member.lane)) != member.incarnation:
        return []
    return [check(tree.slot(member.lane), stat.version), delete(tree.holder(member.lane))]


async def _lease(session: ZooKeeperSession, tree: Tree, range_id: int, member: Member) -> list[Op]:
    node = await read_range(session, tree, range_id)
    if not node.leased or node.record.session != member.incarnation:
        return []
    return [check(tree.range(range_id), node.version), delete(tree.lease(range_id))]


async def _owner(session: ZooKeeperSession, path: str) -> int:
    try:
        _, stat = await session.read(path)
    except NoNodeError:
        return NO_SESSION
    return int(stat.ephemeralOwner)
