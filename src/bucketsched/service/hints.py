"""Telling owners about rows that they may have loaded past: hint, and repeat until it is answered.

A hint makes a task be on time; the owner's rescan of the present makes it sure. So a create waits for the answers only
a moment, and what is unanswered then is repeated behind it, up to a bound on how many rows are in that state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from ..core.task import TaskRow
from ..ports import Clock, HintAnswer, Owners

ROWS_BEHIND_MAX = 50_000
"""Rows that may be repeated behind creates that were answered; beyond, creates wait for their hints."""
ROWS_PER_HINT_MAX = 1_000
REPEAT_UNTIL_MS = 60_000
"""After due + this the owner's rescan has found the row long since."""
PAUSE_S_MIN = 0.02
PAUSE_S_MAX = 1.0

log = logging.getLogger(__name__)


class HintBatch:
    """The rows of one create, hinted again and again while the create waits."""

    def __init__(self, owners: Owners, clock: Clock, rows: Sequence[TaskRow]) -> None:
        self._owners = owners
        self._clock = clock
        self.open = {row.ref: row for row in rows}
        """What no owner has taken yet."""
        self._progress = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def settled(self, rows: Sequence[TaskRow], timeout_s: float) -> bool:
        """Waits until all these rows are taken; False where the time runs out before."""
        deadline = self._clock.monotonic() + timeout_s
        while any(row.ref in self.open for row in rows):
            self._progress.clear()
            remaining_s = deadline - self._clock.monotonic()
            try:
                await asyncio.wait_for(self._progress.wait(), max(0.0, remaining_s))
            except TimeoutError:
                return not any(row.ref in self.open for row in rows)
        return True

    def forget(self, rows: Sequence[TaskRow]) -> None:
        """Hints these no more."""
        for row in rows:
            self.open.pop(row.ref, None)

    def stop(self) -> None:
        """Hints no more."""
        self._task.cancel()

    async def _run(self) -> None:
        pause_s = PAUSE_S_MIN
        while self.open:
            await _hint(self._owners, list(self.open.values()), self.open)
            self._progress.set()
            if self.open:
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)


class Hints:
    """Starts hints, and repeats those that nobody waits for any more."""

    def __init__(self, owners: Owners, clock: Clock, rows_behind_max: int = ROWS_BEHIND_MAX) -> None:
        self._owners = owners
        self._clock = clock
        self._rows_behind_max = rows_behind_max
        self._behind: dict[bytes, TaskRow] = {}
        self._repeater: asyncio.Task[None] | None = None

    @property
    def rows_behind(self) -> int:
        """Rows that are repeated behind answered creates."""
        return len(self._behind)

    def begin(self, rows: Sequence[TaskRow]) -> HintBatch:
        """Hints these rows from now on, until they are taken or the batch is stopped."""
        return HintBatch(self._owners, self._clock, rows)

    def take_over(self, rows: Sequence[TaskRow]) -> bool:
        """Repeats these rows' hints behind the caller; False where too many rows are in that state already."""
        if len(self._behind) + len(rows) > self._rows_behind_max:
            return False
        self._behind.update((row.ref, row) for row in rows)
        if self._behind and (self._repeater is None or self._repeater.done()):
            self._repeater = asyncio.create_task(self._repeat())
        return True

    async def close(self) -> None:
        """Stops repeating: what is unanswered is left to the owners' rescan."""
        if self._repeater is not None:
            self._repeater.cancel()
            await asyncio.wait({self._repeater})

    async def _repeat(self) -> None:
        pause_s = PAUSE_S_MIN
        while self._behind:
            before = len(self._behind)
            rows = sorted(self._behind.values(), key=lambda row: row.due_ms)
            starts = range(0, len(rows), ROWS_PER_HINT_MAX)
            chunks = (rows[start : start + ROWS_PER_HINT_MAX] for start in starts)
            await asyncio.gather(*(_hint(self._owners, chunk, self._behind) for chunk in chunks))
            self._give_up_overdue()
            pause_s = PAUSE_S_MIN if len(self._behind) < before else min(2 * pause_s, PAUSE_S_MAX)
            await self._clock.sleep(pause_s)

    def _give_up_overdue(self) -> None:
        now_ms = self._clock.now_ms()
        for ref in [row.ref for row in self._behind.values() if now_ms > row.due_ms + REPEAT_UNTIL_MS]:
            del self._behind[ref]


async def _hint(owners: Owners, rows: Sequence[TaskRow], still_open: dict[bytes, TaskRow]) -> None:
    """Hints once, and takes out of `still_open` what was taken."""
    try:
        answers = await owners.hint(rows)
    except Exception:  # a repetition must not end before its rows are answered
        log.exception("hints could not be sent; they are repeated", extra={"recurring": True})
        return
    for row, answer in zip(rows, answers, strict=True):
        if answer is HintAnswer.TAKEN:
            still_open.pop(row.ref, None)
