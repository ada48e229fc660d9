"""`bucketsched task`: create, get, attempts, list, count, update, run-now, redrive, cancel."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .attempts import COLUMNS, described_attempt, row_of, summary
from .connection import Connection, connection_options
from .exit_code import ExitCode
from .notice import described_notices, notify_option
from .output import instant, show, show_all
from .parameters import INSTANT, LENGTH, PAIR
from .retry import described_retry, retry_of, retry_options

if TYPE_CHECKING:
    from ..client import Client, NoticeRule, TaskInfo, UpdateResult

PAGE_MAX = 1_000
_COLUMNS = ("task_id", "queue", "type", "state", "due", "metadata")
TEXT_MAX = 1_000
"""Characters of a payload that a table shows."""

STATES = ("pending", "dispatched", "running", "succeeded", "retrying", "failed", "cancelled", "expired")
Command = TypeVar("Command", bound=Callable[..., Any])
_FILTERS = [
    click.option("--queue", default="", help="Those of one queue [all]."),
    click.option("--type", "task_type", default="", help="Those of one type."),
    click.option("--state", type=click.Choice(STATES)),
    click.option("--due-from", type=INSTANT, help="Due then or later: 2026-12-24T18:00:00Z."),
    click.option("--due-until", type=INSTANT, help="Due before."),
    click.option("--metadata", type=PAIR, multiple=True, help="With this in their metadata. May be given many times."),
]


@click.group()
def task() -> None:
    """Create, show, find, change and cancel tasks."""


@task.command()
@click.option("--type", "task_type", required=True, help="What a worker chooses its handler by.")
@click.option("--payload", help="The payload, as text.")
@click.option(
    "--payload-file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="The payload, from a file; - for standard input.",
)
@click.option("--delay", type=LENGTH, help="When it is due, from now: 5s, 1h30m, 2d, PT5S.")
@click.option("--due", type=INSTANT, help="When it is due: 2026-12-24T18:00:00Z. Past, or neither: at once.")
@click.option("--queue", help="The queue [default].")
@click.option("--priority", type=click.Choice(["high", "normal", "low"]), default="normal", show_default=True)
@click.option("--metadata", type=PAIR, multiple=True, help="May be given many times.")
@click.option("--content-type", default="", help="Media type of the payload.")
@click.option("--task-id", help="An id from an earlier try: then it is the same task.")
@click.option("--idempotency-key", default="", help="Your own name for this create: given again, it is the same task.")
@click.option("--start-by", type=INSTANT, help="If no attempt could be started by then, it has expired.")
@click.option("--expire-after", type=LENGTH, help="The same, from when it is due.")
@retry_options
@notify_option
@connection_options
def create(
    connection: Connection,
    task_type: str,
    payload: str | None,
    payload_file: str | None,
    delay: timedelta | None,
    due: datetime | None,
    queue: str | None,
    priority: str,
    metadata: tuple[tuple[str, str], ...],
    content_type: str,
    task_id: str | None,
    idempotency_key: str,
    start_by: datetime | None,
    expire_after: timedelta | None,
    notices: tuple[NoticeRule, ...],
    **retry: Any,
) -> None:
    """Create a task. When this ends with 0, the task is stored durably."""
    from ..core.task import Priority

    if delay is not None and due is not None:
        raise click.UsageError("--delay and --due can't be given together")
    if start_by is not None and expire_after is not None:
        raise click.UsageError("--start-by and --expire-after can't be given together")
    body, policy = _payload(payload, payload_file), retry_of(**retry)
    created = connection.call(
        lambda client: client.create(
            task_type,
            body,
            queue=queue,
            delay=delay,
            due=due,
            priority=Priority[priority.upper()],
            metadata=_unique(metadata),
            content_type=content_type,
            task_id=task_id,
            idempotency_key=idempotency_key,
            retry=policy,
            start_by=start_by,
            expire_after=expire_after,
            notices=notices,
        )
    )
    show(connection, {"task_id": created.id, "due": instant(created.due), "state": str(created.state)})


def _payload(text: str | None, path: str | None) -> bytes:
    if text is not None and path is not None:
        raise click.UsageError("--payload and --payload-file can't be given together")
    if path == "-":
        return sys.stdin.buffer.read()
    if path is not None:
        return Path(path).read_bytes()
    return _encoded(text or "")


def _encoded(text: str) -> bytes:
    """Bytes as they were typed, also where they were no valid text."""
    return text.encode("utf-8", "surrogateescape")


def _unique(pairs: tuple[tuple[str, str], ...]) -> dict[str, str]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise click.UsageError("--metadata must not be given twice with one key")
    return dict(pairs)


@task.command()
@click.argument("task_id")
@connection_options
def get(connection: Connection, task_id: str) -> None:
    """Show a task."""
    found = connection.call(lambda client: client.get(task_id))
    in_table = connection.output == "table"
    last = summary(found.last_attempts) if in_table else list(map(described_attempt, found.last_attempts))
    show(connection, _described(found, in_table) | {"last_attempts": last})


@task.command()
@click.argument("task_id")
@connection_options
def attempts(connection: Connection, task_id: str) -> None:
    """Show the execution log of a task, oldest first."""
    described = row_of if connection.output == "table" else described_attempt
    rows = [described(found) for found in connection.call(lambda client: client.attempts(task_id))]
    show_all(connection, "attempts", COLUMNS, rows)


def _filters(command: Command) -> Command:
    """Options that say which tasks are meant."""
    for option in reversed(_FILTERS):
        command = option(command)
    return command


@task.command("list")
@_filters
@click.option("--newest", is_flag=True, help="The latest due first, not the earliest.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="At most so many.")
@connection_options
def list_(
    connection: Connection,
    queue: str,
    task_type: str,
    state: str | None,
    due_from: datetime | None,
    due_until: datetime | None,
    metadata: tuple[tuple[str, str], ...],
    newest: bool,
    limit: int,
) -> None:
    """Find tasks, by due time. Everything given must hold."""

    async def found(client: Client) -> list[TaskInfo]:
        tasks: list[TaskInfo] = []
        async for each in client.list_tasks(
            queue=queue,
            type=task_type,
            state=state and state.upper(),
            due_from=due_from,
            due_until=due_until,
            metadata=_unique(metadata),
            order="newest" if newest else "next",
            page_size=min(limit, PAGE_MAX),
        ):
            tasks.append(each)
            if len(tasks) == limit:
                break
        return tasks

    rows = [_described(each, connection.output == "table") for each in connection.call(found)]
    show_all(connection, "tasks", _COLUMNS, rows)


@task.command()
@_filters
@connection_options
def count(
    connection: Connection,
    queue: str,
    task_type: str,
    state: str | None,
    due_from: datetime | None,
    due_until: datetime | None,
    metadata: tuple[tuple[str, str], ...],
) -> None:
    """Count tasks. Everything given must hold. Where it is not exact, there are at least so many."""
    counted = connection.call(
        lambda client: client.count_tasks(
            queue=queue,
            type=task_type,
            state=state and state.upper(),
            due_from=due_from,
            due_until=due_until,
            metadata=_unique(metadata),
        )
    )
    show(connection, {"count": counted.count, "exact": counted.exact})


@task.command()
@click.argument("task_id")
@connection_options
def cancel(connection: Connection, task_id: str) -> int:
    """Cancel a task. Ends with 0 if it never will be dispatched, with 4 if it is too late."""
    outcome = connection.call(lambda client: client.cancel(task_id))
    show(connection, {"task_id": task_id, "outcome": str(outcome)})
    return ExitCode.OK if outcome.cancelled else ExitCode.CONFLICT


@task.command()
@click.argument("task_id")
@click.option("--payload", help="The new payload, as text.")
@click.option(
    "--payload-file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="The new payload, from a file; - for standard input.",
)
@click.option("--delay", type=LENGTH, help="When it is due, from now: 5s, 1h30m, 2d, PT5S.")
@click.option("--due", type=INSTANT, help="When it is due: 2026-12-24T18:00:00Z.")
@click.option("--priority", type=click.Choice(["high", "normal", "low"]))
@click.option("--metadata", type=PAIR, multiple=True, help="All of the new metadata. May be given many times.")
@click.option("--content-type", help="Media type of the payload.")
@click.option("--start-by", type=INSTANT, help="If no attempt could be started by then, it has expired.")
@click.option("--expected-generation", type=click.IntRange(min=0), help="Only if the task is still of this one.")
@connection_options
def update(
    connection: Connection,
    task_id: str,
    payload: str | None,
    payload_file: str | None,
    delay: timedelta | None,
    due: datetime | None,
    priority: str | None,
    metadata: tuple[tuple[str, str], ...],
    content_type: str | None,
    start_by: datetime | None,
    expected_generation: int | None,
) -> int:
    """Change a task that waits. Ends with 0 if it is changed, with 4 if it is too late."""
    from ..core.task import Priority

    if delay is not None and due is not None:
        raise click.UsageError("--delay and --due can't be given together")
    body = None if payload is None and payload_file is None else _payload(payload, payload_file)
    result = connection.call(
        lambda client: client.update(
            task_id,
            payload=body,
            delay=delay,
            due=due,
            priority=None if priority is None else Priority[priority.upper()],
            metadata=_unique(metadata) if metadata else None,
            content_type=content_type,
            expected_generation=expected_generation,
            start_by=start_by,
        )
    )
    return _show_change(connection, task_id, result)


@task.command("run-now")
@click.argument("task_id")
@connection_options
def run_now(connection: Connection, task_id: str) -> int:
    """Make a task that waits due now. Ends with 0 if it is, with 4 if it is too late."""
    outcome = connection.call(lambda client: client.run_now(task_id))
    show(connection, {"task_id": task_id, "outcome": str(outcome)})
    return ExitCode.OK if outcome.updated else ExitCode.CONFLICT


@task.command()
@click.argument("task_id")
@connection_options
def redrive(connection: Connection, task_id: str) -> int:
    """Do a task all over, from now on, that has failed or expired. Ends with 0 if it waits, with 4 if it does not."""
    return _show_change(connection, task_id, connection.call(lambda client: client.redrive(task_id)))


def _show_change(connection: Connection, task_id: str, result: UpdateResult) -> int:
    shown: dict[str, Any] = {"task_id": task_id, "outcome": str(result.outcome)}
    if result.task is not None:
        shown |= {"due": instant(result.task.due), "generation": result.task.generation}
    show(connection, shown)
    return ExitCode.OK if result.outcome.updated else ExitCode.CONFLICT


def _described(found: TaskInfo, shortened: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "task_id": found.id,
        "namespace": found.namespace,
        "queue": found.queue,
        "type": found.type,
        "state": str(found.state),
        "due": instant(found.due),
        "created": instant(found.created),
        "dispatched": instant(found.dispatched),
        "cancelled": instant(found.cancelled),
        "failed": instant(found.failed),
        "fail_reason": found.fail_reason,
        "succeeded": instant(found.succeeded),
        "expired": instant(found.expired),
        "start_by": instant(found.start_by),
        "retry": described_retry(found.retry),
        "notices": described_notices(found.notices),
        "last_error": found.last_error,
        "priority": found.priority.name,
        "generation": found.generation,
        "attempt": found.attempt,
        "metadata": found.metadata,
        "content_type": found.content_type,
        "idempotency_key": found.idempotency_key,
    }
    return row | _shown_payload(found.payload, shortened)


def _shown_payload(payload: bytes, shortened: bool) -> dict[str, str]:
    """As text where it is text, else in base64."""
    try:
        name, text = "payload", payload.decode()
    except UnicodeDecodeError:
        name, text = "payload_base64", base64.b64encode(payload).decode()
    if shortened and len(text) > TEXT_MAX:
        text = f"{text[:TEXT_MAX]}… ({len(payload)} bytes)"
    return {name: text}
