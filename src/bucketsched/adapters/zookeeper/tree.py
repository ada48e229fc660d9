"""The tree of a cluster: its paths, its making, and how its epochs are put behind those of the checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar
from uuid import UUID

from kazoo.exceptions import NodeExistsError, NoNodeError

from ...config import ZooKeeperSettings
from ...core.checkpoint import Checkpoint
from ...core.cluster import ClusterConstants
from ...core.errors import OwnershipLost, Unavailable
from ...ports import Orders, RangeStatus
from .records import NO_SESSION, RangeRecord, decode_range, encode_orders, encode_plan
from .session import Refused, ZooKeeperSession, delete, put

REQUESTS_IN_FLIGHT_MAX = 128
RAISE_ROUNDS_MAX = 20

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Tree:
    """The paths of one cluster's nodes."""

    top: str

    @classmethod
    def of(cls, settings: ZooKeeperSettings, constants: ClusterConstants) -> Tree:
        """The tree of the cluster with these constants."""
        return cls(f"{settings.root}/{constants.cluster_id}")

    @property
    def members(self) -> str:
        """Parent of the members."""
        return f"{self.top}/members"

    def member(self, member_id: str) -> str:
        """Ephemeral."""
        return f"{self.members}/{member_id}"

    def slot(self, lane: int) -> str:
        """Its version rises whenever the lane is taken."""
        return f"{self.top}/slots/{lane}"

    def holder(self, lane: int) -> str:
        """Ephemeral: there while the lane is taken."""
        return f"{self.slot(lane)}/holder"

    @property
    def clocks(self) -> str:
        """Parent of the nodes that members write to learn the ensemble's time. Made by whoever needs it first."""
        return f"{self.top}/clocks"

    @property
    def election(self) -> str:
        """Parent of the candidates."""
        return f"{self.top}/election"

    @property
    def plan(self) -> str:
        """The whole plan."""
        return f"{self.top}/plan"

    @property
    def orders(self) -> str:
        """What operators have ordered."""
        return f"{self.top}/orders"

    def range(self, range_id: int) -> str:
        """A RangeRecord."""
        return f"{self.top}/ranges/{range_id}"

    def lease(self, range_id: int) -> str:
        """Ephemeral: there while the lease stands."""
        return f"{self.range(range_id)}/lease"


@dataclass(frozen=True, slots=True)
class RangeNode:
    """A range as it was read. `leased`: there is a lease node."""

    record: RangeRecord
    version: int
    leased: bool

    def status(self, range_id: int) -> RangeStatus:
        """As coordinators see it."""
        r = self.record
        return RangeStatus(range_id, r.epoch, r.lane, self.leased, r.released, r.predecessors)


async def read_range(session: ZooKeeperSession, tree: Tree, range_id: int) -> RangeNode:
    """Raises Unavailable also where the tree is missing."""
    try:
        data, stat = await session.read(tree.range(range_id))
    except NoNodeError:
        raise missing(tree) from None
    return RangeNode(decode_range(data), stat.version, stat.numChildren > 0)


class TreeMissing(Unavailable):
    """Nobody has migrated here: a wrong root or ensemble, or one that was restored empty."""


def missing(tree: Tree) -> TreeMissing:
    """The error where the tree, or a part of it, is not there."""
    return TreeMissing(f"ZooKeeper has no complete tree at {tree.top}: run `bucketsched admin migrate`")


async def create_tree(
    settings: ZooKeeperSettings,
    constants: ClusterConstants,
    checkpoints: Mapping[int, Checkpoint],
    from_nothing: bool = True,
) -> None:
    """Makes what is missing of the cluster's tree and puts its epochs behind the checkpoints'.

    Only a migration may begin `from_nothing`: a node that did so with a wrong root or ensemble would become a second
    cluster over the same rows. Else TreeMissing is raised where there is no tree.

    Safe to repeat, and to run in many processes at once; changes nothing in a tree that is complete and was not lost.
    After ZooKeeper was restored empty, or from an old copy, every range goes on above its checkpoint's epoch and the
    checkpoint's lane is to be fenced: whoever dispatched last has written it before. Call it at every start, before
    `join`. Raises Unavailable.
    """
    session = ZooKeeperSession(settings)
    await session.open()
    tree = Tree.of(settings, constants)
    try:
        if not from_nothing and not await session.exists(tree.top):
            raise missing(tree)
        await _make(session, tree, constants, checkpoints)
    except (NoNodeError, OwnershipLost) as error:
        raise Unavailable(f"the tree was not completed: {error!r}") from error
    finally:
        await session.close()


