"""What the nodes hold, as JSON: a person can read it with any ZooKeeper client."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ...core.assignment import Move
from ...core.errors import Unavailable
from ...ports import Member, NodeOrder, Orders, Plan, Rebalance, RebalanceState

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


def encode_orders(orders: Orders, writer: str = "") -> bytes:
    """The data of the orders' node. `writer` tells one write from another with the same orders."""
    nodes = {name: asdict(order) for name, order in orders.nodes.items()}
    return _dump({"nodes": nodes, "rebalance": _rebalance(orders.rebalance), "writer": writer})


def _rebalance(rebalance: Rebalance | None) -> dict[str, Any] | None:
    if rebalance is None:
        return None
    return {
        "id": rebalance.rebalance_id,
        "moves": [[move.range_id, move.source, move.target] for move in rebalance.moves],
        "at_once": rebalance.at_once,
        "state": rebalance.state.value,
        "failed": list(rebalance.failed),
    }


def decode_orders(data: bytes, version: int) -> Orders:
    """The orders that the node holds at this version. Raises Unreadable."""
    value = _load(data)
    try:
        nodes = {name: NodeOrder(bool(o["cordoned"]), bool(o["drained"])) for name, o in value["nodes"].items()}
        given, rebalance = value["rebalance"], None
        if given is not None:
            moves = tuple(Move(int(r), int(source), int(target)) for r, source, target in given["moves"])
            failed = tuple(int(range_id) for range_id in given.get("failed", ()))
            state = RebalanceState(given["state"])
            rebalance = Rebalance(str(given["id"]), moves, int(given["at_once"]), state, failed)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unreadable(f"not orders: {data[:200]!r}") from error
    return Orders(version, nodes, rebalance)


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
