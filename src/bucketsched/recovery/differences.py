"""What the store says of a task against what the journal says of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ..core.task import FactKind, Facts
from .spill import Said


class Kind(StrEnum):
    """How a row of a closed bucket and the journal can differ."""

    LOST = "lost"
    """It has no fact, and no record says anything of it: it was not dispatched."""
    UNMARKED = "unmarked"
    """A record settles it, and the row lacks the fact: it shows as pending, say, and was dispatched."""
    NOT_JOURNALED = "not-journaled"
    """It has a fact from a time of which the journal is kept, and no record says so."""
    NO_ROW = "no-row"
    """A record settles it, and there is no such row."""
    TWICE = "twice"
    """More than one record settles the same generation and attempt at the same stage."""
    CONTRADICTION = "contradiction"
    """Record and fact say different things."""
    NO_SUCCESSOR = "no-successor"
    """It was moved to another due time, and there is no row."""


REPAIRED = frozenset({Kind.LOST, Kind.UNMARKED, Kind.NO_SUCCESSOR})
"""Those for which it is known what to do."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One task that is in one but not in the other. `said`: what the journal has of it."""

    kind: Kind
    ref: bytes
    range_id: int
    detail: str
    said: tuple[Said, ...] = ()


def facts_in(facts: Facts) -> dict[FactKind, int]:
    """Each fact with its time; MOVED with the new due time, which is that of the move for a task that came late."""
    times = {
        FactKind.DISPATCHED: facts.dispatched_ms,
        FactKind.CANCELLED: facts.cancelled_ms,
        FactKind.FAILED: facts.failed_ms,
        FactKind.MOVED: facts.moved_to_ms,
        FactKind.SUCCEEDED: facts.succeeded_ms,
        FactKind.EXPIRED: facts.expired_ms,
    }
    return {kind: at_ms for kind, at_ms in times.items() if at_ms is not None}


def compare(range_id: int, ref: bytes, facts: Facts, said: Sequence[Said], kept_from_ms: int) -> Iterator[Difference]:
    """What is wrong with a row. `kept_from_ms`: the journal holds every record from then on."""
    has, says = facts_in(facts), tuple(said)
    told = kinds_told(says)
    if len({one.ref for one in says}) < len(says):
        yield Difference(Kind.TWICE, ref, range_id, " and ".join(_told(one) for one in says), says)
    if not has and not says:
        yield Difference(Kind.LOST, ref, range_id, "no fact, no record")
    elif says and told > set(has):
        yield Difference(Kind.UNMARKED, ref, range_id, _told(says[0]), says)
    elif not says:
        if all(at_ms >= kept_from_ms for at_ms in has.values()):
            detail = ", ".join(f"{kind.name.lower()} at {at_ms}" for kind, at_ms in has.items())
            yield Difference(Kind.NOT_JOURNALED, ref, range_id, detail)
    elif told != set(has) and not (told < set(has) and min(has.values()) < kept_from_ms):
        detail = f"{', '.join(kind.name.lower() for kind in has)} in the store, {_told(says[0])} in the journal"
        yield Difference(Kind.CONTRADICTION, ref, range_id, detail, says)


def kinds_told(said: Sequence[Said]) -> set[FactKind]:
    """The facts that records ask for: in the store a retry is a move."""
    return {FactKind.MOVED if one.kind is FactKind.RETRIED else one.kind for one in said}


def without_row(range_id: int, ref: bytes, said: Sequence[Said]) -> Difference:
    """A record of a row that is not there."""
    return Difference(Kind.NO_ROW, ref, range_id, _told(said[0]), tuple(said))


def _told(said: Said) -> str:
    when = f"to {said.at_ms}" if said.kind in (FactKind.MOVED, FactKind.RETRIED) else f"at {said.at_ms}"
    return f"{said.kind.name.lower()} {when}" + (f" ({said.reason})" if said.reason else "")
