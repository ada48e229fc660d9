"""Worker queues' messages, as a consumer group per queue reads them: committed ones only.

A task of the subscription's own reads ahead into a bounded buffer, so that a slow worker holds up nobody and never
costs the membership of the group. What is acknowledged becomes durable when everything before it in its partition is:
until then a successor gets it again.

A rebalance takes all partitions away and usually gives some back. What was handed over of those that come back stays
known, so that it is not handed over twice; of the others the done ones are committed and the rest is forgotten.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import CommitFailedError, ConsumerStoppedError, IllegalStateError, KafkaError

from ...config import KafkaSettings
from ...core.catalog import Queue
from ...core.cluster import ClusterConstants
from ...core.errors import Unavailable
from ...ports import Delivery, Subscription
from .connection import RETRY_BACKOFF_MS, client_arguments
from .progress import NOTHING, Progress

UNACKED_MAX = 10_000
START_S_MAX = 10.0
COMMIT_S_MAX = 5.0
CLOSE_S_MAX = 3.0
SESSION_TIMEOUT_MS = 10_000
HEARTBEAT_MS = 500
"""Also how soon a member notices that another has come."""
REQUEST_TIMEOUT_MS = 15_000
"""Longer than a session: joining a group is answered when all members have joined."""
FETCH_WAIT_MS = 100
"""A partition that was just assigned waits at most this long for a fetch that is under way for others."""
POLL_MS = 1_000
RECORDS_PER_POLL_MAX = 1_000
POLL_INTERVAL_MS_MAX = 2**31 - 1
"""The time between polls says nothing about workers here, so it must never cost the membership."""


class KafkaDeliveries:
    """Port Deliveries. `unacked_max`: of one queue in this process; beyond it nothing more is fetched.

    `read_ahead_max`: of those, the ones that nobody has asked for yet.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        constants: ClusterConstants,
        unacked_max: int = UNACKED_MAX,
        read_ahead_max: int = UNACKED_MAX,
    ) -> None:
        assert unacked_max > 0, unacked_max
        self._read_ahead_max = read_ahead_max
        self._settings = settings
        self._constants = constants
        self._unacked_max = unacked_max

    async def subscribe(self, queue: Queue) -> Subscription:
        """Raises Unavailable."""
        assert queue.topic, queue.name
        consumer = AIOKafkaConsumer(
            **client_arguments(self._settings),
            client_id=f"bucketsched-deliver-{queue.name}",
            group_id=self.group_of(queue),
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            max_poll_interval_ms=POLL_INTERVAL_MS_MAX,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            retry_backoff_ms=RETRY_BACKOFF_MS,
            fetch_max_wait_ms=FETCH_WAIT_MS,
        )
        subscription = KafkaSubscription(consumer, queue.topics, self._unacked_max, self._read_ahead_max)
        await subscription.start()
        return subscription

    def group_of(self, queue: Queue) -> str:
        """The consumer group that delivers a queue. Names have no slash, so two queues never share one."""
        return f"bucketsched-{self._constants.cluster_id}-deliver-{queue.namespace}/{queue.name}"


