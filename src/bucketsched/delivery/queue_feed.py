"""One worker queue in one process: from its subscription to its attached workers and back."""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..core.catalog import Queue
from ..core.errors import Unavailable
from ..core.execution import Attempt, AttemptEnd, AttemptReport, EndResult
from ..core.message import TaskEvent, from_headers
from ..core.waiting import first_of
from ..ports import Clock, Deliveries, Delivery, Subscription
from .attachment import Attachment
from .offer import AttemptKey, Failure, Held, Offer, Refusal, number_of
from .outcomes import Outcomes

log = logging.getLogger(__name__)
WORKER_LOST, LEASE_EXPIRED = "WorkerLost", "LeaseExpired"
"""Types of errors that are found here."""
LEASE_OVER = "the lease is over"
NO_FAILURE = Failure("")


@dataclass(frozen=True, slots=True)
class HubLimits:
    """Bounds of a hub, for each of its queues."""

    offers_in_flight_max: int = 10_000
    """Fetched messages whose acknowledgement is not stored yet."""
    held_bytes_max: int = 256 * 1024 * 1024
    """The same in bytes; exceeded by at most one fetch."""
    fetch_messages_max: int = 500
    ack_messages_max: int = 2_000
    """In one call to the subscription."""
    ack_tries_max: int = 4
    """Then the subscription is given up, and another one brings again what was not acknowledged."""
    linger_s: float = 0.5
    """How long a subscription outlives the last worker, who may only be reconnecting."""
    close_s_max: float = 5.0
    backoff_s_min: float = 0.05
    backoff_s_max: float = 5.0
    lost_max: int = 5
    """How often an attempt is offered again because its worker was lost; then it has failed."""


