"""What is done about differences for which it is known what to do. Each of it may be repeated.

A task that was lost goes by the owner of its range, the way of a late create: the owner reads the row, writes it at now
and journals the move. If somebody else settled it meanwhile, the owner says so, and nothing happens.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core.errors import Unavailable
from ..core.task import Mark, RowRef, TaskRow, bucket_of
from ..poller.marker import write_consequences
from ..poller.successors import Moved, successors
from ..ports import Clock, HintAnswer, Owners, TaskStore
from .differences import Difference, Kind


class Repair:
    """`owners` dispatch what was lost."""

    def __init__(self, store: TaskStore, owners: Owners, clock: Clock) -> None:
        self._store, self._owners, self._clock = store, owners, clock

    async def run(self, differences: Sequence[Difference]) -> list[str]:
        """What was done about each, in their order; "" where only a person can decide. Never raises Unavailable."""
        done = []
        for difference in differences:
            try:
                done.append(await self._repair(difference))
            except Unavailable as error:
                done.append(f"not repaired, try again: {error}")
        return done

    async def _repair(self, difference: Difference) -> str:
        if difference.kind is Kind.LOST:
            return await self._dispatch(difference.ref)
        if difference.kind is Kind.UNMARKED:
            marks = [Mark(said.ref, said.kind, said.at_ms, said.reason) for said in difference.said]
            await write_consequences(self._store, [], [], marks)
            return "fact stored"
        if difference.kind is Kind.NO_SUCCESSOR:
            return await self._succeed(difference)
        return ""

    async def _dispatch(self, packed: bytes) -> str:
        ref = RowRef.unpack(packed)
        stored = await self._store.get(ref.due_ms, ref.namespace_id, ref.task_id)
        if stored is None or stored.facts.settled:
            return "settled meanwhile"
        return await self._admit(stored.row)

    async def _admit(self, row: TaskRow) -> str:
        answer = await self._owners.admit(row)
        return "dispatched by its owner" if answer is HintAnswer.TAKEN else "its row is gone"

    async def _succeed(self, difference: Difference) -> str:
        if not difference.said:
            return ""
        rows = await successors(self._store, [Moved(s.ref, s.at_ms, s.body) for s in difference.said])
        await write_consequences(self._store, rows, [], [])
        for row in rows:
            if row.bucket <= bucket_of(self._clock.now_ms()):
                return await self._admit(row)
        return "row written" if rows else "its home row is gone"
