"""Packs messages into Kafka record batches: one unit of a produce request, with a sequence number of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from ...core.message import Headers

MAGIC = 2
NO_COMPRESSION = 0
SEQUENCES = 1 << 31
"""Sequence numbers start again at 0 behind this."""

Place = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True)
class Producer:
    """The identity that a batch carries: brokers refuse it once a newer epoch exists."""

    producer_id: int
    epoch: int


@dataclass(slots=True)
class Item:
    """One record to be packed. `index`: of the message in its transaction, -1 for the journal's record."""

    index: int
    key: bytes | None
    value: bytes
    headers: Headers


@dataclass(slots=True)
class Batch:
    """Packed records of one partition. `sizes`: bytes of each record."""

    place: Place
    sequence: int
    data: bytes
    indices: list[int]
    sizes: list[int] = field(default_factory=list)

    @property
    def next_sequence(self) -> int:
        """The sequence of the batch behind this one."""
        return (self.sequence + len(self.indices)) % SEQUENCES


def size_of(key: bytes | None, value: bytes, headers: Headers) -> int:
    """Upper bound of the bytes of a batch that holds this record alone."""
    return int(DefaultRecordBatchBuilder.estimate_size_in_bytes(key, value, headers))


def pack(place: Place, items: Sequence[Item], producer: Producer, sequence: int, bytes_max: int) -> list[Batch]:
    """All items in order, in batches of at most `bytes_max` bytes (a record larger than that has one to itself)."""
    batches: list[Batch] = []
    start = 0
    while start < len(items):
        batch = _fill(place, items, start, producer, sequence, bytes_max)
        start, sequence = start + len(batch.indices), batch.next_sequence
        batches.append(batch)
    return batches


def _fill(place: Place, items: Sequence[Item], start: int, producer: Producer, sequence: int, bytes_max: int) -> Batch:
    builder: Any = DefaultRecordBatchBuilder(
        MAGIC, NO_COMPRESSION, True, producer.producer_id, producer.epoch, sequence, bytes_max
    )
    append, timestamp, sizes = builder.append, None, []
    for offset in range(len(items) - start):
        item = items[start + offset]
        added = append(offset, timestamp, item.key, item.value, item.headers)
        if added is None:
            break
        timestamp = added.timestamp
        sizes.append(added.size)
    indices = [item.index for item in items[start : start + len(sizes)]]
    return Batch(place, sequence, bytes(builder.build()), indices, sizes)
