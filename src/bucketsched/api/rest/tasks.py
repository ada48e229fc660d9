"""/tasks."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

from fastapi import Header, Query
from starlette.requests import Request
from starlette.responses import Response

from ...core import task_id as ids
from ...core.catalog import DEFAULT_NAMESPACE, DEFAULT_QUEUE
from ...core.errors import FailedPrecondition, InvalidArgument, RequestError
from ...core.message import rfc3339
from ...core.task import Priority, TaskState
from ...core.validation import Limits
from ...core.validation import NewTask as CoreTask
from ...ports import CancelResult
from ...service.executions import ShownTask
from ...service.tasks import Created, CreateResult, TaskService
from . import models
from .attempts import attempt_json
from .bodies import BATCH_BYTES_MAX, Bodies, task_bytes_max
from .content import (
    delay_ms,
    instant_or_none_ms,
    is_json_type,
    length_or_none_ms,
    payload_of,
    priority_of,
    renamed,
    run_at_ms,
)
from .errors import JSON, encoded, error_of, error_response, json_response
from .json_text import Members, elements, is_json, members
from .notices import notices_json, notices_of
from .retries import retry_json, retry_of
from .routes import Routes, takes

KeyHeader = Header(None, alias="Idempotency-Key", description="The same as the field `idempotency_key`.")
NamespaceQuery = Query(DEFAULT_NAMESPACE, description="Whose it is.")

_CANCELLED = (CancelResult.CANCELLED, CancelResult.ALREADY_CANCELLED)


class TaskRoutes:
    """Serves the use cases of tasks."""

    def __init__(self, tasks: TaskService, limits: Limits, bodies: Bodies) -> None:
        self._tasks, self._bodies = tasks, bodies
        self._task_bytes_max = task_bytes_max(limits)

    def add_to(self, routes: Routes) -> None:
        """The paths."""
        routes.add(
            "POST", "/tasks", self.create, models.CreatedTask, 201, (400, 404, 409, 413, 415, 503), takes("NewTask")
        )
        many = takes("NewTasks")
        routes.add("POST", "/tasks:batch", self.create_many, models.TaskResults, 200, (400, 413, 415, 503), many)
        routes.add("GET", "/tasks/{task_id}", self.get, models.ShownTask, 200, (400, 404, 503))
        routes.add("POST", "/tasks/{task_id}/cancel", self.cancel, models.Cancelled, 200, (400, 404, 409, 503))

    async def create(self, request: Request, idempotency_key: str | None = KeyHeader) -> Response:
        """Create a task. 201: it is stored durably, and will be dispatched.

        503: it may or may not have been stored; send it again with the `task_id` in the answer.
        """
        async with self._bodies.body_of(request, self._task_bytes_max) as raw:
            found = members(raw)
            (result,) = await self._tasks.create_many([with_key(new_task(found), idempotency_key)])
        if not isinstance(result, Created):
            return error_response(result, renamed(found))
        task_id = ids.text(result.task_id)
        return json_response(_created(result), 201, {"Location": f"/tasks/{task_id}"})

    async def create_many(self, request: Request) -> Response:
        """Create many tasks. Each has a result of its own; the answer is 200 also where some were refused."""
        async with self._bodies.body_of(request, BATCH_BYTES_MAX) as raw:
            items = [_new_task_or_error(found) for found in self._listed(members(raw))]
            valid = [task for _, task in items if isinstance(task, CoreTask)]
            created = iter(await self._tasks.create_many(valid))
        results = [(found, next(created) if isinstance(task, CoreTask) else task) for found, task in items]
        return json_response({"results": [_item(result, renamed(found)) for found, result in results]})

    async def get(self, task_id: str, namespace: str = NamespaceQuery) -> Response:
        """Show a task as it stands."""
        return Response(task_json(await self._tasks.show(namespace, task_id), True), 200, None, JSON)

    async def cancel(self, task_id: str, namespace: str = NamespaceQuery) -> Response:
        """Cancel a task: 200 is for good. 409: too late, it was dispatched (or failed) before."""
        result = await self._tasks.cancel(namespace, task_id)
        if result not in _CANCELLED:
            raise FailedPrecondition("task_id", f"is {result.value}: it is too late to cancel it")
        return json_response({"task_id": task_id.lower(), "status": TaskState.CANCELLED, "outcome": result.name})

    def _listed(self, found: Members) -> list[Members]:
        """The members of each task. Raises InvalidArgument where there are too many."""
        for name in found:
            if name != "tasks":
                raise InvalidArgument(name, "there is no such field; there is tasks")
        if "tasks" not in found:
            raise InvalidArgument("tasks", "must be given")
        if isinstance(found["tasks"].value, list):
            self._tasks.check_batch(len(found["tasks"].value))
        return list(elements(found["tasks"], "tasks"))


def new_task(found: Members) -> CoreTask:
    """The task that is asked for. Raises InvalidArgument where it can't be told."""
    body = models.shaped(models.NewTask, found)
    payload, content_type = payload_of(body, found) or (b"", body.content_type or "")
    priority = priority_of(body)
    if body.task_id == "":
        raise InvalidArgument("task_id", "must not be empty: leave it out, and the server makes one")
    return CoreTask(
        body.type,
        DEFAULT_NAMESPACE if body.namespace is None else body.namespace,
        DEFAULT_QUEUE if body.queue is None else body.queue,
        payload,
        body.metadata or {},
        run_at_ms(body),
        delay_ms(body),
        Priority.NORMAL if priority is None else priority,
        body.task_id or "",
        content_type,
        body.idempotency_key or "",
        retry_of(body.retry, "retry"),
        instant_or_none_ms(body.start_by, "start_by"),
        length_or_none_ms(body.expire_after, "expire_after"),
        notices_of(body.notices),
    )


