"""Leases in ZooKeeper: each a child of its range's node, each change of one a multi that proves slot and version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from kazoo.exceptions import NoNodeError

from ...core.errors import OwnershipLost, Unavailable
from ...ports import Lease, LeaseHeld
from .grouped import GroupedMultis
from .records import NO_SESSION, RangeRecord
from .session import CALL_S_MAX, InDoubt, Op, Refused, ZooKeeperSession, check, create, delete, put
from .tree import RangeNode, Tree, each, read_range

OPERATION_S_MAX = 6.0
"""How long one call of the port may take."""
DOUBT_S_MAX = CALL_S_MAX
"""How long a lost connection is waited for, to learn what became of a request."""
GUESS_DOUBT_S_MAX = 0.5
"""The same for the first try, which nothing has shown to reach a server at all."""
ROUNDS_MAX = 20
"""How often one call is tried again because somebody else changed the node meanwhile."""
VALIDATE_RANGES_MAX = 64
"""Ranges proved in one multi."""
FORSAKEN_CHECKS_MAX = 3
FORSAKEN_CHECK_S = 1.0

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Slot:
    """A lane that was taken: the slot's version then, which the next taker raises."""

    lane: int
    version: int


class ZooKeeperLeases:
    """ports.Leases of the lane that one session holds.

    `last_seen`: how a range was seen last, None: not at all. A change is tried first as if nothing had happened since,
    together with all others of the same moment; only where the server refuses that, the range is read.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        tree: Tree,
        slot: Slot,
        member_id: str,
        last_seen: Callable[[int], RangeNode | None] = lambda range_id: None,
    ) -> None:
        self._session = session
        self._tree = tree
        self._slot = slot
        self._member_id = member_id
        self._last_seen = last_seen
        self._written: dict[int, RangeNode] = {}
        self._multis = GroupedMultis(session, self._proof_of_slot)
        self._granted: dict[int, int] = {}
        self._errands: set[asyncio.Task[None]] = set()

    async def acquire(self, range_id: int) -> Lease:
        """See ports.Leases. A lease of this very session, or of this member's former one, is replaced."""
        return await self._bounded(self._acquire(range_id))

    async def clear_predecessors(self, lease: Lease) -> None:
        """See ports.Leases."""
        await self._bounded(self._amend(lease, lambda record: replace(record, predecessors=())))

    async def release(self, lease: Lease) -> None:
        """See ports.Leases."""
        gone = delete(self._tree.lease(lease.range_id))
        await self._bounded(self._amend(lease, lambda record: replace(record, released=True, session=NO_SESSION), gone))

    async def validate(self, leases: Sequence[Lease]) -> set[int]:
        """See ports.Leases."""
        standing: set[int] = set()
        for start in range(0, max(len(leases), 1), VALIDATE_RANGES_MAX):
            standing |= await self._bounded(self._prove(leases[start : start + VALIDATE_RANGES_MAX]))
        return standing

    # ---- taking

    async def _acquire(self, range_id: int) -> Lease:
        wanted: RangeRecord | None = None
        try:
            guess = self._guess(range_id)
            if guess is not None and not guess.leased:
                wanted = guess.record.taken_by(self._slot.lane, self._session.session_id)
                if await self._take(range_id, guess, wanted, GUESS_DOUBT_S_MAX):
                    return self._grant(range_id, wanted)
            for _ in range(ROUNDS_MAX):
                node = await read_range(self._session, self._tree, range_id)
                owner, member_id = await self._holder(range_id) if node.leased else (NO_SESSION, "")
                if wanted is not None and node.record == wanted and owner == self._session.session_id:
                    return self._grant(range_id, wanted)
                if owner not in (NO_SESSION, self._session.session_id) and member_id != self._member_id:
                    raise LeaseHeld(f"range {range_id} is held by lane {node.record.lane}")
                wanted = node.record.taken_by(self._slot.lane, self._session.session_id)
                if await self._take(range_id, node, wanted):
                    return self._grant(range_id, wanted)
        except (Unavailable, asyncio.CancelledError):
            if wanted is not None:
                self._forsake(range_id, wanted)
            raise
        raise Unavailable(f"range {range_id} changes all the time")

    async def _take(
        self, range_id: int, node: RangeNode, wanted: RangeRecord, doubt_s_max: float = DOUBT_S_MAX
    ) -> bool:
        """False: look again; the tree changed meanwhile, or the answer was lost."""
        lease = self._tree.lease(range_id)
        old = [delete(lease)] if node.leased else []
        new = create(lease, self._member_id.encode(), ephemeral=True)
        try:
            await self._change(put(self._tree.range(range_id), wanted.encode(), node.version), *old, new)
            self._wrote(range_id, RangeNode(wanted, node.version + 1, True))
        except Refused:
            await self._session.sync(self._tree.range(range_id))
            return False
        except InDoubt:
            await self._session.reconnected(doubt_s_max)
            return False
        return True

    def _guess(self, range_id: int) -> RangeNode | None:
        """The younger of what was seen and what was written here."""
        nodes = [node for node in (self._last_seen(range_id), self._written.get(range_id)) if node is not None]
        return max(nodes, key=lambda node: node.version, default=None)

    def _wrote(self, range_id: int, node: RangeNode) -> None:
        self._written[range_id] = node

    async def _holder(self, range_id: int) -> tuple[int, str]:
        """Session and member id of the lease node."""
        try:
            data, stat = await self._session.read(self._tree.lease(range_id))
        except NoNodeError:
            return NO_SESSION, ""
        return stat.ephemeralOwner, data.decode()

    def _grant(self, range_id: int, record: RangeRecord) -> Lease:
        self._granted[range_id] = record.epoch
        return Lease(range_id, record.epoch, record.predecessors)

    def _forsake(self, range_id: int, wanted: RangeRecord) -> None:
        """Nobody waits for this lease any more, but it may exist, or come to exist, and keep all others out."""
        errand = asyncio.get_running_loop().create_task(self._undo(range_id, wanted))
        self._errands.add(errand)
        errand.add_done_callback(self._errands.discard)

    async def _undo(self, range_id: int, wanted: RangeRecord) -> None:
        checks = 0
        while checks < FORSAKEN_CHECKS_MAX and self._granted.get(range_id, 0) < wanted.epoch:
            try:
                await self._session.reconnected()
                node = await read_range(self._session, self._tree, range_id)
                if node.record == wanted and node.leased:
                    dropped = put(
                        self._tree.range(range_id), replace(wanted, session=NO_SESSION).encode(), node.version
                    )
                    await self._session.multi(dropped, delete(self._tree.lease(range_id)))
                checks += 1
            except OwnershipLost:
                return
            except (Unavailable, Refused):
                pass
            await asyncio.sleep(FORSAKEN_CHECK_S)

    # ---- changing and proving

    async def _amend(self, lease: Lease, amended: Callable[[RangeRecord], RangeRecord], *also: Op) -> None:
        written: RangeRecord | None = None
        guess, doubt_s_max = self._guess(lease.range_id), GUESS_DOUBT_S_MAX
        if guess is not None and not self._stands(guess, lease):
            guess = None  # it may be out of date
        for _ in range(ROUNDS_MAX):
            node, guess = guess or await read_range(self._session, self._tree, lease.range_id), None
            if written is not None and node.record == written and written.released:
                return
            if not self._stands(node, lease):
                raise OwnershipLost(f"the lease on range {lease.range_id} of epoch {lease.epoch} is gone")
            new = amended(node.record)
            try:
                standing = check(self._tree.lease(lease.range_id))
                await self._change(put(self._tree.range(lease.range_id), new.encode(), node.version), standing, *also)
                self._wrote(lease.range_id, RangeNode(new, node.version + 1, not also))
                return
            except Refused:
                await self._session.sync(self._tree.range(lease.range_id))
            except InDoubt:
                written = new
                await self._session.reconnected(doubt_s_max)
            doubt_s_max = DOUBT_S_MAX
        raise Unavailable(f"range {lease.range_id} changes all the time")

    async def _prove(self, leases: Sequence[Lease]) -> set[int]:
        for _ in range(ROUNDS_MAX):
            nodes = await each(lambda lease: read_range(self._session, self._tree, lease.range_id), leases)
            standing = {
                lease.range_id: node for lease, node in zip(leases, nodes, strict=True) if self._stands(node, lease)
            }
            try:
                await self._change(*(op for range_id, node in standing.items() for op in self._proof(range_id, node)))
                return set(standing)
            except Refused:
                await self._session.sync(self._tree.plan)
            except InDoubt:
                await self._session.reconnected()
        raise Unavailable("the ranges change all the time")

    def _proof(self, range_id: int, node: RangeNode) -> tuple[Op, Op]:
        return check(self._tree.range(range_id), node.version), check(self._tree.lease(range_id))

    def _stands(self, node: RangeNode, lease: Lease) -> bool:
        """As far as reading tells; where not, it never will again."""
        return node.leased and node.record.epoch == lease.epoch and node.record.session == self._session.session_id

    async def _change(self, *ops: Op) -> None:
        """A multi that goes through only while the slot is this session's. Raises OwnershipLost where it is not."""
        try:
            await self._multis.submit(*ops)
        except Refused as refused:
            if refused.index > 1:
                raise
            self._session.end()
            raise OwnershipLost(f"slot {self._slot.lane} is gone") from refused

    def _proof_of_slot(self) -> tuple[Op, Op]:
        slot = check(self._tree.slot(self._slot.lane), self._slot.version)
        return slot, check(self._tree.holder(self._slot.lane))

    async def _bounded(self, operation: Coroutine[Any, Any, _Answer]) -> _Answer:
        try:
            async with asyncio.timeout(OPERATION_S_MAX):
                return await operation
        except TimeoutError:
            raise Unavailable(f"ZooKeeper did not answer within {OPERATION_S_MAX} s") from None
