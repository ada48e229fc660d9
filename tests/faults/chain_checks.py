"""I3 and I13: what the journals say of a task is a chain, of which each link decides one thing once.

    (generation, attempt) waits ─▶ moved ─▶ (generation + 1, attempt)
                                └▶ dispatched ─▶ retried ─▶ (generation, attempt + 1)
                                               └▶ failed ─▶ redriven ─▶ (generation + 1, 1)

All else ends it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from .model import EntryKind
from .tasks import Entry, Tasks, Violation

Place = tuple[int, int]
"""Generation and attempt."""
DECIDES = {
    **dict.fromkeys(
        (EntryKind.DISPATCHED, EntryKind.CANCELLED, EntryKind.FAILED, EntryKind.MOVED, EntryKind.EXPIRED), "waiting"
    ),
    **dict.fromkeys(
        (EntryKind.SUCCEEDED, EntryKind.RETRIED, EntryKind.ATTEMPT_FAILED, EntryKind.ATTEMPT_EXPIRED), "running"
    ),
    EntryKind.REDRIVEN: "over",
}
"""What a task is before an entry of this kind."""


def generation_violations(tasks: Tasks) -> Iterator[Violation]:
    """I3: one live generation, one live attempt. I13: one outcome of an attempt."""
    for task_id, entries in tasks.entries.items():
        for problem in _problems(entries):
            yield Violation("generation_violations", task_id, problem)


def _problems(entries: list[Entry]) -> Iterator[str]:
    left: dict[tuple[Place, str], list[Entry]] = defaultdict(list)
    for entry in entries:
        left[_place(entry), DECIDES[entry.fact.kind]].append(entry)
    place, state, at_ms = (0, 1), "waiting", 0
    while found := left.pop((place, state), None):
        if len(found) > 1:
            yield f"decided several times: {[_named(entry) for entry in found]}"
        entry = found[0]
        if entry.append_ms < at_ms:
            yield f"{_named(entry)} before what comes before it"
        place, state, at_ms = *_behind(entry), entry.append_ms
    for others in left.values():
        yield f"decided, although the task is {state} in {place}: {[_named(entry) for entry in others]}"


def _behind(entry: Entry) -> tuple[Place, str]:
    generation, attempt = _place(entry)
    match entry.fact.kind:
        case EntryKind.MOVED:
            return (generation + 1, attempt), "waiting"
        case EntryKind.RETRIED:
            return (generation, attempt + 1), "waiting"
        case EntryKind.REDRIVEN:
            return (generation + 1, 1), "waiting"
        case EntryKind.DISPATCHED:
            return (generation, attempt), "running"
        case _:
            return (generation, attempt), "over"


def _place(entry: Entry) -> Place:
    return entry.fact.dispatch.generation, entry.fact.dispatch.attempt


def _named(entry: Entry) -> str:
    return f"{entry.fact.kind} {_place(entry)}"