class QueueFeed:
    """Leases a queue's messages to its attached workers.

    Everything but `run` is synchronous, so no state is ever seen half-changed. `on_over` is called when `run` ends
    because the last worker has left; from then on the feed is dead.
    """

    def __init__(
        self,
        queue: Queue,
        deliveries: Deliveries,
        outcomes: Outcomes,
        clock: Clock,
        limits: HubLimits,
        numbers: Iterator[int],
        on_over: Callable[[QueueFeed], None],
    ) -> None:
        self.queue = queue
        self.workers: list[Attachment] = []
        self._deliveries = deliveries
        self._outcomes = outcomes
        self._clock = clock
        self._limits = limits
        self._numbers = numbers
        self._on_over = on_over
        self._held: dict[int, Held] = {}
        self._held_bytes = 0
        self._ready: list[tuple[int, Held]] = []
        self._timers: list[tuple[float, int, int]] = []
        self._acks: list[tuple[int, AttemptKey | None]] = []
        self._by_key: dict[AttemptKey, Held] = {}
        self._done: set[AttemptKey] = set()
        self._failures = 0
        self._stamp = 0
        self._turn = 0
        self._draining = False
        self._closing = asyncio.Event()
        self._room_changed = asyncio.Event()
        self._acks_waiting = asyncio.Event()
        self._workers_changed = asyncio.Event()
        self._timer_set = asyncio.Event()

    # ------------------------------------------------------------ what workers do

    def attach(self, worker_id: str, max_in_flight: int, lease_s: float) -> Attachment:
        """Adds a worker."""
        worker = Attachment(self, worker_id, max_in_flight, lease_s)
        worker.turn = self._next_turn()
        self.workers.append(worker)
        self.changed()
        return worker

    def detach(self, worker: Attachment) -> None:
        """Takes a worker away; what it had is ready again, unless that has happened too often."""
        if worker not in self.workers:
            return
        self.workers.remove(worker)
        for held in list(worker.leased.values()):
            held.lost += 1
            if held.lost > self._limits.lost_max:
                told = f"its worker was lost {held.lost} times, the last one was {worker.worker_id}"
                self._end(held, AttemptEnd.FAILED, worker, Failure(WORKER_LOST, told))
            else:
                self._give_back(held, 0)
        self.changed()

    def ack(self, worker: Attachment, lease_ids: Sequence[int], result: bytes = b"") -> None:
        """What these leases speak of has succeeded, unless another worker has it by now."""
        for lease_id in lease_ids:
            if (held := self._spoken_of(worker, lease_id)) is not None:
                self._end(held, AttemptEnd.SUCCEEDED, worker, result=result)
        self._assign()

    def fail(self, worker: Attachment, lease_id: int, failure: Failure) -> None:
        """What this lease speaks of has failed, unless another worker has it by now."""
        if (held := self._spoken_of(worker, lease_id)) is not None:
            self._end(held, AttemptEnd.FAILED, worker, failure)
        self._assign()

    def extend(self, worker: Attachment, lease_ids: Sequence[int], lease_s: float) -> None:
        """What these leases of the worker speak of is still at work."""
        for lease_id in lease_ids:
            held = self._held.get(number_of(lease_id))
            if held is not None and held.worker is worker and held.lease_id == lease_id:
                self._set_timer(held, self._clock.monotonic() + lease_s)
            else:
                worker.refuse(Refusal(lease_id, LEASE_OVER))

    def _spoken_of(self, worker: Attachment, lease_id: int) -> Held | None:
        """The message, if this worker may still say how it ended; else it is told that it may not."""
        held = self._held.get(number_of(lease_id))
        if held is not None and not held.ending and held.had_lease(lease_id) and held.worker in (None, worker):
            return held
        worker.refuse(Refusal(lease_id, LEASE_OVER))
        return None

    def nack(self, worker: Attachment, lease_ids: Sequence[int], delay_s: float) -> None:
        """Takes back what these leases of the worker speak of, if they still stand."""
        for lease_id in lease_ids:
            held = self._held.get(number_of(lease_id))
            if held is not None and held.worker is worker and held.lease_id == lease_id:
                self._give_back(held, delay_s)
        self._assign()

    def changed(self) -> None:
        """Workers came, left or changed their size."""
        self._workers_changed.set()
        self._room_changed.set()
        self._assign()

    # ------------------------------------------------------------ what becomes of a message

    def _end(
        self,
        held: Held,
        end: AttemptEnd,
        worker: Attachment | None,
        failure: Failure = NO_FAILURE,
        result: bytes = b"",
    ) -> None:
        """The attempt has ended: it is acknowledged once the owner of its task knows."""
        lease_id = held.lease_id
        self._let_go(held)
        held.ending = True
        attempt = self._attempt(
            held,
            worker,
            ended_ms=self._clock.now_ms(),
            end=end,
            error_type=failure.error_type,
            error_message=failure.message,
            error_trace=failure.trace,
            result=result,
        )
        event, pause_ms = held.event, int(failure.pause_s_least * 1000)
        report = AttemptReport(attempt, event.row_due_ms, failure.final, pause_ms, event.queue, event.notices)

        def told(answer: EndResult) -> None:
            if answer is not EndResult.TAKEN and worker is not None:
                worker.refuse(Refusal(lease_id, answer.value))
            if self._held.get(held.number) is held:
                self._settle(held)

        self._outcomes.ended(report, told)

    def _attempt(self, held: Held, worker: Attachment | None, **ended: Any) -> Attempt:
        """The attempt that was begun last; `ended`: how it has ended since."""
        event = held.event
        task_id = bytes.fromhex(event.task_id.replace("-", ""))
        name = worker.worker_id if worker is not None else ""
        place = self.queue.namespace_id, task_id, event.generation, event.attempt
        return Attempt(*place, started_ms=held.started_ms, worker=name, **ended)

    def _settle(self, held: Held) -> None:
        self._drop(held)
        self._room_changed.set()
        for token in held.tokens:
            self._acknowledge(token, held.key)
        if not held.tokens:
            self._done.add(held.key)

    def _drop(self, held: Held) -> None:
        del self._held[held.number]
        del self._by_key[held.key]
        self._held_bytes -= held.size

    def _acknowledge(self, token: int, key: AttemptKey | None) -> None:
        self._acks.append((token, key))
        self._acks_waiting.set()

    def _give_back(self, held: Held, delay_s: float) -> None:
        self._let_go(held)
        if not held.tokens:
            self._drop(held)
        elif delay_s > 0:
            self._set_timer(held, self._clock.monotonic() + delay_s)
        else:
            heapq.heappush(self._ready, (held.number, held))

    def _let_go(self, held: Held) -> None:
        """Ends the lease, if there is one, and with it every timer."""
        if held.worker is not None:
            del held.worker.leased[held.number]
            self._end_if_drained(held.worker)
            held.worker = None
        held.stamp = self._next_stamp()
        self._room_changed.set()

    def _assign(self) -> None:
        """Leases what is ready, oldest first, each to the least loaded worker."""
        if not self._ready or self._draining:
            return
        idle = [(worker.load, worker.turn, worker) for worker in self.workers if worker.free > 0]
        heapq.heapify(idle)
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        while idle and self._ready:
            _, held = heapq.heappop(self._ready)
            if held.number not in self._held or held.ending:
                continue
            if 0 < held.event.expires_ms < now_ms:
                self._end(held, AttemptEnd.EXPIRED, None)
                continue
            worker = idle[0][2]
            self._lease(held, worker, now, now_ms)
            if worker.free > 0:
                heapq.heapreplace(idle, (worker.load, worker.turn, worker))
            else:
                heapq.heappop(idle)

    def _lease(self, held: Held, worker: Attachment, now: float, now_ms: int) -> None:
        held.offer_count += 1
        held.worker = worker
        held.started_ms = now_ms
        self._outcomes.began(self._attempt(held, worker))
        worker.turn = self._next_turn()
        self._set_timer(held, now + worker.lease_s)
        expires_ms = now_ms + int(worker.lease_s * 1000)
        worker.offer(held, Offer(held.lease_id, expires_ms, held.offer_count, held.event))

    def _next_stamp(self) -> int:
        self._stamp += 1
        return self._stamp

    def _next_turn(self) -> int:
        self._turn += 1
        return self._turn

    # ------------------------------------------------------------ leases and delays that end

    def _set_timer(self, held: Held, at: float) -> None:
        held.stamp = self._next_stamp()
        if not self._timers or at < self._timers[0][0]:
            self._timer_set.set()
        if len(self._timers) > 2 * len(self._held) + 1_000:
            self._drop_stale_timers()
        heapq.heappush(self._timers, (at, held.stamp, held.number))

    def _drop_stale_timers(self) -> None:
        """Acknowledged messages leave their timers behind; without this a long lease would pile them up."""
        self._timers = [timer for timer in self._timers if self._stands(timer)]
        heapq.heapify(self._timers)

    def _stands(self, timer: tuple[float, int, int]) -> bool:
        held = self._held.get(timer[2])
        return held is not None and held.stamp == timer[1]

    def _fire_timers(self) -> None:
        now = self._clock.monotonic()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)
            if self._stands(timer):
                self._time_is_up(self._held[timer[2]])
        self._assign()

    def _time_is_up(self, held: Held) -> None:
        worker = held.worker
        if worker is None or not worker.has_read(held.lease_id):
            self._give_back(held, 0)  # it has waited out its delay, or never was begun
        else:
            failure = Failure(LEASE_EXPIRED, f"{worker.worker_id} has not said in time how it ended")
            self._end(held, AttemptEnd.TIMED_OUT, worker, failure)

    async def _keep_time(self) -> None:
        while True:
            self._timer_set.clear()
            self._fire_timers()
            if not self._timers:
                await self._timer_set.wait()
                continue
            wait_s = max(0.0, self._timers[0][0] - self._clock.monotonic())
            await first_of(self._timer_set, self._clock, wait_s)

    # ------------------------------------------------------------ the subscription

    async def run(self) -> None:
        """Serves until the last worker has left, or `close`. Subscribes again, after a pause, whenever that fails."""
        timekeeper = asyncio.create_task(self._keep_time())
        try:
            while self.workers and not self._closing.is_set():
                await self._serve_once()
        finally:
            self._on_over(self)
            await _cancel(timekeeper)

    async def _serve_once(self) -> None:
        try:
            await self._subscribe_and_serve()
        except Unavailable as error:
            log.warning("queue %s: %s; subscribing again", self._where, error, extra={"recurring": self._where})
            self._failures = await self._back_off(self._failures)
        except Exception:
            log.exception("queue %s: serving failed; subscribing again", self._where)
            self._failures = await self._back_off(self._failures)

    @property
    def _where(self) -> str:
        return f"{self.queue.namespace}/{self.queue.name}"

    async def _back_off(self, failures: int) -> int:
        longest = min(self._limits.backoff_s_max, self._limits.backoff_s_min * 2**failures)
        await first_of(self._closing, self._clock, longest * random.uniform(0.5, 1))
        return min(failures + 1, 16)

    async def _subscribe_and_serve(self) -> None:
        subscription = await self._deliveries.subscribe(self.queue)
        parts = [self._fetch(subscription), self._store_acks(subscription), self._until_unwanted()]
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            await _cancel(*tasks)
            await self._finish(subscription)

    async def _fetch(self, subscription: Subscription) -> None:
        while True:
            self._room_changed.clear()
            room = self._room()
            if room <= 0:
                await self._room_changed.wait()
                continue
            for delivery in await subscription.fetch(min(room, self._limits.fetch_messages_max)):
                self._take(delivery)
            self._failures = 0
            self._assign()

    def _room(self) -> int:
        """How many to fetch: what workers have places for now. What waits out a delay takes no place.

        Not more, as it may come to somebody else: subscriptions read ahead themselves.
        """
        if self._draining or self._held_bytes >= self._limits.held_bytes_max:
            return 0
        wanted = sum(max(0, worker.free) for worker in self.workers)
        return min(wanted, self._limits.offers_in_flight_max - len(self._held) - len(self._acks))

    def _take(self, delivery: Delivery) -> None:
        """Makes a fetched message ready, unless it is known from a lost subscription: at work, or done."""
        event = self._read(delivery)
        if event is None:
            self._acknowledge(delivery.token, None)
            return
        held = Held(next(self._numbers), [delivery.token], event)
        known = self._by_key.get(held.key)
        if known is not None:
            known.tokens.append(delivery.token)
        elif held.key in self._done:
            self._acknowledge(delivery.token, held.key)
        else:
            self._held[held.number] = self._by_key[held.key] = held
            self._held_bytes += held.size
            heapq.heappush(self._ready, (held.number, held))

    def _read(self, delivery: Delivery) -> TaskEvent | None:
        """The message, or None where it is not one of ours: it must not block the queue."""
        try:
            return from_headers(delivery.headers, delivery.value)
        except (KeyError, ValueError) as error:
            log.error("queue %s: dropped a message with unreadable headers: %r", self._where, error)
            return None

    async def _store_acks(self, subscription: Subscription) -> None:
        failures = 0
        while True:
            self._acks_waiting.clear()
            try:
                await self._store_waiting_acks(subscription)
                failures = 0
            except Unavailable as error:
                if failures + 1 >= self._limits.ack_tries_max:
                    raise Unavailable(f"acknowledging failed: {error}") from error
                failures = await self._back_off(failures)
                continue
            await self._acks_waiting.wait()

    async def _store_waiting_acks(self, subscription: Subscription) -> None:
        """One call at a time; what comes in meanwhile goes into the next one."""
        while self._acks:
            batch = self._acks[: self._limits.ack_messages_max]
            await subscription.ack([token for token, _ in batch])
            del self._acks[: len(batch)]
            self._room_changed.set()

    async def _until_unwanted(self) -> None:
        while not self._closing.is_set():
            self._workers_changed.clear()
            if self.workers:
                await self._workers_changed.wait()
                continue
            await first_of(self._workers_changed, self._clock, self._limits.linger_s)
            if not self.workers:
                return

    async def _finish(self, subscription: Subscription) -> None:
        """Stores the last acks, leaves the subscription, and remembers what was at work under it."""
        try:
            async with asyncio.timeout(self._limits.close_s_max):
                with suppress(Unavailable):
                    await self._store_waiting_acks(subscription)
                await subscription.close()
        except (Unavailable, TimeoutError) as error:
            log.warning("queue %s: closing the subscription failed: %r", self._where, error)
        finally:
            self._orphan_all()

    def _orphan_all(self) -> None:
        """The subscription is gone: what is not at work is forgotten, it will come again."""
        self._done = {key for _, key in self._acks if key is not None}
        self._acks.clear()
        self._ready.clear()
        for held in list(self._held.values()):
            held.tokens.clear()
            if held.worker is None and not held.ending:
                self._drop(held)

    # ------------------------------------------------------------ the end

    def drain(self) -> None:
        """No more offers. Workers end one by one, each when it has nothing left."""
        self._draining = True
        for worker in self.workers:
            self._end_if_drained(worker)

    def _end_if_drained(self, worker: Attachment) -> None:
        if self._draining and not worker.leased:
            worker.end()

    @property
    def busy(self) -> bool:
        """True while a worker has something leased, or what has ended is yet to be told."""
        return any(worker.leased for worker in self.workers) or any(held.ending for held in self._held.values())

    def close(self) -> None:
        """Makes `run` end soon, whatever workers still have."""
        self._draining = True
        self._closing.set()
        for worker in self.workers:
            worker.end()
        self._workers_changed.set()


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
