"""What the journal says, sorted by the bucket that it is about, in files: a day of it is more than memory holds."""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from ..core.task import REF_BYTES, FactKind, RowRef, bucket_of
from ..core.task_id import shard_in

BUFFERED_BYTES_MAX = 32 * 1024 * 1024
"""Beyond this everything gathered is appended to its files."""
READ_BYTES = 1024 * 1024
_HEAD = struct.Struct(f">{REF_BYTES}sBQI")


class Said(NamedTuple):
    """One fact as a record has it. `at_ms`: when; for MOVED: the new due time."""

    ref: bytes
    kind: FactKind
    at_ms: int
    reason: str = ""
    body: bytes = b""
    """For MOVED: of the new row, encoded, where it is not that of the old one."""


class Spill:
    """Facts by bucket. 61 bytes each on disk, and its reason's or body's; BUFFERED_BYTES_MAX of them in memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._buffers: defaultdict[int, bytearray] = defaultdict(bytearray)
        self._buffered = 0
        self.counts: Counter[int] = Counter()
        """Facts by bucket."""

    def add(self, said: Said) -> None:
        """Takes one in."""
        bucket, rest = bucket_of(RowRef.unpack(said.ref).due_ms), said.body or said.reason.encode()
        packed = _HEAD.pack(said.ref, said.kind, said.at_ms, len(rest)) + rest
        self._buffers[bucket] += packed
        self._buffered += len(packed)
        self.counts[bucket] += 1
        if self._buffered > BUFFERED_BYTES_MAX:
            self._flush()

    def read(self, bucket: int, shards: Collection[int]) -> dict[bytes, list[Said]]:
        """What was said of the rows of these shards of a bucket, in the order in which it was added."""
        found: dict[bytes, list[Said]] = {}
        for said in self._read(bucket):
            if shard_in(said.ref[24:40]) in shards:
                found.setdefault(said.ref, []).append(said)
        return found

    def _flush(self) -> None:
        for bucket, buffer in self._buffers.items():
            with self._path(bucket).open("ab") as file:
                file.write(buffer)
        self._buffers.clear()
        self._buffered = 0

    def _read(self, bucket: int) -> Iterator[Said]:
        self._flush()
        path = self._path(bucket)
        if not path.exists():
            return
        with path.open("rb", buffering=READ_BYTES) as file:
            while head := file.read(_HEAD.size):
                ref, kind, at_ms, length = _HEAD.unpack(head)
                rest = file.read(length)
                moved = kind == FactKind.MOVED
                yield Said(ref, FactKind(kind), at_ms, "" if moved else rest.decode(), rest if moved else b"")

    def _path(self, bucket: int) -> Path:
        return self._folder / f"{bucket}.facts"
