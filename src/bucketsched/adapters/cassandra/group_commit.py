"""Group commit: the rows of all concurrent callers travel together, and each caller gets its own answers.

A single insert costs the coordinator, the commit log and this process nearly as much as a batch of twenty. So rows are
gathered for at most a couple of milliseconds (longer while everything that may be in flight is), sorted by replica set
and partition, and cut into unlogged batches that are capped by rows and by bytes. Rows of one partition that meet in a
batch are one mutation to the server; rows of one replica set need one coordinator.

A batch that the server refuses is halved until the row at fault stands alone. Nothing here does I/O: a function that
sends a batch is given.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from ...core.errors import NotWritten, OutcomeUnknown

ENOUGH_BATCHES = 8
"""So many full batches are not kept waiting for more."""
ROW_OVERHEAD_BYTES = 64
"""What a row's statement adds to its values, about."""
WAITING_ROW_BYTES = 1_280
"""A row counts once more towards `rows_waiting_max` for each such piece: 50,000 rows are at most 64 MB."""

Answer = NotWritten | OutcomeUnknown | None


class Refused(NotWritten):
    """The server found the request itself at fault, such as a batch that is too large."""


class Write(NamedTuple):
    """One statement for one row: what is prepared, its encoded values, and their partition."""

    routing_key: bytes
    statement: Any
    values: tuple[bytes, ...]
    size: int
    """Bytes, about."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps of one group commit."""

    batch_rows_max: int
    batch_bytes_max: int
    delay_s_max: float
    batches_in_flight_max: int
    rows_waiting_max: int


class _Call:
    """One caller's rows: their answers, and how many are still missing."""

    __slots__ = ("answers", "done", "missing")

    def __init__(self, rows: int, done: asyncio.Future[list[Answer]]) -> None:
        self.answers: list[Answer] = [None] * rows
        self.missing = rows
        self.done = done

    def settle(self, index: int, answer: Answer) -> None:
        self.answers[index] = answer
        self.missing -= 1
        if self.missing == 0 and not self.done.done():
            self.done.set_result(self.answers)


Entry = tuple[Write, _Call, int]
Send = Callable[[Sequence[Write], Callable[[Answer], None]], None]
"""Sends writes as one request, and calls back later (not from within) with what became of all of them."""


class GroupCommit:
    """Gathers, cuts, sends. Used in one event loop."""

    def __init__(self, send: Send, group_of: Callable[[bytes], Hashable], limits: Limits) -> None:
        self._send = send
        self._group_of = group_of
        self._limits = limits
        self._gathered: list[Entry] = []
        self._ready: deque[list[Entry]] = deque()
        self._in_flight = 0
        self._timer: asyncio.TimerHandle | None = None
        self._gate = _Gate(limits.rows_waiting_max)

    async def write(self, writes: Sequence[Write]) -> list[Answer]:
        """Writes durably; one answer a row, None = written. Waits while too many rows wait.

        A caller that is cancelled leaves its rows behind: they may be written.
        """
        if not writes:
            return []
        await self._gate.enter(sum(map(_weight, writes)))
        call = _Call(len(writes), asyncio.get_running_loop().create_future())
        self._gathered.extend((write, call, index) for index, write in enumerate(writes))
        self._schedule()
        return await call.done

    def _schedule(self) -> None:
        limits = self._limits
        if self._in_flight >= limits.batches_in_flight_max:
            return  # whatever comes back next goes on with what was gathered
        if len(self._gathered) >= limits.batch_rows_max * ENOUGH_BATCHES or limits.delay_s_max <= 0:
            self._cut()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(limits.delay_s_max, self._cut)

    def _cut(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        gathered, self._gathered = self._gathered, []
        self._ready.extend(cut(gathered, self._group_of, self._limits.batch_rows_max, self._limits.batch_bytes_max))
        self._pump()

    def _pump(self) -> None:
        while self._ready and self._in_flight < self._limits.batches_in_flight_max:
            batch = self._ready.popleft()
            self._in_flight += 1
            self._send([entry[0] for entry in batch], partial(self._answered, batch))

    def _answered(self, batch: list[Entry], answer: Answer) -> None:
        self._in_flight -= 1
        if isinstance(answer, Refused) and len(batch) > 1:
            middle = len(batch) // 2
            self._ready.extendleft((batch[middle:], batch[:middle]))
        else:
            for _, call, index in batch:
                call.settle(index, answer)
            self._gate.leave(sum(_weight(entry[0]) for entry in batch))
        if self._gathered and not self._ready and self._timer is None:
            self._cut()
        else:
            self._pump()


def cut(
    entries: Sequence[Entry], group_of: Callable[[bytes], Hashable], rows_max: int, bytes_max: int
) -> list[list[Entry]]:
    """Batches of one replica set each, partitions kept together. A row over `bytes_max` goes alone."""
    groups: dict[Hashable, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(group_of(entry[0].routing_key), []).append(entry)
    batches: list[list[Entry]] = []
    for group in groups.values():
        group.sort(key=_routing_key)
        batches.extend(_pack(group, rows_max, bytes_max))
    return batches


def _weight(write: Write) -> int:
    return 1 + write.size // WAITING_ROW_BYTES


def _routing_key(entry: Entry) -> bytes:
    return entry[0].routing_key


def _pack(entries: Sequence[Entry], rows_max: int, bytes_max: int) -> list[list[Entry]]:
    batches: list[list[Entry]] = []
    batch: list[Entry] = []
    size = 0
    for entry in entries:
        more = entry[0].size + ROW_OVERHEAD_BYTES
        if batch and (len(batch) >= rows_max or size + more > bytes_max):
            batches.append(batch)
            batch, size = [], 0
        batch.append(entry)
        size += more
    if batch:
        batches.append(batch)
    return batches


class _Gate:
    """Bounds the rows inside. A call that is larger than the bound enters when nothing else is inside."""

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self._inside = 0
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, rows: int) -> None:
        """Waits for its turn, first come, first served."""
        if not self._line and self._fits(rows):
            self._inside += rows
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append((rows, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.leave(rows)
            else:
                self._admit()
            raise

    def leave(self, rows: int) -> None:
        """Makes room."""
        self._inside -= rows
        self._admit()

    def _fits(self, rows: int) -> bool:
        return self._inside == 0 or self._inside + rows <= self._rows_max

    def _admit(self) -> None:
        while self._line and (self._line[0][1].done() or self._fits(self._line[0][0])):
            rows, turn = self._line.popleft()
            if not turn.done():
                self._inside += rows
                turn.set_result(None)
