"""What only a look at queues tells of a task: whether those exist that are to get notices, and what its own one can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core.catalog import Queue
from ..core.errors import InvalidArgument, NotFound, RequestError, Unavailable
from ..core.notice_check import check_events
from ..core.notice_rule import NoticeRule
from ..core.validation import NewTask
from .directory import Directory

FoundQueues = Mapping[tuple[str, str], Queue | RequestError | Unavailable]
"""By namespace and name; why there is none, else."""


def queues_of(task: NewTask) -> list[tuple[str, str]]:
    """Namespace and name of every queue that the task names."""
    return [(task.namespace, task.queue), *((task.namespace, rule.queue) for rule in task.notices)]


def refusal(task: NewTask, queue: Queue, found: FoundQueues) -> RequestError | Unavailable | None:
    """Why a valid task of this queue can't have what it asks for: attempts that somebody says the ends of, notices."""
    if task.retry is not None and not queue.tracks_outcomes:
        return InvalidArgument("retry", f"must not be given: nobody says how tasks of {queue.kind} queues end")
    for at, rule in enumerate(task.notices):
        target = found[task.namespace, rule.queue]
        if isinstance(target, NotFound):
            return _missing(at, target)
        if not isinstance(target, Queue):
            return target
    try:
        check_events(task.notices, queue)
    except RequestError as error:
        return error
    return None


async def check_targets(directory: Directory, namespace: str, rules: Sequence[NoticeRule]) -> None:
    """Raises NotFound with the field at fault, or Unavailable. The namespace exists."""
    for at, rule in enumerate(rules):
        try:
            await directory.queue(namespace, rule.queue)
        except NotFound as error:
            raise _missing(at, error) from None


def _missing(at: int, error: NotFound) -> NotFound:
    return NotFound(f"notices[{at}].queue", error.message)