async def _make(
    session: ZooKeeperSession, tree: Tree, constants: ClusterConstants, checkpoints: Mapping[int, Checkpoint]
) -> None:
    parts = tree.top.strip("/").split("/")
    for depth in range(1, len(parts)):
        await _ensure(session, "/" + "/".join(parts[:depth]), shared=True)
    for path in (tree.top, tree.members, tree.election, f"{tree.top}/slots", f"{tree.top}/ranges"):
        await _ensure(session, path)
    await _ensure(session, tree.plan, encode_plan({}))
    await _ensure(session, tree.orders, encode_orders(Orders()))
    await each(lambda lane: _ensure(session, tree.slot(lane)), range(constants.lanes))
    await each(lambda r: _ensure_range(session, tree, r, checkpoints.get(r)), range(constants.ranges))


async def clusters_below(settings: ZooKeeperSettings) -> dict[UUID, int]:
    """The clusters that have a tree below the settings' root, and how many ranges each has. Raises Unavailable."""
    session = ZooKeeperSession(settings)
    await session.open()
    try:
        found: dict[UUID, int] = {}
        for name in await session.children(settings.root):
            try:
                found[UUID(name)] = len(await session.children(f"{settings.root}/{name}/ranges"))
            except (ValueError, NoNodeError):
                continue  # something else stands there
        return found
    except NoNodeError:
        return {}
    except OwnershipLost as error:
        raise Unavailable(f"the session was lost: {error}") from error
    finally:
        await session.close()


async def each(function: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
    """The function's answers for all items, with at most REQUESTS_IN_FLIGHT_MAX calls at a time."""
    left, answers = list(items), list[R]()
    while left:
        batch, left = left[:REQUESTS_IN_FLIGHT_MAX], left[REQUESTS_IN_FLIGHT_MAX:]
        answers += await asyncio.gather(*(function(item) for item in batch))
    return answers


async def _ensure(session: ZooKeeperSession, path: str, data: bytes = b"", shared: bool = False) -> None:
    try:
        await session.create(path, data, shared=shared)
    except NodeExistsError:
        pass


async def _ensure_range(session: ZooKeeperSession, tree: Tree, range_id: int, checkpoint: Checkpoint | None) -> None:
    record = RangeRecord() if checkpoint is None else _after(RangeRecord(), checkpoint)
    try:
        await session.create(tree.range(range_id), record.encode())
    except NodeExistsError:
        if checkpoint is not None:
            await _raise(session, tree, range_id, checkpoint)


async def _raise(session: ZooKeeperSession, tree: Tree, range_id: int, checkpoint: Checkpoint) -> None:
    """A lease below the checkpoint's epoch is taken away: its owner's checkpoints would be without effect."""
    for _ in range(RAISE_ROUNDS_MAX):
        node = await read_range(session, tree, range_id)
        if node.record.epoch >= checkpoint.epoch:
            return
        change = put(tree.range(range_id), _after(node.record, checkpoint).encode(), node.version)
        try:
            await session.multi(change, *([delete(tree.lease(range_id))] if node.leased else []))
            return
        except Refused:
            await session.sync(tree.range(range_id))
    raise Unavailable(f"range {range_id} changes all the time")


def _after(record: RangeRecord, checkpoint: Checkpoint) -> RangeRecord:
    if checkpoint.epoch <= record.epoch:
        return record
    taken = record.taken_by(checkpoint.lane, NO_SESSION)
    return replace(taken, epoch=checkpoint.epoch, released=checkpoint.lane < 0)