class KafkaSubscription(ConsumerRebalanceListener):  # type: ignore[misc]
    """Port Subscription."""

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        topics: Sequence[str],
        unacked_max: int,
        read_ahead_max: int = UNACKED_MAX,
    ) -> None:
        self._consumer = consumer
        self._unacked_max = unacked_max
        self._read_ahead_max = read_ahead_max
        self._buffers: dict[str, deque[Delivery]] = {topic: deque() for topic in topics}
        self._progress: dict[TopicPartition, Progress] = {}
        self._places: dict[int, TopicPartition] = {}
        self._unacked = 0
        self._numbers = itertools.count(1)
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._committing = asyncio.Lock()
        self._failure = ""
        self._rebalancing = False
        self._closed = False
        self._pump: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connects; partitions are assigned later. Raises Unavailable."""
        try:
            async with asyncio.timeout(START_S_MAX):
                await self._consumer.start()
        except (TimeoutError, KafkaError, OSError) as error:
            await self._stop_consumer()
            raise Unavailable(f"no subscription: {error!r}") from error
        self._consumer.subscribe(list(self._buffers), listener=self)
        self._pump = asyncio.create_task(self._read_ahead(), name="read ahead")
        self._pump.add_done_callback(lambda _: self._arrived.set())

    # ------------------------------------------------------------ the port

    async def fetch(self, limit: int) -> list[Delivery]:
        """Waits for messages; 1 to `limit`, of higher priority first, else oldest first. Raises Unavailable."""
        assert limit > 0, limit
        while True:
            if self._closed:
                raise Unavailable("the subscription is closed")
            if taken := self._take(limit):
                return taken
            if self._failure:
                reason, self._failure = self._failure, ""
                raise Unavailable(reason)
            if self._pump is None or self._pump.done():
                raise Unavailable(f"reading ahead has ended, subscribe again: {self._pump}")
            self._arrived.clear()
            await self._arrived.wait()

    async def ack(self, tokens: Sequence[int]) -> None:
        """These are done. Durable on return as far as everything before them in their partition is done.

        Tokens of partitions that were taken away are ignored: the message comes again, here or elsewhere.
        Raises Unavailable; the acknowledgements are then kept, and tried again with the next ones.
        """
        if self._closed:
            raise Unavailable("the subscription is closed")
        for token in tokens:
            place = self._places.pop(token, None)
            if place is not None:
                self._unacked -= self._progress[place].finish(token)
        self._room.set()
        if any(progress.uncommitted for progress in self._progress.values()):
            await self._commit_soon()

    async def close(self) -> None:
        """What was fetched and not acknowledged comes again, here or elsewhere. Bounded by thrice CLOSE_S_MAX."""
        if self._closed:
            return
        self._closed = True
        self._arrived.set()
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        try:
            async with asyncio.timeout(CLOSE_S_MAX):
                await self._commit_once()
        except (TimeoutError, KafkaError, IllegalStateError):
            pass  # the messages come again
        await self._stop_consumer()

    # ------------------------------------------------------------ reading ahead

    async def _read_ahead(self) -> None:
        while True:
            room = self._room_left
            if room <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            try:
                found = await self._consumer.getmany(timeout_ms=POLL_MS, max_records=min(room, RECORDS_PER_POLL_MAX))
            except ConsumerStoppedError:
                return
            except (KafkaError, OSError) as error:
                self._failure = f"reading ahead: {error!r}"
                self._arrived.set()
                await asyncio.sleep(RETRY_BACKOFF_MS / 1000)
                continue
            for place, records in found.items():
                self._add(place, records)

    @property
    def _room_left(self) -> int:
        """How many more to read ahead."""
        waiting = sum(len(buffer) for buffer in self._buffers.values())
        return min(self._unacked_max - self._unacked, self._read_ahead_max - waiting)

    def _add(self, place: TopicPartition, records: Iterable[Any]) -> None:
        progress = self._progress.setdefault(place, Progress())
        buffer = self._buffers[place.topic]
        for record in records:
            if progress.is_repeat(record.offset):
                continue
            token = next(self._numbers)
            progress.add(record.offset, token)
            self._places[token] = place
            self._unacked += 1
            headers = [(name, value or b"") for name, value in record.headers]
            buffer.append(Delivery(token, headers, record.value or b""))
        self._arrived.set()

    def _take(self, limit: int) -> list[Delivery]:
        taken: list[Delivery] = []
        for buffer in self._buffers.values():
            while buffer and len(taken) < limit:
                taken.append(buffer.popleft())
        self._room.set()
        return taken

    # ------------------------------------------------------------ committing offsets

    async def _commit_soon(self) -> None:
        """Commits what can be; acknowledgements that come meanwhile share the next request. Raises Unavailable."""
        try:
            async with asyncio.timeout(COMMIT_S_MAX):
                while True:
                    if await self._committed():
                        return
                    await asyncio.sleep(RETRY_BACKOFF_MS / 1000)
        except (TimeoutError, KafkaError) as error:
            raise Unavailable(f"offsets not committed: {error!r}") from error

    async def _committed(self) -> bool:
        """False while the group is rebalancing."""
        try:
            await self._commit_once()
        except (CommitFailedError, IllegalStateError):
            return False
        return True

    async def _commit_once(self) -> None:
        async with self._committing:
            assigned = self._consumer.assignment()
            if (
                not self._rebalancing
            ):  # a poll under way may have brought records of a partition that was lost meanwhile
                self._forget(*(set(self._progress) - assigned))
            waiting = {place: p.committable for place, p in self._progress.items() if p.uncommitted}
            offsets = {place: offset for place, offset in waiting.items() if place in assigned}
            if offsets:
                await self._consumer.commit(offsets)
            for place, offset in offsets.items():
                if place in self._progress:
                    self._progress[place].committed = offset
            if len(offsets) < len(waiting):
                raise CommitFailedError("partitions are being reassigned")

    # ------------------------------------------------------------ rebalances

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """All partitions are taken away; some come back with the next assignment."""
        self._rebalancing = True
        try:
            async with asyncio.timeout(COMMIT_S_MAX):
                await self._commit_once()
        except (TimeoutError, KafkaError, IllegalStateError):
            pass  # the messages come again

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Forgets what is lost, and what others went on with meanwhile."""
        self._rebalancing = False
        mine = list(assigned)
        self._forget(*(set(self._progress) - set(mine)))
        offsets = await asyncio.gather(*(self._offset_of(place) for place in mine))
        for place, offset in zip(mine, offsets, strict=True):
            if offset != NOTHING and place in self._consumer.assignment():
                self._resume(place, offset)

    def _resume(self, place: TopicPartition, offset: int) -> None:
        """Goes on from the group's offset, unless it is where this process left off."""
        known = self._progress.setdefault(place, Progress())
        if known.committed not in (NOTHING, offset):
            self._forget(place)
            self._consumer.seek(place, offset)
            known = self._progress[place] = Progress()
        known.committed = offset

    async def _offset_of(self, place: TopicPartition) -> int:
        """What Kafka has of the group, NOTHING if it can't be learnt."""
        try:
            async with asyncio.timeout(COMMIT_S_MAX):
                offset = await self._consumer.committed(place)
        except (TimeoutError, KafkaError, IllegalStateError):
            return NOTHING
        return NOTHING if offset is None else int(offset)

    def _forget(self, *places: TopicPartition) -> None:
        for place in places:
            progress = self._progress.pop(place)
            for token in progress.tokens:
                del self._places[token]
            self._unacked -= len(progress)
            buffer = self._buffers[place.topic]
            kept = [delivery for delivery in buffer if delivery.token in self._places]
            buffer.clear()
            buffer.extend(kept)
        self._room.set()

    async def _stop_consumer(self) -> None:
        """A stop with the broker gone may fail, hang, or raise its own tasks' CancelledError: none of it comes out."""
        for closing in (self._consumer.stop(), self._consumer._client.close()):
            task = asyncio.create_task(closing)
            await asyncio.wait({task}, timeout=CLOSE_S_MAX)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
