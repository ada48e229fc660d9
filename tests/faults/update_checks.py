"""I4 of tasks that are changed.

The journals say in which order a task's changes were decided, so they are the witness: a history is lawful if they form
one chain, if each of its moves is what somebody had asked for by then, and if it fits every answer. A request may have
been tried several times on its way. So whatever it was told at last, other than that it was refused or that there is
no such task, an earlier try may have done it; but once there is an answer, nothing of it happens later. Of a request
without an answer nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .model import Body, Change, EntryKind, Op, Outcome, Request, Version
from .tasks import Standing, Tasks, Violation, is_of

CLOCK_MS_MAX = 250
"""How far the clock of an api process may be off where it says when now is."""
NOTHING_DONE = (Outcome.REJECTED, Outcome.NOT_FOUND)
TOO_LATE = {
    Outcome.TOO_LATE: (EntryKind.DISPATCHED, EntryKind.EXPIRED),
    Outcome.CANCELLED: (EntryKind.CANCELLED,),
    Outcome.FAILED: (EntryKind.FAILED, EntryKind.ATTEMPT_FAILED),
}
BUCKET_MS = 60_000


def update_violations(tasks: Tasks) -> Iterator[Violation]:
    """I4: what a confirmed update has replaced is never dispatched; "too late" means that it was; nobody else moves."""
    for task_id in {*tasks.asked[Op.UPDATE], *tasks.asked[Op.RUN_NOW], *tasks.entries}:
        requests = [*tasks.asked[Op.UPDATE].get(task_id, ()), *tasks.asked[Op.RUN_NOW].get(task_id, ())]
        versions = tasks.versions(task_id)
        problems = [problem for request in requests for problem in _told_wrongly(tasks, request, versions)]
        problems += _unasked(tasks, task_id, requests, versions)
        for problem in problems:
            yield Violation("update_violations", task_id, problem)


def _told_wrongly(tasks: Tasks, request: Request, versions: list[Standing]) -> Iterator[str]:
    """What is wrong about an answer."""
    name = f"{request.op} of {request.start_ms}"
    if kinds := TOO_LATE.get(request.outcome):
        if not tasks.says(request.task_id, *kinds, by_ms=request.end_ms):
            yield f"{name} was told that the task was {kinds[0]}; it was not"
    elif request.outcome is Outcome.CONFLICT:
        if not _may_conflict(tasks, request):
            yield f"{name} was told that the task was of another generation than {request.change}; it was not"
    elif request.outcome is Outcome.UPDATED:
        version = request.version or _made_due(tasks, request, versions)
        if version is None:
            yield f"{name} was confirmed, and no journal knows"
        else:
            yield from (f"{name}, {problem}" for problem in _wrong_about(tasks, request, version, versions))


def _made_due(tasks: Tasks, request: Request, versions: list[Standing]) -> Version | None:
    """The first version that a confirmed run-now may have made: none that was replaced when it began."""
    replaced = _confirmed_before(tasks, request, 0)
    for generation, standing in enumerate(versions):
        if generation < replaced:
            continue  # which may have been due at about that time by itself
        if standing.body and _is_now(standing.body.due_ms, request) and standing.since_ms <= (request.end_ms or 0):
            return Version(generation, standing.body)
    return None


def _wrong_about(tasks: Tasks, request: Request, version: Version, versions: list[Standing]) -> Iterator[str]:
    generation, body = version
    change, end_ms = request.change or Change(), request.end_ms or 0
    if body.changed(change) != body:
        yield f"confirmed with another outcome than was asked for: {body}"
    if change.expected is not None and generation not in (change.expected, change.expected + 1):
        yield f"generation {change.expected} was expected, {generation} confirmed"
    if generation >= len(versions) or versions[generation].since_ms > end_ms:
        yield f"confirmed as generation {generation}, not journaled by then"
    elif not is_of(body, versions[generation].body):
        yield f"confirmed with another outcome than is journaled: {body}"
    yield from _wrongly_dispatched(tasks, request, generation, versions)
    if any(cancel.before(request.start_ms) for cancel in tasks.told(Op.CANCEL, request.task_id, Outcome.CANCELLED)):
        yield "confirmed, although a cancel had been"
    if newer := _confirmed_before(tasks, request, generation + 1):
        yield f"generation {generation} was confirmed after generation {newer}"


def _wrongly_dispatched(tasks: Tasks, request: Request, generation: int, versions: list[Standing]) -> Iterator[str]:
    """What was dispatched before may have failed, and be tried again: that is changed, too."""
    since_ms = versions[generation].since_ms if generation < len(versions) else 0
    for message in tasks.messages.get(request.task_id, ()):
        if message.dispatch.generation < generation and message.append_ms > since_ms:
            yield f"generation {generation} was confirmed, {message.dispatch.generation} dispatched"
        seen = message.seen_ms is not None and message.seen_ms < request.start_ms
        retried = tasks.decided.get((EntryKind.RETRIED, message.dispatch))
        if seen and not retried:
            yield "confirmed, although it had been seen before"


def _confirmed_before(tasks: Tasks, request: Request, generation: int) -> int:
    """The highest generation from this one on that somebody had been told of before; 0 if there is none."""
    known = [
        other.version.generation
        for op in (Op.UPDATE, Op.GET)
        for other in tasks.asked[op].get(request.task_id, ())
        if other.version and other.before(request.start_ms) and other.version.generation >= generation
    ]
    return max(known, default=0)


def _may_conflict(tasks: Tasks, request: Request) -> bool:
    """Whether the task can have been of another generation than the one that the request expects."""
    expected = (request.change or Change()).expected
    if expected is None:
        return False
    moved = tasks.moves(request.task_id).get(expected)
    if moved and moved.append_ms <= (request.end_ms or 0):
        return True
    return expected > 0 and not _confirmed_before(tasks, request, expected)


def _unasked(tasks: Tasks, task_id: str, requests: list[Request], versions: list[Standing]) -> Iterator[str]:
    """Moves that nobody has asked for."""
    for generation, entry in sorted(tasks.moves(task_id).items()):
        if generation + 1 >= len(versions):
            return  # no chain: that is found elsewhere
        before, after = versions[generation].body, versions[generation + 1].body
        if entry.fact.body is None:
            if entry.append_ms < (entry.fact.due_ms // BUCKET_MS + 1) * BUCKET_MS:
                yield f"generation {generation} was moved as it was; its bucket was not over"
        elif before is not None and not _asked_for(requests, generation, before, entry.fact.body, entry.append_ms):
            yield f"generation {generation} was changed as nobody had asked by then: {after}"


def _asked_for(requests: Iterable[Request], generation: int, before: Body, after: Body, at_ms: int) -> bool:
    for request in requests:
        if request.outcome in NOTHING_DONE or request.start_ms > at_ms:
            continue
        if request.outcome is not Outcome.UNKNOWN and request.before(at_ms):
            continue
        if request.op is Op.RUN_NOW:
            change = Change(due_ms=after.due_ms)
            if not _is_now(after.due_ms, request):
                continue
        else:
            change = request.change or Change()
        if change.expected in (None, generation) and is_of(after, before.changed(change)):
            return True
    return False


def _is_now(due_ms: int, request: Request) -> bool:
    """Whether a process may have thought so while the request was under way."""
    latest_ms = None if request.outcome is Outcome.UNKNOWN else request.end_ms
    return due_ms >= request.start_ms - CLOCK_MS_MAX and (latest_ms is None or due_ms <= latest_ms + CLOCK_MS_MAX)
