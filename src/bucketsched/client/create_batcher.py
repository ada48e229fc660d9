"""Gathers concurrent creates into BatchCreateTasks calls.

A lone create goes out in the next turn of the event loop. While calls are in flight, what comes in is gathered for a
moment or until a call returns, whichever is first. A call that fails, or whose outcome is not known, is sent again with
the same ids until the deadline of its tasks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import grpc

from ..core.errors import BucketschedError, InvalidArgument, Unavailable
from ..stubs.v1 import task_pb2 as pb
from . import status
from .clock import WallClock
from .request import CreateRequest
from .retry import pauses

Call = Callable[[pb.BatchCreateTasksRequest, float], Awaitable[pb.BatchCreateTasksResponse]]

_TRY_S_MIN = 0.05


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds of batching."""

    batch_tasks_max: int = 1_000
    batch_bytes_max: int = 2 * 1024 * 1024
    batches_in_flight_max: int = 8
    gather_s_max: float = 0.002
    waiting_tasks_max: int = 20_000
    """Beyond, creates wait before they are even queued."""
    waiting_bytes_max: int = 32 * 1024 * 1024
    try_s_max: float = 10.0
    """How long one call may take before it is sent again."""


@dataclass(slots=True, eq=False)
class _Item:
    request: CreateRequest
    deadline: float
    answer: asyncio.Future[pb.CreateTaskResponse]
    error: Unavailable | None = None

    @property
    def asked_s(self) -> float:
        """How long the server asked to wait before the next try."""
        return self.error.retry_after_ms / 1000 if self.error else 0.0


