"""The packed journal record: what one transaction of a lane did, per range and epoch.

    record   := "BJ" | schema u8 | lane u16 | nonce 16 | at_ms u64 | sections u16 | section*
    section  := range u16 | epoch u32 | dispatched u32 | ref 48 *
                | closed u16 | bucket u64 * | others u32 | other *
    other    := kind u8 | ref 48 | length u32 | data        (data of FAILED: reason in UTF-8; of MOVED,
                of SPAWNED, and of outcomes, which the stage in their ref tells: new due u64, body)

`nonce` is unique to a transaction: by it a lane finds out whether one in doubt was committed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from .task import REF_BYTES, FactKind, Stage, stage_of

SCHEMA = 1
_HEAD = struct.Struct(">2sBH16sQH")
_SECTION = struct.Struct(">HII")
_OTHER = struct.Struct(f">B{REF_BYTES}sI")
_U16, _U32, _U64 = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q")


class JournalCorrupt(Exception):
    """The bytes are not a record of this schema."""


@dataclass(slots=True)
class Other:
    """A fact that is not a plain dispatch. `reason` for FAILED at the stage of dispatch; `new_due_ms` and `body` for
    MOVED and SPAWNED (the new row's body, encoded) and for all outcomes (what the execution log says, encoded).
    """

    kind: FactKind
    ref: bytes
    reason: str = ""
    new_due_ms: int = 0
    body: bytes = b""


@dataclass(slots=True)
class Section:
    """What a transaction did for one range, under the epoch at which the lane owned it."""

    range_id: int
    epoch: int
    dispatched: list[bytes] = field(default_factory=list)
    others: list[Other] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """True if there is nothing to record."""
        return not (self.dispatched or self.others or self.closed)


@dataclass(slots=True)
class JournalRecord:
    """One transaction of a lane. `at_ms`: when it was dispatched."""

    lane: int
    nonce: bytes
    at_ms: int
    sections: list[Section]


def encode(record: JournalRecord) -> bytes:
    """Packs a record."""
    parts = [_HEAD.pack(b"BJ", SCHEMA, record.lane, record.nonce, record.at_ms, len(record.sections))]
    for section in record.sections:
        parts.append(_SECTION.pack(section.range_id, section.epoch, len(section.dispatched)))
        parts.extend(section.dispatched)
        parts.append(_U16.pack(len(section.closed)))
        parts.extend(_U64.pack(bucket) for bucket in section.closed)
        parts.append(_U32.pack(len(section.others)))
        for other in section.others:
            data = _data_of(other)
            parts.append(_OTHER.pack(other.kind, other.ref, len(data)))
            parts.append(data)
    return b"".join(parts)


def _data_of(other: Other) -> bytes:
    if _with_body(other):
        return _U64.pack(other.new_due_ms) + other.body
    if other.kind is FactKind.FAILED:
        return other.reason.encode(errors="replace")
    return b""


def _with_body(other: Other) -> bool:
    return other.kind in (FactKind.MOVED, FactKind.SPAWNED) or stage_of(other.ref) is Stage.OUTCOME


def decode(value: bytes) -> JournalRecord:
    """Unpacks a record. Raises JournalCorrupt."""
    try:
        magic, schema, lane, nonce, at_ms, count = _HEAD.unpack_from(value)
        if magic != b"BJ" or schema != SCHEMA:
            raise JournalCorrupt(f"magic {magic!r}, schema {schema}")
        at = _HEAD.size
        sections = []
        for _ in range(count):
            section, at = _section(value, at)
            sections.append(section)
        if at != len(value):
            raise JournalCorrupt(f"{len(value) - at} bytes too many")
    except (struct.error, ValueError) as error:
        raise JournalCorrupt(str(error)) from error
    return JournalRecord(lane, nonce, at_ms, sections)


def written_ms(value: bytes) -> int:
    """The `at_ms` of a packed record, without unpacking it. Raises JournalCorrupt."""
    try:
        magic, schema, _, _, at_ms, _ = _HEAD.unpack_from(value)
    except struct.error as error:
        raise JournalCorrupt(str(error)) from error
    if magic != b"BJ" or schema != SCHEMA:
        raise JournalCorrupt(f"magic {magic!r}, schema {schema}")
    return int(at_ms)


def _section(value: bytes, at: int) -> tuple[Section, int]:
    range_id, epoch, dispatched = _SECTION.unpack_from(value, at)
    at += _SECTION.size
    end = at + dispatched * REF_BYTES
    if end > len(value):
        raise JournalCorrupt("cut off")
    refs = [value[i : i + REF_BYTES] for i in range(at, end, REF_BYTES)]
    (closed,) = _U16.unpack_from(value, end)
    at = end + 2
    buckets = [_U64.unpack_from(value, at + 8 * i)[0] for i in range(closed)]
    at += 8 * closed
    (others,) = _U32.unpack_from(value, at)
    at += 4
    section = Section(range_id, epoch, refs, [], buckets)
    for _ in range(others):
        other, at = _other(value, at)
        section.others.append(other)
    return section, at


def _other(value: bytes, at: int) -> tuple[Other, int]:
    kind, ref, length = _OTHER.unpack_from(value, at)
    at += _OTHER.size
    data = value[at : at + length]
    if len(data) != length:
        raise JournalCorrupt("cut off")
    other = Other(FactKind(kind), ref)
    if _with_body(other):
        (other.new_due_ms,), other.body = _U64.unpack_from(data), data[8:]
    elif other.kind is FactKind.FAILED:
        other.reason = data.decode()
    return other, at + length
