"""Reads committed records of one partition up to a snapshot of its end.

It asks brokers itself instead of using a consumer: what ends the reading is the position *passing* the snapshot, by
records, aborted records and transaction markers alike. A consumer's position stops before a trailing marker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from aiokafka.consumer.fetcher import READ_COMMITTED, READ_UNCOMMITTED, PartitionRecords
from aiokafka.errors import KafkaError
from aiokafka.protocol.admin import DeleteRecordsRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition

from ...core.errors import Unavailable
from ...ports import JournalEntry
from .codes import LEADER_MOVED, PASSING, Code
from .connection import READING, RETRY_BACKOFF_MS, Connection
from .topic_map import TopicMap

RETRY_S_MAX = 5.0
"""How long one question to the brokers is repeated."""
FETCH_WAIT_MS = 10
FETCH_BYTES_MAX = 4 * 1024 * 1024
DELETE_TIMEOUT_MS = 2_000
LATEST, EARLIEST = -1, -2
NO_REPLICA = -1

Result = TypeVar("Result")


class _Passing(Unavailable):
    """The broker asks to be asked again."""


@dataclass(slots=True)
class _Fetched:
    """Committed records, and the offset behind all that was read, markers and aborted records included."""

    entries: list[JournalEntry]
    next_offset: int


class Reader:
    """Reads partitions of one topic. `stall_s_max`: how long a transaction open below the snapshot is awaited."""

    def __init__(self, connection: Connection, topics: TopicMap, topic: str, stall_s_max: float) -> None:
        self._connection = connection
        self._topics = topics
        self._unreached = False
        self._topic = topic
        self._stall_s_max = stall_s_max

    async def start(self, partition: int) -> int:
        """The first offset that is left. Raises Unavailable."""
        return await self._retried(lambda: self._offset(partition, EARLIEST))

    async def end(self, partition: int) -> int:
        """The high watermark: behind every acknowledged record, open transactions' included. Raises Unavailable.

        Not the last stable offset: a commit is answered before its markers are written, so that may lie before a
        record that is committed already.
        """
        return await self._retried(lambda: self._offset(partition, LATEST))

    async def find(self, partition: int, at_ms: int) -> int | None:
        """The offset of the first committed record whose time stamp is this or later. Raises Unavailable.

        Brokers answer with the first record of any kind, so what was aborted, and markers, are passed over by reading.
        """
        end = await self.end(partition)
        first = await self._retried(lambda: self._offset(partition, max(at_ms, 0)))
        if first < 0:
            return None
        async with aclosing(self.read(partition, first, end)) as found:
            async for entries in found:
                return entries[0].offset
        return None

    async def trim(self, partition: int, before: int) -> None:
        """Has the broker forget the records before an offset, at most to the last stable one. Raises Unavailable."""
        stable = await self._retried(lambda: self._offset(partition, LATEST, READ_COMMITTED))
        await self._retried(lambda: self._delete(partition, min(before, stable)))

    async def read(self, partition: int, start: int, end: int) -> AsyncGenerator[list[JournalEntry], None]:
        """Committed records with start <= offset < end. Raises Unavailable, also where `start` was trimmed away."""
        position, moved_at = start, _now()
        while position < end:
            fetched = await self._retried(lambda at=position: self._fetch(partition, at))  # type: ignore[misc]
            entries = [entry for entry in fetched.entries if entry.offset < end]
            if entries:
                yield entries
            if fetched.next_offset > position:
                position, moved_at = fetched.next_offset, _now()
            elif _now() - moved_at > self._stall_s_max:
                raise Unavailable(f"{self._topic}/{partition}: a transaction is open at {position} for too long")

    async def _retried(self, ask: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        deadline = _now() + RETRY_S_MAX
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await ask()
            except TimeoutError as error:
                self._unreached = True
                raise Unavailable(f"{self._topic}: no answer within {RETRY_S_MAX} s") from error
            except Unavailable as error:
                if not _may_pass(error) or _now() > deadline:
                    raise
                self._unreached |= not isinstance(error, _Passing)
            await asyncio.sleep(RETRY_BACKOFF_MS / 1000)

    async def _leader(self, partition: int) -> int:
        leader = self._topics.leader(self._topic, partition)
        if leader < 0 or self._unreached:  # a broker that is gone can't say that another one leads now
            await self._topics.refresh([self._topic])
            self._unreached = False
            leader = self._topics.leader(self._topic, partition)
        if leader < 0:
            raise _Passing(f"{self._topic}/{partition} has no leader")
        return leader

    async def _offset(self, partition: int, which: int, isolation: int = READ_UNCOMMITTED) -> int:
        """`which`: LATEST, EARLIEST, or a time in ms, for which it is -1 if nothing is as late."""
        request = OffsetRequest(NO_REPLICA, isolation, [(self._topic, [(partition, which)])])
        response = await self._connection.send(await self._leader(partition), request, READING)
        [(_, [(_, code, *_, offset)])] = response.topics
        self._check(partition, Code(code))
        return int(offset)

    async def _delete(self, partition: int, before: int) -> None:
        request = DeleteRecordsRequest([(self._topic, [(partition, before)])], DELETE_TIMEOUT_MS)
        response = await self._connection.send(await self._leader(partition), request, READING)
        [(_, [(_, _, code, *_)], *_)] = response.topics
        if Code(code) is not Code.OFFSET_OUT_OF_RANGE:  # forgotten already
            self._check(partition, Code(code))

    async def _fetch(self, partition: int, at: int) -> _Fetched:
        request = FetchRequest(
            max_wait_time=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_BYTES_MAX,
            isolation_level=READ_COMMITTED,
            topics=[(self._topic, [(partition, at, FETCH_BYTES_MAX)])],
        )
        response = await self._connection.send(await self._leader(partition), request, READING)
        [(_, [(_, code, *_)])] = response.topics
        self._check(partition, Code(code))
        [(_, [answer])] = response.topics
        aborted, data = _contents(response.API_VERSION, answer)
        return _unpack(TopicPartition(self._topic, partition), aborted, data, at)

    def _check(self, partition: int, code: Code) -> None:
        if code is Code.NONE:
            return
        if code in LEADER_MOVED:
            self._topics.forget([self._topic])
        error = _Passing if code in PASSING or code is Code.UNKNOWN else Unavailable
        raise error(f"{self._topic}/{partition}: {code.name}")


def _contents(version: int, answer: Any) -> tuple[list[tuple[int, int]], bytes]:
    """Aborted transactions and records of a partition's answer; what lies between differs by protocol version."""
    assert version >= 4, version
    aborted = answer[4] if version == 4 else answer[5]
    return aborted or [], answer[-1]


def _unpack(place: TopicPartition, aborted: list[tuple[int, int]], data: bytes, at: int) -> _Fetched:
    records = PartitionRecords(place, MemoryRecords(data), aborted, at, None, None, True, READ_COMMITTED)
    try:
        entries = [JournalEntry(record.offset, record.value) for record in records]
    except KafkaError as error:
        raise Unavailable(f"{place.topic}/{place.partition} from {at}: {error!r}") from error
    return _Fetched(entries, records.next_fetch_offset)


def _may_pass(error: Unavailable) -> bool:
    return type(error) is not Unavailable


def _now() -> float:
    return asyncio.get_running_loop().time()