class CreateBatcher:
    """Batches creates. `batch_tasks_max` is what the server takes; the smaller of it and the limit counts."""

    def __init__(self, call: Call, clock: WallClock, limits: BatchLimits, batch_tasks_max: int) -> None:
        self._call = call
        self._clock = clock
        self._limits = limits
        self._batch_tasks_max = max(1, min(limits.batch_tasks_max, batch_tasks_max))
        self._waiting: deque[_Item] = deque()
        self._waiting_bytes = 0
        self._at_the_door: deque[tuple[_Item, asyncio.Future[None]]] = deque()
        self._sending: set[asyncio.Task[None]] = set()
        self._flush_handle: asyncio.Handle | None = None
        self._closed = False

    async def enqueue(self, request: CreateRequest, timeout_s: float) -> asyncio.Future[pb.CreateTaskResponse]:
        """Queues a request, waiting for room first; the future of its answer, which may raise a BucketschedError."""
        if self._closed:
            raise Unavailable("the client is closed")
        loop = asyncio.get_running_loop()
        item = _Item(request, self._clock.monotonic() + timeout_s, loop.create_future())
        if self._at_the_door or self._full():
            await self._wait_for_room(item, timeout_s)
        else:
            self._admit(item)
        return item.answer

    async def close(self) -> None:
        """Gives up what is under way: its outcome is not known."""
        self._closed = True
        if self._flush_handle is not None:
            self._flush_handle.cancel()
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        _fail(self._waiting, Unavailable("the client was closed"))
        self._waiting.clear()
        self._waiting_bytes = 0
        self._turn_away()

    # ------------------------------------------------------------ backpressure

    def _full(self) -> bool:
        limits = self._limits
        return len(self._waiting) >= limits.waiting_tasks_max or self._waiting_bytes >= limits.waiting_bytes_max

    def _admit(self, item: _Item) -> None:
        self._waiting.append(item)
        self._waiting_bytes += item.request.size
        self._schedule()

    async def _wait_for_room(self, item: _Item, timeout_s: float) -> None:
        """Returns once the item is admitted, in the order in which they came."""
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._at_the_door.append((item, admitted))
        try:
            async with asyncio.timeout(timeout_s):
                await admitted
        except TimeoutError as error:
            item.answer.cancel()
            raise Unavailable("too many creates are waiting") from error
        except BaseException:
            item.answer.cancel()
            raise

    def _open_door(self) -> None:
        while self._at_the_door and not self._full():
            item, admitted = self._at_the_door.popleft()
            if not admitted.done():
                self._admit(item)
                admitted.set_result(None)

    def _turn_away(self) -> None:
        for _, admitted in self._at_the_door:
            if not admitted.done():
                admitted.set_exception(Unavailable("the client was closed; this create was not sent"))
        self._at_the_door.clear()

    # ------------------------------------------------------------ when to send

    def _schedule(self) -> None:
        if self._flush_handle is not None or len(self._sending) >= self._limits.batches_in_flight_max:
            return
        loop = asyncio.get_running_loop()
        if not self._sending or self._has_full_batch():
            self._flush_handle = loop.call_soon(self._flush)
        else:
            self._flush_handle = loop.call_later(self._limits.gather_s_max, self._flush)

    def _has_full_batch(self) -> bool:
        return len(self._waiting) >= self._batch_tasks_max or self._waiting_bytes >= self._limits.batch_bytes_max

    def _flush(self) -> None:
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        while self._waiting and len(self._sending) < self._limits.batches_in_flight_max:
            batch = self._next_batch()
            if batch:
                task = asyncio.create_task(self._send(batch))
                self._sending.add(task)
                task.add_done_callback(self._sent)
        self._open_door()

    def _next_batch(self) -> list[_Item]:
        batch: list[_Item] = []
        size = 0
        while self._waiting and len(batch) < self._batch_tasks_max:
            item = self._waiting[0]
            if batch and size + item.request.size > self._limits.batch_bytes_max:
                break
            self._waiting.popleft()
            self._waiting_bytes -= item.request.size
            if not item.answer.done():
                batch.append(item)
                size += item.request.size
        return batch

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        if not self._closed:
            self._flush()

    # ------------------------------------------------------------ one batch

    async def _send(self, items: list[_Item]) -> None:
        """Tries until every item has its answer, or its time is up."""
        open_items: Sequence[_Item] = items
        try:
            for pause_s in pauses():
                open_items = self._in_time(await self._try(open_items))
                if not open_items:
                    return
                await asyncio.sleep(max(pause_s, *(item.asked_s for item in open_items)))
        except asyncio.CancelledError:
            _fail(items, Unavailable("the client was closed"))
            raise
        except Exception as error:
            _fail(items, error)

    def _in_time(self, items: Sequence[_Item]) -> Sequence[_Item]:
        """Those that may be tried again; the others get their last error, at once if the server asked for a longer wait
        than they have. Callers that left are not waited for.
        """
        now = self._clock.monotonic()
        for item in items:
            if item.deadline <= now + item.asked_s and not item.answer.done():
                item.answer.set_exception(item.error or Unavailable("no answer in time"))
        return [item for item in items if not item.answer.done()]

    async def _try(self, items: Sequence[_Item]) -> Sequence[_Item]:
        """One call; the items whose outcome is not known."""
        left_s = min(item.deadline for item in items) - self._clock.monotonic()
        timeout_s = max(_TRY_S_MIN, min(left_s, self._limits.try_s_max))
        request = pb.BatchCreateTasksRequest(requests=[item.request.message for item in items])
        try:
            response = await self._call(request, timeout_s)
        except grpc.aio.AioRpcError as error:
            translated = status.from_call(error)
            if isinstance(translated, InvalidArgument) and len(items) > 1:  # too many, or too large, together
                middle = len(items) // 2
                return [*await self._try(items[:middle]), *await self._try(items[middle:])]
            return _refused(items, translated)
        if len(response.results) != len(items):
            raise BucketschedError(f"the server answered {len(response.results)} results for {len(items)} tasks")
        return [item for item, result in zip(items, response.results, strict=True) if not _answered(item, result)]


def _answered(item: _Item, result: pb.CreateTaskResult) -> bool:
    """Hands the result to whoever waits for it; False where the item is to be sent again."""
    if result.WhichOneof("result") == "created":
        if not item.answer.done():
            item.answer.set_result(result.created)
        return True
    told = result.error
    error = status.from_number(told.code, told.message, told.field, told.retry_delay.ToMilliseconds())
    return not _refused([item], error)


def _refused(items: Sequence[_Item], error: BucketschedError) -> Sequence[_Item]:
    """The items that are to be sent again: all, if the error is a passing one; none, and all get the error, if not."""
    if isinstance(error, Unavailable):
        for item in items:
            item.error = error
        return items
    _fail(items, error)
    return []


def _fail(items: Sequence[_Item] | deque[_Item], error: Exception) -> None:
    for item in items:
        if not item.answer.done():
            item.answer.set_exception(error)
