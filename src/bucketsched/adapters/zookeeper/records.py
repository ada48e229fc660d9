"""What the nodes hold, as JSON: a person can read it with any ZooKeeper client."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ...core.errors import Unavailable
from ...ports import Member, Plan

NO_SESSION = 0
_MEMBER_FIELDS = frozenset(field.name for field in fields(Member)) - {"incarnation"}


class Unreadable(Unavailable):
    """A node holds something that no version of this package has written."""


@dataclass(frozen=True, slots=True)
class RangeRecord:
    """A range's node. `session`: whose lease was created with this record; NO_SESSION after it was given up."""

    epoch: int = 0
    lane: int = -1
    released: bool = True
    predecessors: tuple[int, ...] = ()
    session: int = NO_SESSION

    def encode(self) -> bytes:
        """The node's data."""
        return _dump(asdict(self))

    def taken_by(self, lane: int, session: int) -> RangeRecord:
        """After the next acquisition: a lane that did not release the range may still write for it."""
        doubtful = not self.released and self.lane not in self.predecessors
        predecessors = (*self.predecessors, self.lane) if doubtful else self.predecessors
        return RangeRecord(self.epoch + 1, lane, False, predecessors, session)


def decode_range(data: bytes) -> RangeRecord:
    """Reverse of `RangeRecord.encode`. Raises Unreadable."""
    value = _load(data)
    try:
        return RangeRecord(
            int(value["epoch"]),
            int(value["lane"]),
            bool(value["released"]),
            tuple(int(lane) for lane in value["predecessors"]),
            int(value["session"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Unreadable(f"not a range: {data[:200]!r}") from error


def encode_member(member: Member) -> bytes:
    """The data of a member's node. Its incarnation is the session that owns the node."""
    return _dump({name: getattr(member, name) for name in sorted(_MEMBER_FIELDS)})


def decode_member(data: bytes, session: int) -> Member:
    """Reverse of `encode_member`; fields of a later version are left out. Raises Unreadable."""
    value = _load(data)
    known: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in value.items() if k in _MEMBER_FIELDS}
    try:
        return Member(**known, incarnation=session)
    except TypeError as error:
        raise Unreadable(f"not a member: {data[:200]!r}") from error


def encode_plan(assignment: Mapping[int, int], writer: str = "") -> bytes:
    """The data of the plan's node. `writer` tells one write from another with the same assignment."""
    return _dump({"assignment": {str(r): lane for r, lane in assignment.items()}, "writer": writer})


def decode_plan(data: bytes, version: int) -> Plan:
    """The plan that the node holds at this version. Raises Unreadable."""
    value = _load(data)
    try:
        return Plan(version, {int(r): int(lane) for r, lane in value["assignment"].items()})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unreadable(f"not a plan: {data[:200]!r}") from error


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _load(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise Unreadable(f"not JSON: {data[:200]!r}") from error
    if not isinstance(value, dict):
        raise Unreadable(f"not an object: {data[:200]!r}")
    return value
