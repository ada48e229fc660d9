"""Creates with an idempotency key.

The key's claim is stored before the task's row: it holds the id and the due time, so that whoever asks again, whenever,
means the same task. A claim without a row is that of a create which came to nothing: its row is written then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from ..core import task_id as ids
from ..core.errors import AlreadyExists, Unavailable
from ..core.idempotency import Claim, digest
from ..core.task import NO_BODY, TaskRow
from ..core.validation import NewTask, expiry_ms
from ..ports import Clock, KeyStore, TaskStore

CLAIMS_IN_FLIGHT_MAX = 64


class IdempotencyKeys:
    """Resolves keys to rows."""

    def __init__(self, keys: KeyStore, store: TaskStore, clock: Clock, retention_ms: int) -> None:
        self._keys, self._store, self._clock, self._retention_ms = keys, store, clock, retention_ms
        self._gate = asyncio.Semaphore(CLAIMS_IN_FLIGHT_MAX)

    async def resolve(
        self, wanted: Sequence[tuple[NewTask, TaskRow]], deadline: float
    ) -> list[TaskRow | AlreadyExists | Unavailable]:
        """For each, the row that its key stands for: to be written if `may_be_written`, new or as it was read."""
        return await asyncio.gather(*(self._resolve(task, row, deadline) for task, row in wanted))

    async def _resolve(self, task: NewTask, row: TaskRow, deadline: float) -> TaskRow | AlreadyExists | Unavailable:
        body = row.body
        claim = Claim(row.task_id, row.due_ms, body.nominal_due_ms, body.created_ms, digest(task))
        try:
            async with self._gate, asyncio.timeout(max(0.0, deadline - self._clock.monotonic())):
                expires_ms = row.due_ms + self._retention_ms
                standing = await self._keys.claim(row.namespace_id, task.idempotency_key, claim, expires_ms)
                if standing == claim:
                    return row
                if standing.digest != claim.digest:
                    used = f"was used for another task: {ids.text(standing.task_id)}"
                    return AlreadyExists("idempotency_key", used)
                return await self._claimed(task, row, standing)
        except (TimeoutError, Unavailable) as error:
            return Unavailable(str(error) or "the idempotency key was not claimed in time")

    async def _claimed(self, task: NewTask, row: TaskRow, claim: Claim) -> TaskRow:
        stored = await self._store.get(claim.due_ms, row.namespace_id, claim.task_id)
        if stored is not None:
            return stored.row
        until_ms = expiry_ms(task, claim.nominal_due_ms)
        body = replace(row.body, nominal_due_ms=claim.nominal_due_ms, created_ms=claim.created_ms, expires_ms=until_ms)
        return TaskRow(claim.due_ms, row.namespace_id, claim.task_id, body)


def may_be_written(row: TaskRow) -> bool:
    """False for a row that has expired, and of which only its moves are known."""
    return row.body != NO_BODY
