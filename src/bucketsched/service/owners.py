"""The owners of all ranges where they are all in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ..core.errors import Unavailable
from ..core.task import TaskRow
from ..ports import CancelResult, Clock, HintAnswer, RangeOwner

WAIT_S_MAX = 5.0
PAUSE_S = 0.05


class LocalOwners:
    """Implements `ports.Owners` over one RangeOwner, and waits a while for ranges that it is still recovering."""

    def __init__(self, range_owner: RangeOwner, clock: Clock) -> None:
        self._owner = range_owner
        self._clock = clock

    async def hint(self, rows: Sequence[TaskRow]) -> list[HintAnswer | None]:
        """One answer a row. Never raises for a range that is not ready."""
        return list(await self._owner.hint(rows))

    async def admit(self, row: TaskRow) -> HintAnswer:
        """TAKEN or NO_ROW. Raises Unavailable where the range does not become ready."""
        deadline = self._clock.monotonic() + WAIT_S_MAX
        while True:
            answer = await self._owner.admit(row)
            if answer in (HintAnswer.TAKEN, HintAnswer.NO_ROW):
                return answer
            await self._wait(deadline)

    async def cancel(self, namespace_id: bytes, task_id: bytes) -> CancelResult:
        """Raises Unavailable where the range is not ready, or its journal takes nothing: nothing is cancelled then."""
        deadline = self._clock.monotonic() + WAIT_S_MAX
        while True:
            try:
                async with asyncio.timeout(max(0.0, deadline - self._clock.monotonic())):
                    result = await self._owner.cancel(namespace_id, task_id)
            except TimeoutError as error:
                raise Unavailable("the journal takes no changes now; nothing was cancelled, try again") from error
            if isinstance(result, CancelResult):
                return result
            await self._wait(deadline)

    async def _wait(self, deadline: float) -> None:
        if self._clock.monotonic() >= deadline:
            raise Unavailable("the task's range is still being recovered; try again")
        await self._clock.sleep(PAUSE_S)
