"""Task ids: UUIDv8 (RFC 9562) that say where the task's home row is.

    bits 127..96  due minute      95..80  ms in the minute      79..76  version 8
         75..64   shard           63..62  variant               61..0   random

Ids of one shard count sort by due time; 62 random bits keep the ids of one millisecond and shard apart.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .errors import InvalidArgument
from .task import BUCKET_MS

SHARDS_MAX = 4096
RANDOM_BITS = 62
MINUTE_MAX = (1 << 32) - 1
_SPELLING = re.compile("[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")


class Home(NamedTuple):
    """Where a task's home row lives."""

    due_ms: int
    shard: int


def mint(due_ms: int, shard: int, random_bits: int) -> bytes:
    """The id of a task due at `due_ms` in `shard`. `random_bits`: at least 62 bits of fresh randomness."""
    minute, ms = divmod(due_ms, BUCKET_MS)
    assert 0 <= minute <= MINUTE_MAX, due_ms
    assert 0 <= shard < SHARDS_MAX, shard
    high = (minute << 32) | (ms << 16) | (8 << 12) | shard
    low = (0b10 << 62) | (random_bits & ((1 << RANDOM_BITS) - 1))
    return ((high << 64) | low).to_bytes(16, "big")


def home_of(task_id: bytes) -> Home:
    """Where the home row of a well-formed id is."""
    high = int.from_bytes(task_id[:8], "big")
    return Home((high >> 32) * BUCKET_MS + ((high >> 16) & 0xFFFF), high & 0xFFF)


def shard_in(task_id: bytes) -> int:
    """The shard that a well-formed id carries."""
    return ((task_id[6] & 0x0F) << 8) | task_id[7]


def text(task_id: bytes) -> str:
    """The public form: a UUID in its usual spelling."""
    digits = task_id.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def parse(value: str, shards: int, field: str = "task_id") -> bytes:
    """The id of its public form. Raises InvalidArgument unless a cluster with `shards` shards could have minted it."""
    if not _SPELLING.fullmatch(value):
        raise InvalidArgument(field, "must be a UUID such as 01d3a5b8-4e20-80a7-9d0e-5f0c1a2b3c4d")
    raw = bytes.fromhex(value.replace("-", ""))
    if raw[6] >> 4 != 8 or raw[8] >> 6 != 0b10:
        raise InvalidArgument(field, "must be a UUID of version 8 that bucketsched minted")
    if int.from_bytes(raw[4:6], "big") >= BUCKET_MS or shard_in(raw) >= shards:
        raise InvalidArgument(field, f"must carry a millisecond below {BUCKET_MS} and a shard below {shards}")
    return raw