def with_key(task: CoreTask, header: str | None) -> CoreTask:
    """The task with the key that a header gives it. Raises InvalidArgument where its field says otherwise."""
    if header is None:
        return task
    if task.idempotency_key not in ("", header):
        raise InvalidArgument("idempotency_key", "must be that of the header Idempotency-Key, or be left out")
    return replace(task, idempotency_key=header)


def _new_task_or_error(found: Members) -> tuple[Members, CoreTask | RequestError]:
    try:
        return found, new_task(found)
    except RequestError as error:
        return found, error


def _created(created: Created) -> dict[str, Any]:
    run_at = rfc3339(created.due_ms)
    return {"task_id": ids.text(created.task_id), "status": TaskState.PENDING, "run_at": run_at}


def _item(result: CreateResult, names: dict[str, str] | None) -> dict[str, Any]:
    if isinstance(result, Created):
        return {"code": 201, **_created(result)}
    error = error_of(result, names)
    return {"code": error["code"], "error": error}


def task_json(shown: ShownTask, with_attempts: bool = False) -> bytes:
    """A task with its state. A payload of JSON stands there as it was sent."""
    row, body, facts = shown.stored.row, shown.stored.row.body, shown.stored.facts
    told = {
        "task_id": ids.text(row.task_id),
        "namespace": body.namespace,
        "queue": body.queue,
        "type": body.type,
        "status": shown.state,
        "run_at": rfc3339(body.nominal_due_ms),
        "priority": body.priority.name,
        "content_type": body.content_type,
        "metadata": body.metadata,
        "generation": row.generation,
        "attempts": row.attempt - (facts.dispatched_ms is None),
        "created_at": rfc3339(body.created_ms),
        "dispatched_at": _instant(facts.dispatched_ms),
        "cancelled_at": _instant(facts.cancelled_ms),
        "failed_at": _instant(facts.failed_ms),
        "succeeded_at": _instant(facts.succeeded_ms),
        "expired_at": _instant(facts.expired_ms),
        "start_by": _instant(body.expires_ms or None),
        "retry": retry_json(body.retry),
        "notices": notices_json(body.notices),
        "error": facts.failed_reason or None,
        "last_error": shown.last_error or None,
        "idempotency_key": body.idempotency_key or None,
    }
    head = encoded(told)[:-1]
    if with_attempts:
        head += b',"last_attempts":[%b]' % b",".join(map(attempt_json, shown.attempts))
    if is_json_type(body.content_type) and is_json(body.payload):
        return b'%b,"payload":%b}' % (head, body.payload)
    return b'%b,"payload_base64":"%b"}' % (head, base64.b64encode(body.payload))


def _instant(ms: int | None) -> str | None:
    return None if ms is None else rfc3339(ms)
