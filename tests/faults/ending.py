"""What is read when everything has drained and all processes have ended: topics, journal and rows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from bucketsched.adapters.cassandra.session import CassandraSession
from bucketsched.config import Settings
from bucketsched.core import journal_record
from bucketsched.core import task_id as ids
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.errors import Unavailable
from bucketsched.core.task import FactKind, RowRef, Stage, at_stage, stage_of
from bucketsched.encoding.rows import decode_body

from .model import Body, Dispatch, EntryKind, Fact, Row, Section, body_of

SENTINEL = b"the end of the run"
READ_S_MAX = 120.0
REQUEST_MS_MAX = 10_000
TRIES, RETRY_S = 10, 2.0
T = TypeVar("T")
KINDS = {
    (Stage.DISPATCH, FactKind.DISPATCHED): EntryKind.DISPATCHED,
    (Stage.DISPATCH, FactKind.CANCELLED): EntryKind.CANCELLED,
    (Stage.DISPATCH, FactKind.FAILED): EntryKind.FAILED,
    (Stage.DISPATCH, FactKind.MOVED): EntryKind.MOVED,
    (Stage.DISPATCH, FactKind.EXPIRED): EntryKind.EXPIRED,
    (Stage.OUTCOME, FactKind.SUCCEEDED): EntryKind.SUCCEEDED,
    (Stage.OUTCOME, FactKind.RETRIED): EntryKind.RETRIED,
    (Stage.OUTCOME, FactKind.FAILED): EntryKind.ATTEMPT_FAILED,
    (Stage.OUTCOME, FactKind.EXPIRED): EntryKind.ATTEMPT_EXPIRED,
    (Stage.REDRIVE, FactKind.MOVED): EntryKind.REDRIVEN,
}
FACT_COLUMNS = {
    "dispatched_at": EntryKind.DISPATCHED,
    "cancelled_at": EntryKind.CANCELLED,
    "failed_at": EntryKind.FAILED,
    "moved_to": EntryKind.MOVED,
    "succeeded_at": EntryKind.SUCCEEDED,
    "expired_at": EntryKind.EXPIRED,
}


async def persistently(work: Callable[[], Awaitable[T]]) -> T:
    """Tries until servers that have been started again have come to themselves. Raises Unavailable after TRIES."""
    for _ in range(TRIES - 1):
        try:
            return await work()
        except Unavailable:
            await asyncio.sleep(RETRY_S)
    return await work()


async def read_topics(bootstrap: str, topics: list[str]) -> dict[str, list[tuple[int, Any]]]:
    """All committed records of the topics, with their partitions.

    A record of the rig's own is written behind them: a `read_committed` reader gets it only when every transaction
    before it has ended.
    """
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest", group_id=None
    )
    async with asyncio.timeout(READ_S_MAX):
        await consumer.start()
        try:
            places = await _places(consumer, topics)
            await _write_sentinels(bootstrap, places)
            return await _read_to_sentinels(consumer, places)
        finally:
            await consumer.stop()


async def _places(consumer: AIOKafkaConsumer, topics: list[str]) -> list[TopicPartition]:
    consumer.subscribe(topics)
    places: list[TopicPartition] = []
    while {place.topic for place in places} != set(topics):
        await consumer.getmany(timeout_ms=100, max_records=1)
        places = sorted(consumer.assignment())
    consumer.unsubscribe()
    return places


async def _write_sentinels(bootstrap: str, places: list[TopicPartition]) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all")
    await producer.start()
    try:
        for place in places:
            await producer.send_and_wait(place.topic, SENTINEL, partition=place.partition)
    finally:
        await producer.stop()


async def _read_to_sentinels(
    consumer: AIOKafkaConsumer, places: list[TopicPartition]
) -> dict[str, list[tuple[int, Any]]]:
    consumer.assign(places)
    await consumer.seek_to_beginning(*places)
    found: dict[str, list[tuple[int, Any]]] = {place.topic: [] for place in places}
    left = set(places)
    while left:
        batches = await consumer.getmany(timeout_ms=200, max_records=5_000)
        for place, records in batches.items():
            for record in records:
                if record.value == SENTINEL:
                    left.discard(place)
                else:
                    found[place.topic].append((place.partition, record))
    return found


def journal_sections(records: list[tuple[int, Any]]) -> list[Section]:
    """The journal's records, range by range."""
    sections = []
    for partition, record in records:
        for section in journal_record.decode(record.value).sections:
            facts = [_fact(EntryKind.DISPATCHED, ref) for ref in section.dispatched]
            facts += [_other(other) for other in section.others]
            sections.append(
                Section(
                    partition,
                    record.offset,
                    record.timestamp,
                    section.range_id,
                    section.epoch,
                    tuple(facts),
                    tuple(section.closed),
                )
            )
    return sections


def _fact(kind: EntryKind, packed: bytes) -> Fact:
    ref = RowRef.unpack(at_stage(packed, Stage.DISPATCH))
    return Fact(kind, Dispatch(ids.text(ref.task_id), ref.generation, ref.attempt), ref.due_ms)


def _other(other: journal_record.Other) -> Fact:
    kind = KINDS[stage_of(other.ref), other.kind]
    changed = other.body and kind in (EntryKind.MOVED, EntryKind.REDRIVEN)
    fact = _fact(kind, other.ref)
    return fact._replace(body=_body(other.body) if changed else None, next_due_ms=other.new_due_ms)


def _body(encoded: bytes) -> Body:
    body = decode_body(encoded)
    return body_of(
        body.namespace,
        body.queue,
        body.type,
        body.payload,
        body.metadata,
        body.content_type,
        body.priority,
        body.nominal_due_ms,
    )


async def read_rows(settings: Settings, constants: ClusterConstants, first: int, last: int) -> list[Row]:
    """All rows of these buckets."""
    patient = settings.cassandra.model_copy(update={"request_timeout_ms": REQUEST_MS_MAX})
    session = await persistently(lambda: CassandraSession.connect(patient))
    columns = ", ".join(FACT_COLUMNS)
    try:
        prepared = await session.prepare(
            f"SELECT task_id, generation, attempt, {columns} FROM @tasks WHERE bucket = ? AND shard = ?"
        )
        rows = []
        for bucket in range(first, last + 1):
            for shard in range(constants.shards):
                part = await persistently(partial(session.read, prepared, (bucket, shard)))
                rows += [_row(constants.range_of(shard), bucket, each) for each in part]
        return rows
    finally:
        await session.close()


def _row(range_id: int, bucket: int, values: tuple[Any, ...]) -> Row:
    task_id, generation, attempt, *facts = values
    kinds = frozenset(kind for kind, at in zip(FACT_COLUMNS.values(), facts, strict=True) if at is not None)
    dispatch = Dispatch(ids.text(task_id), generation or 0, attempt or 1)
    return Row(range_id, bucket, dispatch, generation is not None, kinds)
