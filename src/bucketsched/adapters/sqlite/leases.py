"""Ownership within one process that owns everything.

The lock on the data directory stands for fencing: whoever has it is the only process, and nothing of the one before
is under way any more. So a lease never has predecessors. The journal is replayed from the checkpoint all the same,
and the epoch still rises with each lease, durably before it is used, so records and messages tell the owners apart.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from dataclasses import replace

from ...core.checkpoint import epoch_of
from ...core.errors import OwnershipLost
from ...ports import Lease, Member, Plan
from .database import Database, as_unavailable

LANE = 0
_EPOCH = "SELECT epoch FROM leases WHERE range_id = ?"
_CHECKPOINT = "SELECT write_order FROM range_checkpoints WHERE range_id = ?"
_SET_EPOCH = """INSERT INTO leases (range_id, epoch) VALUES (?, ?)
    ON CONFLICT (range_id) DO UPDATE SET epoch = excluded.epoch"""


class InProcessLeases:
    """See ports.Leases. The youngest lease of a range is the one that stands; nobody is kept waiting for another."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.version = 0
        """How often something changed that a membership shows."""
        self._held: dict[int, int] = {}
        self._moved = asyncio.Event()

    @property
    def held(self) -> frozenset[int]:
        """The ranges whose lease was acquired here and not released."""
        return frozenset(self._held)

    async def acquire(self, range_id: int) -> Lease:
        """See ports.Leases."""
        with as_unavailable():
            epoch = await self._database.write(lambda connection: _raise_epoch(connection, range_id))
        self._held[range_id] = epoch
        self.tell()
        return Lease(range_id, epoch, ())

    async def clear_predecessors(self, lease: Lease) -> None:
        """See ports.Leases. There are none to clear, but the lease is proved."""
        await self._prove([lease])

    async def validate(self, leases: Sequence[Lease]) -> set[int]:
        """See ports.Leases."""
        held = [lease for lease in leases if self._held.get(lease.range_id) == lease.epoch]
        with as_unavailable():
            return await self._database.write(lambda connection: _standing(connection, held))

    async def release(self, lease: Lease) -> None:
        """See ports.Leases."""
        await self._prove([lease])
        if self._held.get(lease.range_id) == lease.epoch:  # nobody acquired it meanwhile
            del self._held[lease.range_id]
            self.tell()

    async def moved(self) -> None:
        """Returns at the next `tell`."""
        await self._moved.wait()

    def tell(self) -> None:
        """Something changed that a membership shows."""
        self.version += 1
        self._moved.set()
        self._moved = asyncio.Event()

    async def _prove(self, leases: Sequence[Lease]) -> None:
        if len(await self.validate(leases)) < len(leases):
            raise OwnershipLost("the range has a younger lease")


def _raise_epoch(connection: sqlite3.Connection, range_id: int) -> int:
    """One more than any that was ever used, whichever of the two places has it."""
    lease = connection.execute(_EPOCH, (range_id,)).fetchone()
    checkpoint = connection.execute(_CHECKPOINT, (range_id,)).fetchone()
    used = (lease[0] if lease else 0, epoch_of(checkpoint[0]) if checkpoint else 0)
    epoch = max(used) + 1
    connection.execute(_SET_EPOCH, (range_id, epoch))
    return int(epoch)


def _standing(connection: sqlite3.Connection, leases: Sequence[Lease]) -> set[int]:
    return {
        lease.range_id for lease in leases if connection.execute(_EPOCH, (lease.range_id,)).fetchone() == (lease.epoch,)
    }


class InProcessMembership:
    """See ports.Membership. One member, and a plan that gives it every range."""

    def __init__(self, database: Database, ranges: int) -> None:
        self._leases = InProcessLeases(database)
        self._ranges = ranges
        self._member: Member | None = None
        self._seen: tuple[Member | None, frozenset[int]] = (None, frozenset())

    def leases(self) -> InProcessLeases:
        """Those of the member's lane."""
        return self._leases

    async def join(self, member: Member, wants_lane: bool) -> Member:
        """See ports.Membership."""
        self._member = replace(member, lane=LANE if wants_lane else -1)
        self._leases.tell()
        return self._member

    def members(self) -> list[Member]:
        """See ports.Membership."""
        return [self._member] if self._member else []

    def plan(self) -> Plan:
        """See ports.Membership."""
        if self._member is None or self._member.lane < 0:
            return Plan(0)
        return Plan(1, dict.fromkeys(range(self._ranges), LANE))

    def owner_of(self, range_id: int) -> Member | None:
        """See ports.Membership."""
        return self._member if range_id in self._leases.held else None

    async def changed(self, seen: int | None = None) -> int:
        """See ports.Membership."""
        if seen is not None:
            while seen == self._leases.version:
                await self._leases.moved()
            return self._leases.version
        while self._seen == (now := (self._member, self._leases.held)):
            await self._leases.moved()
        self._seen = now
        return self._leases.version

    async def announce_leaving(self, leaving: bool = True) -> None:
        """See ports.Membership."""
        if self._member is None:
            raise OwnershipLost("this process is no member")
        self._member = replace(self._member, leaving=leaving)
        self._leases.tell()

    async def announce_ailing(self, ailing: str) -> None:
        """See ports.Membership."""
        if self._member is None:
            raise OwnershipLost("this process is no member")
        self._member = replace(self._member, ailing=ailing)
        self._leases.tell()

    def session_lost(self) -> bool:
        """See ports.Membership."""
        return False

    async def leave(self) -> None:
        """See ports.Membership."""
        self._member = None
        self._leases.tell()
