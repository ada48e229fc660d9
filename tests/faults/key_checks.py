"""I9: one idempotency key, one task."""

from __future__ import annotations

from collections.abc import Iterator

from .model import Body, Outcome, Request
from .tasks import Tasks, Violation, contents
from .update_checks import CLOCK_MS_MAX

Asked = tuple[Body | None, int | None]


def key_violations(tasks: Tasks) -> Iterator[Violation]:
    """I9: the same key is the same task, dispatched once; nothing else is accepted under it."""
    for key, requests in tasks.keyed.items():
        problems = [*_answered_wrongly(requests), *_due_wrongly(requests), *_dispatched_wrongly(tasks, requests)]
        for problem in problems:
            yield Violation("key_violations", ",".join(sorted(_answered(requests))), f"key {key}: {problem}")


def _asked(request: Request) -> Asked:
    return request.body, request.delay_ms


def _answered(requests: list[Request]) -> set[str]:
    return {request.task_id for request in requests if request.outcome is Outcome.OK}


def _answered_wrongly(requests: list[Request]) -> Iterator[str]:
    accepted = {_asked(request) for request in requests if request.outcome is Outcome.OK}
    if len(_answered(requests)) > 1:
        yield "several tasks"
    if len(accepted) > 1:
        yield "creates of different contents were accepted"
    for request in requests:
        if request.outcome is not Outcome.EXISTS:
            continue
        if _asked(request) in accepted:
            yield "the same create was accepted, and refused as another one"
        if not any(_asked(other) != _asked(request) and not request.before(other.start_ms) for other in requests):
            yield "refused as another create's, and there is none"


def _due_wrongly(requests: list[Request]) -> Iterator[str]:
    """The first create says when a delay ends, and all are told the same."""
    told = [request for request in requests if request.outcome is Outcome.OK]
    if len({request.due_ms for request in told}) > 1:
        yield "several due times"
    for request in told:
        if request.delay_ms is None:
            if request.body is not None and request.due_ms != request.body.due_ms:
                yield "another due time than was asked for"
            continue
        first_ms = min(other.start_ms for other in requests if _asked(other) == _asked(request))
        begun_ms = request.due_ms - request.delay_ms
        if not first_ms - CLOCK_MS_MAX <= begun_ms <= (request.end_ms or 0) + CLOCK_MS_MAX:
            yield f"a delay that began at {begun_ms}, asked for from {first_ms} to {request.end_ms}"


def _dispatched_wrongly(tasks: Tasks, requests: list[Request]) -> Iterator[str]:
    """By their contents, also those whose ids nobody was told."""
    wanted = {contents(request.body) for request in requests if request.body is not None}
    accepted = {
        contents(request.body) for request in requests if request.outcome is Outcome.OK and request.body is not None
    }
    fired = {task_id for each in wanted for task_id in tasks.by_contents.get(each, ())}
    fired |= {task_id for task_id in _answered(requests) if tasks.messages.get(task_id)}
    if len(fired) > 1:
        yield f"dispatched as {sorted(fired)}"
    if accepted and any(tasks.by_contents.get(each) for each in wanted - accepted):
        yield "what was refused was dispatched"
